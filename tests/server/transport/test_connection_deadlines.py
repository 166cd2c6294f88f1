"""The deadlines of a connection: real sockets, and a clock that the test advances."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.reactor_turns import turns
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from tests.server.transport.client import Client
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

LIMITS = LimitSettings(handshake_seconds=15, head_seconds=5, idle_seconds=60, stall_seconds=120)
KIB = 1024


def test_default_limits_are_the_documented_ones() -> None:
    assert LimitSettings() == LIMITS


# The TLS handshake.


@pytest.mark.parametrize("data", [b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"])
@ensure_deferred
async def test_handshake_has_a_deadline(tls: Server, data: bytes) -> None:
    client = tls.connect()
    await tls.connection_of(client)
    await client.send(data)
    await tls.advance(LIMITS.handshake_seconds - 1)
    assert await client.is_silent()
    await tls.advance(1)
    assert await client.read_until_abort() == b""


@ensure_deferred
async def test_byte_by_byte_handshake_does_not_extend_the_deadline(tls: Server) -> None:
    client = tls.connect()
    await tls.connection_of(client)
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(100)
    for at in range(int(LIMITS.handshake_seconds)):
        assert client.send_some(hello[at : at + 1])
        await tls.advance(1)
    assert await client.read_until_abort() == b""


# The request head.


@ensure_deferred
async def test_silent_client_is_closed_5_s_after_the_accept(server: Server) -> None:
    client = await server.client()
    await server.advance(LIMITS.head_seconds - 1)
    assert await client.is_silent()
    await server.advance(1)
    assert await client.read_until_close() == b""


@pytest.mark.parametrize("first", [True, False])
@ensure_deferred
async def test_byte_by_byte_head_does_not_extend_the_deadline(server: Server, first: bool) -> None:  # noqa: FBT001 - a parameter
    client = await server.client()
    if not first:
        await client.ask("/image/0-9")
        await server.advance(LIMITS.idle_seconds - 1)  # nor is the time between requests the head's
    head = request("/image/0-9")
    for at in range(int(LIMITS.head_seconds)):
        assert client.send_some(head[at : at + 1]) == 1
        await turns(server.reactor)
        assert await client.is_silent()
        await server.advance(1)
    (answer,) = await client.answers()
    assert (answer.status, answer.closes) == (408, True)


@ensure_deferred
async def test_head_just_before_the_deadline_is_answered(server: Server) -> None:
    client = await server.client()
    for _ in range(3):
        await client.send_in_pieces([b"GET /image/0-9 HTTP/1.1\r\n"])
        await server.advance(LIMITS.head_seconds - 1)
        await client.send(b"Host: x\r\n\r\n")
        assert (await client.answer()).status == 200


@ensure_deferred
async def test_deadline_of_a_pipelined_head_starts_when_it_is_awaited(
    server: Server, handler: ImageHandler
) -> None:
    client = await server.client()
    await client.send(request("/later/0-9") + b"GET /image/0-9 HT")
    await server.advance(100)
    handler.answer_next()
    assert (await client.answer()).status == 200
    await server.advance(LIMITS.head_seconds - 1)
    assert await client.is_silent()
    await server.advance(1)
    assert [answer.status for answer in await client.answers()] == [408]


# Between requests, and waiting for the handler.


@ensure_deferred
async def test_idle_connection_is_closed(server: Server) -> None:
    client = await server.client()
    for _ in range(3):
        await client.ask("/image/0-9")
        await server.advance(LIMITS.idle_seconds - 1)
        assert await client.is_silent()
    await server.advance(1)
    assert await client.read_until_close() == b""


@ensure_deferred
async def test_empty_lines_do_not_extend_the_idle_deadline(plain: Server) -> None:
    client = await plain.client()
    await client.ask("/image/0-9")
    for _ in range(int(LIMITS.idle_seconds)):
        await client.send(b"\r\n")
        await plain.advance(1)
    assert await client.read_until_close() == b""


@ensure_deferred
async def test_request_handler_has_no_deadline_of_the_connection(
    server: Server, handler: ImageHandler
) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await server.advance(1000)
    handler.answer_next()
    assert (await client.answer()).status == 200


# Clients that do not read, or not much.


@ensure_deferred
async def test_reader_that_stops_is_aborted(server: Server, image: Image) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await client.receive(100_000)
    await server.advance(LIMITS.stall_seconds - 1)
    assert server.lines == []
    await server.advance_until_closed(LIMITS.stall_seconds)
    assert len(await client.read_until_abort()) < len(image.content)
    (line,) = server.lines
    assert line["ended"] == "no progress for 120 s"
    assert line["bytes"] < len(image.content)


@ensure_deferred
async def test_stalled_reader_is_aborted_while_its_input_is_paused(
    plain: Server, handler: ImageHandler
) -> None:
    """More is pipelined than the connection buffers, so a disconnect is not noticed by reading."""
    client = await plain.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await client.send_until_blocked(request("/image") * 1_000_000)
    await plain.advance_until_closed(LIMITS.stall_seconds)
    assert handler.targets == ["/image"]


@pytest.mark.parametrize("receive_buffer", [SMALL_BUFFER, None])
@ensure_deferred
async def test_reader_at_10_kib_per_second_is_not_aborted(
    server: Server, image: Image, receive_buffer: int | None
) -> None:
    client = await server.client(receive_buffer=receive_buffer)
    await client.send(request("/image"))
    received = await _read_slowly(server, client, seconds=500)
    received += await client.receive(len(image.content) - len(received) + received.index(b"\r\n\r\n") + 4)
    assert received.endswith(image.content)


async def _read_slowly(server: Server, client: Client, *, seconds: int) -> bytes:
    received = bytearray()
    for _ in range(seconds):
        received += client.receive_some(10 * KIB) or b""
        await server.advance(1)
    return bytes(received)
