"""How connections close: not before the client has everything, and not later than necessary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.server.transport.deadline import GET_SECONDS, LINGER_SECONDS
from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request, split_answers
from tests.server.transport.image_handler import MIB
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER

if TYPE_CHECKING:
    from tests.server.transport.client import Client
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

LIMITS = LimitSettings()
KIB = 1024


async def read_to_the_end(server: Server, client: Client, bytes_per_second: int) -> bytes:
    """Read slowly until the server closes its side."""
    received = bytearray()
    while (data := client.receive_some(bytes_per_second)) != b"":
        received += data or b""
        await server.advance(1)
    return bytes(received)


@pytest.mark.parametrize("fields", [(), ("Connection: close",)])
@ensure_deferred
async def test_slow_reader_receives_what_the_kernel_still_buffers(
    server: Server, image: Image, fields: tuple[str, ...]
) -> None:
    """Minutes after the kernel accepted the last byte, and after the idle deadline."""
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image/0-700000", *fields))
    received = b""
    while not server.lines:  # nothing is left to hand over
        received += client.receive_some(50_000) or b""
        await turns(server.reactor, 1)
    assert server.lines[0]["ended"] == "complete"
    assert len(received) < 600_000
    received += await read_to_the_end(server, client, KIB // 2)
    assert server.clock.seconds() > LIMITS.idle_seconds + LIMITS.stall_seconds
    assert [answer.body for answer in split_answers(received)] == [image.content[:700_000]]
    if server.factory.connections:
        await server.wait_until_delivered(client)
        await server.advance(2 * LINGER_SECONDS)
    await server.wait_until_closed()


@ensure_deferred
async def test_half_closed_slow_reader_receives_what_the_kernel_buffers(plain: Server, image: Image) -> None:
    client = await plain.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image/0-1000000"))
    client.finish_sending()
    received = await read_to_the_end(plain, client, 5 * KIB)
    assert [answer.body for answer in split_answers(received)] == [image.content[:1_000_000]]


@ensure_deferred
async def test_close_does_not_reset_unread_responses(server: Server, image: Image) -> None:
    """The client's system buffers all of it, and may discard it on a reset."""
    client = await server.client()
    await client.send(request("/image/0-30000", "Connection: close"))
    await until(server.reactor, lambda: server.lines)
    await server.wait_until_delivered(client)
    await server.advance(LINGER_SECONDS)
    await server.wait_until_closed()
    assert client.error() == 0
    assert [answer.body for answer in await client.answers()] == [image.content[:30_000]]


@pytest.mark.parametrize("fields", [(), ("Connection: close",)])
@ensure_deferred
async def test_client_that_never_reads_the_end_is_aborted(server: Server, fields: tuple[str, ...]) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image/0-2000000", *fields))
    while not server.lines:
        client.receive_some(50_000)
        await turns(server.reactor, 1)
    if not fields:
        await server.advance(LIMITS.idle_seconds)
    await server.advance(LIMITS.stall_seconds - 1)
    assert server.factory.connections
    await server.advance_until_closed(LIMITS.stall_seconds)
    await client.read_until_abort()


@pytest.mark.parametrize("target", ["/image/0-9", "no target"])
@ensure_deferred
async def test_linger_ends_although_the_client_stays_open(server: Server, target: str) -> None:
    client = await server.client()
    await client.send(request(target, "Connection: close"))
    await client.answers()
    await server.wait_until_delivered(client)
    await server.advance(LINGER_SECONDS - 1)
    assert server.factory.connections
    await server.advance(1)
    await server.wait_until_closed()


@ensure_deferred
async def test_linger_ends_although_the_client_keeps_sending(server: Server) -> None:
    client = await server.client()
    await client.send(request("no target"))
    await client.answers()
    await server.wait_until_delivered(client)
    for _ in range(LINGER_SECONDS * 4):
        client.send_some(b"x")
        await turns(server.reactor)
        server.clock.advance(0.25)
    await server.wait_until_closed()


@ensure_deferred
async def test_linger_ends_when_the_client_closes(server: Server) -> None:
    client = await server.client()
    await client.send(request("/image/0-9", "Connection: close"))
    await client.answers()
    client.close()
    await server.wait_until_closed()
    assert server.clock.seconds() == 0


@ensure_deferred
async def test_linger_ends_when_the_client_closes_while_input_was_paused(
    server: Server, handler: ImageHandler
) -> None:
    """Input is resumed for the close, which is noticed, and no unread byte causes a reset."""
    client = await server.client()
    await client.send(request("/later/0-9", "Connection: close"))
    await turns(server.reactor)
    await client.send(bytes(500_000))
    await turns(server.reactor)
    handler.answer_next()
    assert [answer.status for answer in await client.answers()] == [200]
    assert client.error() == 0
    client.close()
    await server.wait_until_closed()
    assert server.clock.seconds() == 0


# The service going away.


@ensure_deferred
async def test_drain_without_connections_ends_at_once(server: Server) -> None:
    await server.factory.drain(5)


@ensure_deferred
async def test_drain_closes_idle_connections(server: Server) -> None:
    used, unused, within_a_head = [await server.client() for _ in range(3)]
    await used.ask("/image/0-9")
    await within_a_head.send(b"GET /im")
    await turns(server.reactor)
    draining = Deferred.fromCoroutine(server.factory.drain(5))
    for client in (used, unused, within_a_head):
        assert await client.read_until_close() == b""
        client.close()
    await draining
    assert server.clock.getDelayedCalls() == []


# UEFI sends HEAD and GET on one connection, and takes a closed one for a failed boot.


@ensure_deferred
async def test_get_after_a_head_is_answered_while_the_shutdown_is_announced(
    server: Server, image: Image
) -> None:
    client = await server.client()
    server.factory.announce_shutdown()
    for _ in range(2):
        assert not (await client.ask("/image", method="HEAD")).closes
    got = await client.ask("/image/0-99")
    assert (got.body, got.closes) == (image.content[:99], True)
    assert await client.read_until_close() == b""


@ensure_deferred
async def test_get_after_a_head_is_answered_although_the_drain_began_in_between(
    server: Server, image: Image
) -> None:
    client = await server.client()
    await client.ask("/part/0-99", "Range: bytes=0-98", method="HEAD")
    draining = Deferred.fromCoroutine(server.factory.drain(60))
    await server.advance(GET_SECONDS - 1)
    got = await client.ask("/image/0-99")
    assert (got.body, got.closes) == (image.content[:99], True)
    client.close()
    await draining


@ensure_deferred
async def test_get_after_a_head_is_answered_although_the_drain_began_before(
    server: Server, handler: ImageHandler, image: Image
) -> None:
    client = await server.client()
    await client.send(request("/later/0-99", method="HEAD"))
    await until(server.reactor, lambda: handler.waiting)
    draining = Deferred.fromCoroutine(server.factory.drain(60))
    handler.answer_next()
    assert not (await client.answer("HEAD")).closes
    got = await client.ask("/image/0-99")
    assert (got.body, got.closes) == (image.content[:99], True)
    client.close()
    await draining


@ensure_deferred
async def test_drain_waits_some_seconds_for_the_get(server: Server) -> None:
    client = await server.client()
    await client.ask("/image", method="HEAD")
    draining = Deferred.fromCoroutine(server.factory.drain(60))
    await server.advance(GET_SECONDS - 1)
    assert await client.is_silent()
    await server.advance(1)
    assert await client.read_until_close() == b""
    client.close()
    await draining


@ensure_deferred
async def test_drain_closes_a_connection_whose_get_after_a_head_was_answered(server: Server) -> None:
    client = await server.client()
    await client.ask("/image", method="HEAD")
    await client.ask("/image/0-9")
    draining = Deferred.fromCoroutine(server.factory.drain(60))
    assert await client.read_until_close() == b""
    client.close()
    await draining


@ensure_deferred
async def test_drain_does_not_wait_for_handshakes(tls: Server) -> None:
    client = tls.connect()
    await tls.connection_of(client)
    await tls.factory.drain(5)
    assert await client.read_until_abort() == b""


@ensure_deferred
async def test_drain_lets_responses_finish(server: Server, handler: ImageHandler, image: Image) -> None:
    reading, waiting = [await server.client(receive_buffer=65536) for _ in range(2)]
    await reading.send(request("/image") * 2)
    await waiting.send(request("/later/0-99") * 2)
    await until(server.reactor, lambda: handler.waiting)
    draining = Deferred.fromCoroutine(server.factory.drain(5))
    handler.answer_next()
    for client, content in ((reading, image.content), (waiting, image.content[:99])):
        answers = await client.answers()
        assert [answer.body for answer in answers] == [content]
        client.close()
    await draining


@ensure_deferred
async def test_drain_aborts_responses_after_its_timeout(server: Server, handler: ImageHandler) -> None:
    reading, waiting = [await server.client(receive_buffer=SMALL_BUFFER) for _ in range(2)]
    await reading.send(request("/image"))
    await waiting.send(request("/later/0-99"))
    await reading.receive(10 * KIB)
    await until(server.reactor, lambda: handler.waiting)
    draining = Deferred.fromCoroutine(server.factory.drain(5))
    await server.advance(4)
    assert not draining.called
    await server.advance(1)
    await draining
    for client in (reading, waiting):
        assert len(await client.read_until_abort()) < MIB
    assert {line["ended"] for line in server.lines} == {"the service is shutting down"}
    handler.answer_next()  # too late for anybody
