"""A connection of the load test."""

from __future__ import annotations

import time
from socket import create_server
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, connectProtocol
from twisted.internet.task import Clock, deferLater

from image_service.tools.loadtest.traffic.connection import ClientConnection
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from socket import socket

    from twisted.internet.epollreactor import EPollReactor

BUSY_SECONDS = 0.2


class Receiver:
    """Receives a response."""

    def receive_head(self, head: object) -> None:
        """Do nothing."""

    def receive_content(self, data: bytes) -> None:
        """Do nothing."""


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
        response = made.send_request(b"GET / HTTP/1.1\r\n\r\n", Receiver())
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
            response = made.send_request(b"GET / HTTP/1.1\r\n\r\n", Receiver())
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
