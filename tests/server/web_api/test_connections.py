"""The limit on the connections of a web API, with connections in memory."""

from __future__ import annotations

from twisted.internet.error import ConnectionAborted
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from image_service.server.web_api.connections import LimitedFactory


class Echo(Protocol):
    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Client:
    """A connection to the factory."""

    def __init__(self, factory: LimitedFactory) -> None:
        self.transport = StringTransport()
        self._protocol = factory.buildProtocol(None)
        self._protocol.makeConnection(self.transport)  # type: ignore[no-untyped-call]

    @property
    def is_aborted(self) -> bool:
        return self.transport.disconnected

    def send(self) -> None:
        self._protocol.dataReceived(b"x")

    def receive(self) -> None:
        self._protocol.write(b"x")

    def receive_sequence(self) -> None:
        self._protocol.writeSequence([b"x", b"y"])

    def end(self) -> None:
        self._protocol.connectionLost(Failure(ConnectionAborted()))  # type: ignore[no-untyped-call]


def make_factory(max_connections: int) -> LimitedFactory:
    return LimitedFactory(Factory.forProtocol(Echo), max_connections)


def test_bytes_pass_in_both_directions() -> None:
    client = Client(make_factory(1))
    client.send()
    client.receive_sequence()
    assert client.transport.value() == b"xxy"


def test_connection_with_the_oldest_activity_is_aborted_for_one_more() -> None:
    factory = make_factory(4)
    clients = [Client(factory) for _ in range(4)]
    clients[0].send()
    clients[1].receive()
    clients[2].receive_sequence()
    clients.append(Client(factory))
    assert [client.is_aborted for client in clients] == [False, False, False, True, False]
    clients.append(Client(factory))
    assert [client.is_aborted for client in clients] == [True, False, False, True, False, False]


def test_activity_of_an_aborted_connection_counts_no_more() -> None:
    factory = make_factory(1)
    first, second = Client(factory), Client(factory)
    assert first.is_aborted
    first.send()
    first.end()
    assert not second.is_aborted
    Client(factory)
    assert second.is_aborted


def test_ended_connection_leaves_its_place() -> None:
    factory = make_factory(1)
    first = Client(factory)
    first.end()
    second = Client(factory)
    assert not second.is_aborted


def test_all_connections_are_aborted_at_once() -> None:
    factory = make_factory(3)
    clients = [Client(factory) for _ in range(3)]
    factory.abort_all()
    factory.abort_all()
    assert all(client.is_aborted for client in clients)
