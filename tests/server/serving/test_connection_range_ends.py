"""However the answer to a further range ends, it is counted once, under its own numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.images.reference import Reader
from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.serving.asking import TARGET
from tests.server.serving.test_connection_ranges import Asked, content
from tests.server.snapshots.doubles import REF
from tests.server.snapshots.doubles import world as make_world
from tests.server.transport.client import request
from tests.server.transport.reactor_turns import turns
from tests.server.transport.server import SMALL_BUFFER, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.snapshots.mounts import Mount
    from tests.server.transport.client import Client
    from tests.server.transport.server import Server

COUNT = 40
STALL_SECONDS = 8
READ_BEFORE = 4
"""Ranges that are read, each after a pause, before the end."""


@pytest.fixture
def asked() -> Iterator[Asked]:
    with make_world() as world:
        yield Asked(world)


def mount_of(asked: Asked) -> Mount:
    mount = asked.world.images.mounts.cache.peek(Reader("127.0.0.1", None, REF).key)
    assert mount is not None
    return mount


def numbers(index: int) -> tuple[int, int]:
    """A range of which each index has another length, and a few fill the kernel's buffers."""
    return index, index + 300_000 + 10 * index


def wanted(index: int) -> bytes:
    return request(TARGET, "Range: bytes={}-{}".format(*numbers(index)))


def sizes(count: int) -> list[int]:
    return [last + 1 - first for first, last in map(numbers, range(count))]


async def advance(server: Server, asked: Asked, seconds: int) -> None:
    """Let time pass for the server and for its images."""
    for _ in range(seconds):
        asked.world.clock.advance(1)
        await server.advance(1)


async def read(client: Client, image: bytes, indices: range) -> None:
    for index in indices:
        first, last = numbers(index)
        assert (await client.answer()).body == image[first : last + 1]


def check_balance(server: Server, asked: Asked, aborts: list[str]) -> None:
    recorded = server.recorded
    whole = len(recorded.requests) - len(aborts)
    assert whole >= READ_BEFORE
    assert recorded.aborts == aborts
    assert len(recorded.answers) == len(recorded.requests)
    assert {each[:3] for each in recorded.requests} == {("/byid/:token", "GET", 206)}
    assert [each[4] for each in recorded.requests][:whole] == sizes(whole)
    summaries = [line for line in server.lines if "ranges" in line]
    assert sum(line["ranges"] for line in summaries) == whole
    assert sum(line["bytes"] for line in summaries) == sum(sizes(whole))
    cut = [(line["range"], line["bytes"]) for line in server.lines if "range" in line]
    assert [each for each, _ in cut] == ["bytes={}-{}".format(*numbers(whole))] * len(aborts)
    assert [sent for _, sent in cut] == [each[4] for each in recorded.requests[whole:]]
    assert mount_of(asked).responses == 0


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("end", ["complete", "client-gone", "no-progress", "shutdown"])
@ensure_deferred
async def test_each_range_is_recorded_once_however_it_ends(
    reactor: EPollReactor, asked: Asked, end: str, *, secure: bool
) -> None:
    image = content(asked)
    async with serving(
        reactor, asked, secure=secure, limits=LimitSettings(stall_seconds=STALL_SECONDS)
    ) as server:
        client = await server.client(receive_buffer=SMALL_BUFFER)
        await client.send(wanted(0))
        await read(client, image, range(1))
        await client.send(b"".join(map(wanted, range(1, COUNT))))
        await turns(reactor)
        assert mount_of(asked).responses == 1
        for index in range(1, READ_BEFORE):
            await advance(server, asked, STALL_SECONDS // 4)
            await read(client, image, range(index, index + 1))
        assert len(asked.ranges) == 1, "the others are further ranges"
        if end == "complete":
            await read(client, image, range(READ_BEFORE, COUNT))
        if end == "no-progress":
            await server.advance_until_closed(2 * STALL_SECONDS)
        elif end == "shutdown":
            server.factory.abort()
        else:
            client.reset()
        await server.wait_until_closed()
        check_balance(server, asked, [] if end == "complete" else [end])
