"""Senders of a file in the block cache: every byte is the origin's, from the reactor and from threads."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from twisted.internet.threads import deferToThread

from image_service.common.files.block_cache.block_cache import BlockCache
from image_service.core.extents import ExtentMap, FileExtent
from tests.common.files.block_cache.caches import MIB, SMALLEST
from tests.common.files.block_cache.origin import Origin, content, identity_of
from tests.pytwisted import async_fixture, ensure_deferred
from tests.server.transport.image_handler import Image

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport.image_handler import ImageHandler
    from tests.server.transport.server import Server

SIZE = 60 * MIB + 321


@async_fixture
async def cache(reactor: EPollReactor, tmp_path: Path, handler: ImageHandler) -> AsyncIterator[BlockCache]:
    """A cache; the handler serves a file in it."""
    cache = BlockCache(tmp_path / "cache", SMALLEST, reactor)
    cache.start()
    file = cache.open(identity_of(SIZE), Origin())
    handler.image = Image(ExtentMap((FileExtent(file, 0, SIZE),)), b"", file)
    yield cache
    cache.end_senders()
    file.close()
    await deferToThread(cache.close)


@pytest.mark.usefixtures("cache")
@ensure_deferred
async def test_ranges_are_those_of_the_origin(server: Server) -> None:
    client = await server.client()
    numbers = random.Random(5)  # noqa: S311 - any will do
    for _ in range(30):
        start = numbers.randrange(SIZE)
        length = min(SIZE - start, numbers.choice([1, 5000, 70_000, 3 * MIB]))
        assert (await client.ask(f"/image/{start}-{start + length}")).body == content(start, length)


@ensure_deferred
async def test_whole_file_is_that_of_the_origin(server: Server, cache: BlockCache) -> None:
    client = await server.client()
    for _ in range(2):  # absent, then present
        assert (await client.ask("/image")).body == content(0, SIZE)
    assert cache.counters.evicted_granules == 0
    assert cache.counters.fetched_bytes == SIZE
