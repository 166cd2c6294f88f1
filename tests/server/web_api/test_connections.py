"""The limit on the connections of a web API, with connections in memory."""

from __future__ import annotations

from unittest.mock import Mock

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from image_service.server.web_api.connections import LimitedFactory, record_authenticated


class Echo(Protocol):
    def dataReceived(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)


class Client:
    """A connection to the factory."""

    def __init__(self, factory: LimitedFactory, host: str = "192.0.2.1") -> None:
        self.transport = StringTransport(peerAddress=IPv4Address("TCP", host, 1))
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

    def authenticate(self) -> None:
        layer_above = Mock(transport=self._protocol)  # as TLS is
        record_authenticated(layer_above)

    def mark_answered(self) -> None:
        self._protocol.is_answered = True

    def end(self) -> None:
        self._protocol.connectionLost(Failure(ConnectionAborted()))  # type: ignore[no-untyped-call]


def make_factory(max_connections: int, clock: Clock | None = None) -> LimitedFactory:
    return LimitedFactory(Factory.forProtocol(Echo), clock or Clock(), max_connections)


def known(factory: LimitedFactory, number: int) -> list[Client]:
    clients = []
    for _ in range(number):
        clients.append(Client(factory, "198.51.100.1"))
        clients[-1].authenticate()
    return clients


def test_bytes_pass_in_both_directions() -> None:
    client = Client(make_factory(1))
    client.send()
    client.receive_sequence()
    assert client.transport.value() == b"xxy"


def test_known_connection_with_the_oldest_activity_is_aborted_for_one_more() -> None:
    factory = make_factory(16)
    clients = known(factory, 16)
    for client in clients[4:]:
        client.send()
    clients[0].send()
    clients[1].receive()
    clients[2].receive_sequence()
    clients += known(factory, 1)
    assert [number for number, client in enumerate(clients) if client.is_aborted] == [3]
    clients += known(factory, 1)
    assert [number for number, client in enumerate(clients) if client.is_aborted] == [3, 4]


def test_crowd_of_unknown_clients_cuts_itself() -> None:
    factory = make_factory(64)
    polls = known(factory, 9)  # which are silent
    crowd = []
    for number in range(2000):
        crowd.append(Client(factory, f"192.0.2.{number % 250}"))
        for client in crowd[-40:]:
            client.send()
    assert not any(client.is_aborted for client in polls)
    assert all(client.is_aborted for client in crowd[:-55])  # the oldest, though they send
    assert not any(client.is_aborted for client in crowd[-55:])


def test_address_has_a_quarter_without_an_authenticated_request() -> None:
    factory = make_factory(64)
    crowd = [Client(factory, "192.0.2.1") for _ in range(10)]
    probe = Client(factory, "198.51.100.7")
    crowd += [Client(factory, "192.0.2.1") for _ in range(1000)]
    assert not probe.is_aborted
    assert sum(not client.is_aborted for client in crowd) == 16
    assert not any(client.is_aborted for client in known(factory, 40))


def test_clients_of_one_network_count_together() -> None:
    factory = make_factory(8)
    first, second = Client(factory, "2001:db8::1"), Client(factory, "2001:db8::2")
    Client(factory, "2001:db8::3")
    assert first.is_aborted
    Client(factory, "2001:db8:0:1::1")
    assert not second.is_aborted


def test_new_connection_that_sends_nothing_is_aborted() -> None:
    clock = Clock()
    factory = make_factory(8, clock)
    silent, speaking = Client(factory, "192.0.2.1"), Client(factory, "192.0.2.2")
    seen = []
    clock.advance(4.9)
    speaking.send()
    for seconds in (0, 0.2, 3600):
        clock.advance(seconds)
        seen.append((silent.is_aborted, speaking.is_aborted))
    assert seen == [(False, False), (True, False), (True, False)]
    Client(factory).end()
    assert not clock.getDelayedCalls()


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
    clients = [*known(factory, 1), *(Client(factory, f"192.0.2.{number}") for number in range(2))]
    factory.abort_all()
    factory.abort_all()
    assert all(client.is_aborted for client in clients)


def test_connections_with_an_answer_are_aborted_after_others() -> None:
    factory = make_factory(8)  # two of an address
    answered, silent = Client(factory), Client(factory)
    answered.mark_answered()
    newer = Client(factory)
    assert (answered.is_aborted, silent.is_aborted) == (False, True)
    newer.mark_answered()
    Client(factory)
    assert (answered.is_aborted, newer.is_aborted) == (True, False)
