"""How many bytes the kernel buffers for one connection on plain TCP."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import pytest

from image_service.server.transport.sending import sendfile_sender
from image_service.server.transport.sending.sendfile_sender import TURN_BYTES
from image_service.server.transport.sending.tcp import UNSENT_BYTES, bind, set_unsent_limit, unsent_bytes
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport.client import Client
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server


@async_fixture
async def server(reactor: EPollReactor, handler: ImageHandler) -> AsyncIterator[Server]:
    """On a listener like the service's."""
    async with serving(reactor, handler, listener=bind(0)) as running:
        yield running


async def limit_of(server: Server, client: Client) -> int:
    """Return the limit of unsent bytes."""
    handle: socket.socket = (await server.connection_of(client)).transport.getHandle()
    return handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)


async def unsent_to(server: Server, client: Client) -> int:
    """Return the bytes that the kernel buffers and has not sent."""
    handle: socket.socket = (await server.connection_of(client)).transport.getHandle()
    return unsent_bytes(handle)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes that each sendfile has sent."""
    counts: list[int] = []

    def send(out: int, descriptor: int, offset: int, count: int) -> int:
        counts.append(sendfile(out, descriptor, offset, count))
        return counts[-1]

    sendfile = os.sendfile
    monkeypatch.setattr(os, "sendfile", send)
    return counts


@ensure_deferred
async def test_kernel_buffers_little_for_a_client_that_does_not_read(server: Server, sent: list[int]) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await until(server.reactor, lambda: sent)
    await turns(server.reactor)
    assert await limit_of(server, client) == UNSENT_BYTES
    assert await unsent_to(server, client) < 2 * UNSENT_BYTES
    assert sum(sent) < 4 * UNSENT_BYTES


@ensure_deferred
async def test_window_is_large_for_a_fast_client_until_it_stops(
    server: Server, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    windows: list[int] = []

    def set_limit(handle: socket.socket, limit: int) -> None:
        windows.append(limit)
        set_unsent_limit(handle, limit)

    monkeypatch.setattr(sendfile_sender, "set_unsent_limit", set_limit)
    client = await server.client(receive_buffer=65536)
    await client.send(request("/image") * 4)
    await client.receive(8 * MIB)
    # Large while it is filled, small again before the client is waited for.
    await until(server.reactor, lambda: windows and windows[-1] == UNSENT_BYTES)
    assert windows == [TURN_BYTES, UNSENT_BYTES] * (len(windows) // 2)
    assert await limit_of(server, client) == UNSENT_BYTES
    assert sum(sent) < 8 * MIB + 2 * TURN_BYTES


@pytest.mark.parametrize("length", [9000, 40_000])
@ensure_deferred
async def test_bytes_that_the_socket_did_not_accept_follow(server: Server, image: Image, length: int) -> None:
    """Of copied responses and of those by sendfile, to a client that does not read at first."""
    starts = range(1000, MIB, length)
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(b"".join(request(f"/image/{start}-{start + length}") for start in starts))
    await turns(server.reactor)
    for start in starts:
        assert (await client.answer()).body == image.content[start : start + length]
