"""A connection of the load test."""

from __future__ import annotations

import time
from socket import create_server
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.error import ConnectionDone
from twisted.internet.task import Clock, deferLater
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from image_service.tools.loadtest.traffic.connection import ClientConnection, RequestFailed
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from socket import socket

    from twisted.internet.epollreactor import EPollReactor

BUSY_SECONDS = 0.2
REQUEST = b"GET / HTTP/1.1\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd"


class Receiver:
    """Receives responses, and keeps their heads."""

    def __init__(self) -> None:
        self.heads: list[object] = []

    def receive_head(self, head: object) -> None:
        """Keep it."""
        self.heads.append(head)

    def receive_content(self, data: bytes) -> None:
        """Do nothing."""


class FakeSocket:
    """A socket whose kernel accepts at most `accepts` bytes of each call, or reports that error."""

    accepts: int | OSError = 1 << 20
    sent = b""

    def send(self, data: bytes) -> int:
        """Keep the bytes that the kernel accepts; return their number."""
        if isinstance(self.accepts, OSError):
            raise self.accepts
        self.sent += data[: self.accepts]
        return min(self.accepts, len(data))

    def getsockopt(self, _level: int, _option: int, size: int) -> bytes:
        """Return a tcp_info of zeros."""
        return bytes(size)

    def setsockopt(self, *_: object) -> None:
        """Do nothing."""


class FakeTransport(StringTransport):
    """A transport with a socket; TLS delivers bytes and the end also while it is paused."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.socket = FakeSocket()

    def getHandle(self) -> None:
        """Return no connection of OpenSSL."""

    def setTcpNoDelay(self, *, enabled: bool) -> None:
        """Do nothing."""

    def resumeProducing(self) -> None:
        """Do nothing; the parent's fails after an abort, unlike TCP's."""


def connect(clock: Clock, rate: float | None = None, *, secure: bool = False) -> ClientConnection:
    """Return a connection that can send requests."""
    made = ClientConnection(clock, clock.seconds, lambda _: None, rate, secure=secure)
    made.makeConnection(FakeTransport())  # type: ignore[no-untyped-call]
    if secure:
        made.handshakeCompleted()
    return made


def send(made: ClientConnection, receiver: Receiver | None = None) -> list[Any]:
    """Send a request; return where its response or its error will be."""
    outcome: list[Any] = []
    response = made.send_request(REQUEST, receiver or Receiver())
    response.addCallbacks(outcome.append, lambda failure: outcome.append(failure.value))
    return outcome


def test_request_is_sent_by_the_transport_once_the_kernel_does_not_take_all_of_one() -> None:
    made = connect(Clock())
    transport = cast("FakeTransport", made.transport)
    send(made)
    made.dataReceived(RESPONSE)
    assert (transport.socket.sent, transport.io.getvalue()) == (REQUEST, b"")
    transport.socket.accepts = 5
    send(made)
    made.dataReceived(RESPONSE)
    send(made)
    assert (transport.socket.sent, transport.io.getvalue()) == (REQUEST + REQUEST[:5], REQUEST[5:] + REQUEST)


def test_request_is_sent_by_the_transport_if_the_socket_is_full() -> None:
    made = connect(Clock())
    transport = cast("FakeTransport", made.transport)
    transport.socket.accepts = BlockingIOError()
    send(made)
    assert transport.io.getvalue() == REQUEST


@pytest.mark.parametrize("answered", [0, 1])
def test_connection_that_was_reset_fails_the_request(answered: int) -> None:
    made = connect(Clock())
    for _ in range(answered):
        send(made)
        made.dataReceived(RESPONSE)
    cast("FakeTransport", made.transport).socket.accepts = ConnectionResetError()
    (failure,) = send(made)
    assert isinstance(failure, RequestFailed)
    assert (failure.kind, failure.stale, made.usable) == ("reset", answered > 0, False)


@pytest.mark.parametrize("secure", [True, False])
def test_connection_that_is_closed_after_a_response_does_not_fail_it(*, secure: bool) -> None:
    clock = Clock()
    made = connect(clock, 10.0, secure=secure)
    outcome = send(made)
    made.dataReceived(RESPONSE)
    assert not outcome, "its bytes are not due"
    made.connectionLost(Failure(ConnectionDone()))
    assert outcome[0].status == 200
    assert not made.usable
    assert not clock.getDelayedCalls()


def test_connection_that_is_closed_within_a_response_fails_it() -> None:
    made = connect(Clock(), 10.0, secure=True)
    outcome = send(made)
    made.dataReceived(RESPONSE[:-1])
    made.connectionLost(Failure(ConnectionDone()))
    assert isinstance(outcome[0], RequestFailed)


def test_response_without_a_request_is_not_received() -> None:
    clock, receiver = Clock(), Receiver()
    made = connect(clock, 10.0, secure=True)
    outcome = send(made, receiver)
    made.dataReceived(RESPONSE)
    made.dataReceived(RESPONSE)
    clock.advance(60)
    assert (outcome[0].status, len(receiver.heads), made.usable) == (200, 1, False)


def test_pause_of_this_client_is_not_a_timeout() -> None:
    clock = Clock()
    made = connect(clock, 1.0, secure=True)
    outcome = send(made)
    for at in range(0, len(RESPONSE), 10):  # as TLS delivers several records of one read
        made.dataReceived(RESPONSE[at : at + 10])
    clock.advance(len(RESPONSE) - 1)
    made.check_timeout(5)
    assert not outcome
    clock.advance(1)
    assert outcome[0].status == 200


def test_silence_after_a_pause_is_a_timeout() -> None:
    clock = Clock()
    made = connect(clock, 10.0)
    outcome = send(made)
    made.dataReceived(RESPONSE[:-1])
    clock.advance(6)
    made.check_timeout(5)
    assert not outcome
    clock.advance(6)
    made.check_timeout(5)
    assert isinstance(outcome[0], RequestFailed)
    assert outcome[0].kind == "timeout"


@ensure_deferred
async def test_wait_for_this_client_is_not_part_of_the_first_byte(reactor: EPollReactor) -> None:
    asked, may_answer, has_answered = Deferred[None](), Event(), Event()

    def answer(listener: socket) -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1000)
            reactor.callFromThread(asked.callback, None)
            may_answer.wait(60)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab")
            has_answered.set()

    with create_server(("127.0.0.1", 0)) as listener:
        Thread(target=answer, args=(listener,), daemon=True).start()
        clock: Any = reactor
        made = ClientConnection(clock, reactor.seconds, lambda _: None, None, secure=False)
        await connectProtocol(HostnameEndpoint(reactor, "127.0.0.1", listener.getsockname()[1]), made)
        response = made.send_request(REQUEST, Receiver())
        await asked
        may_answer.set()
        has_answered.wait(60)
        time.sleep(BUSY_SECONDS)  # noqa: ASYNC251 - the reactor must not turn: the client is busy with others
        await response
        made.close()
    assert made.own_wait_seconds > BUSY_SECONDS / 2
    assert made.first_byte_at is not None
    assert made.first_byte_at < reactor.seconds() - BUSY_SECONDS / 2


@pytest.mark.parametrize("pieces", [[1000], [1, 999], [400, 300, 300]])
@ensure_deferred
async def test_response_is_over_when_its_bytes_are_due_at_the_rate(
    reactor: EPollReactor, pieces: list[int]
) -> None:
    clock: Any = Clock()
    made = ClientConnection(clock, reactor.seconds, lambda _: None, 500.0, secure=False)
    with create_server(("127.0.0.1", 0)) as listener:
        await connectProtocol(HostnameEndpoint(reactor, "127.0.0.1", listener.getsockname()[1]), made)
        client, _ = listener.accept()
        with client:
            response = made.send_request(REQUEST, Receiver())
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % sum(pieces)
            for piece in pieces:
                client.sendall(head + bytes(piece))
                head = b""
                while not clock.getDelayedCalls():
                    await deferLater(reactor, 0.001)
                assert not response.called, "its bytes are not due"
                (due,) = clock.getDelayedCalls()
                clock.advance(due.getTime() - clock.seconds())
            assert response.called
            assert (await response).status == 200
    assert clock.seconds() >= sum(pieces) / 500.0
    made.close()
