"""Clients that disconnect in every state of a connection.

Whatever they were waiting for, nothing is left: no connection, timer or descriptor (``serving`` counts them
when the test ends), no producer, no failure in the log, and each request has had its one line there.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.server.transport.deadline import LINGER_SECONDS
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER
from tests.server.transport.slow_disk import SlowDisk

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor

    from tests.conftest import LoggedFailures
    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

GONE = "the client is gone"


def close(client: Client) -> None:
    client.close()


def reset(client: Client) -> None:
    client.reset()


ways = pytest.mark.parametrize("leave", [close, reset])


@ways
@ensure_deferred
async def test_disconnect_before_the_accept(server: Server, leave: Callable[[Client], None]) -> None:
    for _ in range(5):
        leave(server.connect())
    await turns(server.reactor)
    await server.wait_until_closed()


@ways
@ensure_deferred
async def test_disconnect_before_the_first_byte(server: Server, leave: Callable[[Client], None]) -> None:
    client = server.connect()
    await server.connection_of(client)
    leave(client)
    await server.wait_until_closed()
    assert server.lines == []


@ways
@ensure_deferred
async def test_disconnect_within_the_handshake(tls: Server, leave: Callable[[Client], None]) -> None:
    client = tls.connect()
    await tls.connection_of(client)
    await client.send(bytes.fromhex("16030100f8010000f40303"))
    await turns(tls.reactor)
    leave(client)
    await tls.wait_until_closed()


@ensure_deferred
async def test_failed_handshake_closes_the_connection(tls: Server) -> None:
    client = tls.connect()
    await client.send(request("/image"))  # by who thinks that this is not TLS
    await tls.wait_until_closed()


@ways
@ensure_deferred
async def test_disconnect_within_a_head(server: Server, leave: Callable[[Client], None]) -> None:
    client = await server.client()
    await client.send(b"GET /im")
    await turns(server.reactor)
    leave(client)
    await server.wait_until_closed()
    assert server.lines == []


@ways
@ensure_deferred
async def test_disconnect_between_requests(server: Server, leave: Callable[[Client], None]) -> None:
    client = await server.client()
    await client.ask("/image/0-9")
    leave(client)
    await server.wait_until_closed()
    assert [line["ended"] for line in server.lines] == ["complete"]


@pytest.mark.parametrize("fails", [False, True])
@ensure_deferred
async def test_disconnect_while_the_request_is_handled(
    serve_both: Serve,
    reactor: EPollReactor,
    handler: ImageHandler,
    logged_failures: LoggedFailures,
    fails: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    client.reset()
    await server.wait_until_closed()
    assert [(line["status"], line["ended"]) for line in server.lines] == [(0, GONE)]
    if fails:
        deferred, _ = handler.waiting[0]
        deferred.errback(ValueError("nobody is to see this as an answer"))
        assert len(logged_failures.flush(ValueError)) == 1
    else:
        handler.answer_next()
    assert len(server.lines) == 1
    assert disk.asked == 0


@ensure_deferred
async def test_disconnect_while_the_request_is_handled_and_input_is_paused(
    server: Server, handler: ImageHandler
) -> None:
    """So much is pipelined that input is paused: the disconnect is noticed when the response is sent."""
    client = await server.client()
    await client.send(request("/later/0-99999"))
    await until(server.reactor, lambda: handler.waiting)
    await client.send_until_blocked(request("/later/0-99999") * 1_000_000)
    client.reset()
    await turns(server.reactor)
    while handler.waiting:
        handler.answer_next()
        await turns(server.reactor)
    await server.wait_until_closed()
    assert server.lines[-1]["ended"] == GONE


@ways
@ensure_deferred
async def test_disconnect_while_waiting_for_the_disk(
    serve_both: Serve, reactor: EPollReactor, leave: Callable[[Client], None]
) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    await turns(reactor)
    leave(client)
    if leave is reset or server.factory.secure:
        await server.wait_until_closed()
    asked = disk.asked
    disk.answer()
    await server.wait_until_closed()
    assert [line["ended"] for line in server.lines] == [GONE]
    if leave is reset:
        assert disk.asked == asked


@ensure_deferred
async def test_disconnect_while_waiting_for_a_disk_that_then_fails(
    serve_both: Serve, reactor: EPollReactor
) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    client.reset()
    await server.wait_until_closed()
    disk.loads.pop().done.errback(OSError("late"))
    assert [line["ended"] for line in server.lines] == [GONE]


@ways
@ensure_deferred
async def test_disconnect_within_a_response(
    server: Server, image: Image, leave: Callable[[Client], None]
) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image") * 3)
    await client.receive(100_000)
    leave(client)
    await server.wait_until_closed()
    (line,) = server.lines
    assert line["ended"] == GONE
    assert 0 < line["bytes"] < len(image.content)


@ensure_deferred
async def test_disconnect_within_a_response_after_half_close(plain: Server) -> None:
    client = await plain.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    client.finish_sending()
    await client.receive(100_000)
    client.reset()
    await plain.wait_until_closed()
    assert [line["ended"] for line in plain.lines] == [GONE]


@ways
@ensure_deferred
async def test_disconnect_while_closing(server: Server, leave: Callable[[Client], None]) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image/0-30000", "Connection: close"))
    await until(server.reactor, lambda: server.lines)
    leave(client)
    await server.wait_until_closed()
    assert [line["ended"] for line in server.lines] == ["complete"]


@ways
@ensure_deferred
async def test_disconnect_after_the_close(server: Server, leave: Callable[[Client], None]) -> None:
    client = await server.client()
    await client.send(request("/image/0-9", "Connection: close"))
    await client.answers()
    await server.wait_until_delivered(client)
    await server.advance(LINGER_SECONDS)
    await server.wait_until_closed()
    leave(client)


@ensure_deferred
async def test_client_that_closes_tls_within_a_response_is_gone(tls: Server) -> None:
    """The client sends its closing alert and still reads; TLS discards whatever is written after it."""
    client = await tls.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image") * 50)
    await client.receive(100_000)
    below = socket.socket(fileno=os.dup(client.socket.fileno()))
    _say_goodbye(client)
    received = 0
    reading = True
    while reading:
        try:
            data = below.recv(MIB)
        except BlockingIOError:
            await turns(tls.reactor, 1)
        except ConnectionResetError:
            reading = False
        else:
            received += len(data)
            reading = bool(data)
    below.close()
    await tls.wait_until_closed()
    (line,) = tls.lines
    assert line["ended"] == GONE
    assert line["bytes"] < received + 2 * MIB


@ensure_deferred
async def test_client_that_closes_tls_behind_its_request_is_answered(tls: Server, image: Image) -> None:
    """Like ``openssl s_client`` at the end of its input."""
    client = await tls.client()
    await client.send(request("/image/0-100000"))
    _say_goodbye(client)
    received = await client.read_until_close()
    assert received.endswith(b"\r\n\r\n" + image.content[:100_000])


def _say_goodbye(client: Client) -> None:
    with pytest.raises((BlockingIOError, OSError)):
        client.socket.unwrap()  # type: ignore[attr-defined] # sends the closing alert, then wants an answer


@ensure_deferred
async def test_failing_request_handler_aborts_its_connection_only(
    server: Server, handler: ImageHandler, logged_failures: LoggedFailures
) -> None:
    unlucky, other = await server.client(), await server.client()
    await unlucky.send(request("/later/0-9"))
    asking = Deferred.fromCoroutine(other.ask("/later/0-9"))
    await until(server.reactor, lambda: len(handler.waiting) == 2)
    deferred, _ = handler.waiting.pop(0)
    deferred.errback(ValueError("it promised never to"))
    assert await unlucky.read_until_abort() == b""
    handler.answer_next()
    assert (await asking).status == 200
    assert len(logged_failures.flush(ValueError)) == 1
