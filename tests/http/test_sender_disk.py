"""Disks that are slow, fail, or hold less than they did."""

from __future__ import annotations

import errno
import os
import random
import threading
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.python.threadpool import ThreadPool

from image_service.http.page_cache import PageCache
from image_service.images.extents import BaseFile, ExtentMap, FileExtent
from tests.http.client import request
from tests.http.image import FILE_BYTES, MIB, Image, ImageApplication, make_image
from tests.http.serving import SMALL_BUFFER
from tests.http.slow_disk import SlowDisk
from tests.http.turns import until
from tests.pytwisted import async_fixture, ensure_deferred

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.http.conftest import Serve
    from tests.http.serving import Server


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    """An image whose file the test may damage."""
    made = make_image(tmp_path)
    yield made
    os.close(made.file.descriptor)


def cold_file(path: Path, content: bytes) -> BaseFile:
    """A file that is on the disk and nowhere else, if the file system knows such a thing."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    return BaseFile(descriptor, len(content), str(path))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Image]:
    content = random.Random(5).randbytes(3 * MIB)  # noqa: S311 - any bytes will do
    other, file = cold_file(tmp_path / "other", content), cold_file(tmp_path / "cold", content)
    if _is_in_memory(other):  # to ask makes the kernel read ahead, so another one is asked
        pytest.skip("this file system keeps everything in memory")
    yield Image(ExtentMap((FileExtent(file, 0, file.size),)), content, file)
    os.close(other.descriptor)
    os.close(file.descriptor)


def _is_in_memory(file: BaseFile) -> bool:
    """Also where the file system cannot tell, as an old tmpfs."""
    try:
        return os.preadv(file.descriptor, [bytearray(1)], 0, os.RWF_NOWAIT) > 0
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP


@async_fixture
async def pool() -> AsyncIterator[ThreadPool]:
    pool = ThreadPool(0, 1, "disk")
    pool.start()
    yield pool
    pool.stop()


# Files that hold less than they did.


@ensure_deferred
async def test_a_file_that_shrinks_cuts_the_answer(server: Server, image: Image) -> None:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await client.receive(10_000)
    os.truncate(image.file.path, FILE_BYTES - 1)
    assert len(await client.until_cut()) < len(image.content)
    (line,) = server.lines
    assert line["ended"] == "the file is shorter than it was"
    assert server.counted.aborts == ["file-shorter"]
    assert line["bytes"] < len(image.content)


@pytest.mark.parametrize("size", [0, 4_000_000, 4_000_999])
@pytest.mark.parametrize("target", ["/image/4000000-4001000", "/image/4000000-4100000"])
@ensure_deferred
async def test_a_file_that_has_shrunk_never_makes_an_answer_that_looks_complete(
    server: Server, image: Image, size: int, target: str
) -> None:
    client = await server.client()
    os.truncate(image.file.path, size)
    await client.send(request(target) * 2)
    _, _, body = (await client.until_cut()).partition(b"\r\n\r\n")
    assert len(body) < 1000
    assert [line["ended"] for line in server.lines] == ["the file is shorter than it was"]


# Disks that fail.


@pytest.mark.parametrize("size", [1000, 1_000_000])
@ensure_deferred
async def test_a_disk_that_fails_cuts_the_answer(
    server: Server, application: ImageApplication, tmp_path: Path, size: int
) -> None:
    """What can be had without a broken disk: a descriptor of which every read fails."""
    directory = BaseFile(os.open(tmp_path, os.O_RDONLY), size, str(tmp_path))
    application.image = Image(ExtentMap((FileExtent(directory, 0, size),)), b"", directory)
    client = await server.client()
    await client.send(request("/image") * 2)
    _, _, body = (await client.until_cut()).partition(b"\r\n\r\n")
    assert body == b""
    (line,) = server.lines
    assert line["ended"].startswith("the disk failed: ")
    os.close(directory.descriptor)


@ensure_deferred
async def test_a_disk_that_fails_late_cuts_the_answer_too(serve_both: Serve, reactor: EPollReactor) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    disk.loads.pop().done.errback(OSError(errno.EIO, os.strerror(errno.EIO)))
    await client.until_cut()
    (line,) = server.lines
    assert line["ended"] == "the disk failed: [Errno 5] Input/output error"


# Disks that are slow.


@pytest.mark.parametrize("target", ["/image", "/image/0-1000", "/image/90-130"])
@ensure_deferred
async def test_a_slow_disk_keeps_nobody_else_waiting(
    serve_both: Serve, reactor: EPollReactor, image: Image, target: str
) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    waiting, other = await server.client(), await server.client()
    await waiting.send(request(target, "Connection: close"))
    answers = Deferred.fromCoroutine(waiting.answers())
    await until(reactor, lambda: disk.loads)
    while not answers.called:
        assert (await other.ask("/live")).status == 200
        if disk.loads:
            (load,) = disk.loads  # one at a time, and none too large
            assert load.length <= MIB
            disk.answer()
    (received,) = await answers
    assert received.body == image.content[slice(*_part(target))]


def _part(target: str) -> tuple[int | None, int | None]:
    start, dash, stop = target.removeprefix("/image").strip("/").partition("-")
    return (int(start), int(stop)) if dash else (None, None)


@ensure_deferred
async def test_a_cold_file_is_never_waited_for_by_the_reactor(
    serve_both: Serve, application: ImageApplication, cold: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is asked not to wait, or it is asked in another thread."""
    reads: list[tuple[bool, int]] = []
    here, preadv = threading.get_ident(), os.preadv

    def spy(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        reads.append((threading.get_ident() == here, flags))
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", spy)
    monkeypatch.delattr(os, "pread")  # it knows no flags
    application.image = cold
    server = await serve_both()
    client = await server.client()
    assert (await client.ask("/image")).body == cold.content
    assert (True, os.RWF_NOWAIT) in reads
    assert (True, 0) not in reads


# The page cache by itself.


@ensure_deferred
async def test_what_is_cold_is_not_read_until_it_is_loaded(
    reactor: EPollReactor, cold: Image, pool: ThreadPool
) -> None:
    cache = PageCache(reactor, pool)
    file = cold.file
    assert cache.read(file, MIB, 10) is None
    await cache.load(file, MIB, MIB)
    assert cache.holds(file, MIB, MIB)
    assert cache.read(file, MIB + 5, 1000) == cold.content[MIB + 5 : MIB + 1005]


def test_what_is_held_in_part_is_not_held(reactor: EPollReactor, cold: Image) -> None:
    descriptor = cold.file.descriptor
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # no reading ahead
    os.pread(descriptor, 1, 0)
    cache = PageCache(reactor, ThreadPool(0, 1))
    assert cache.holds(cold.file, 0, 1)
    assert not cache.holds(cold.file, 0, MIB)


def test_behind_the_end_of_a_file_there_is_nothing_to_wait_for(reactor: EPollReactor, image: Image) -> None:
    cache = PageCache(reactor, ThreadPool(0, 1))
    assert cache.holds(image.file, FILE_BYTES, 1000)
    assert cache.read(image.file, FILE_BYTES, 1000) == b""
    assert cache.read(image.file, FILE_BYTES - 3, 1000) == image.content[-3:]


def test_a_file_system_that_cannot_tell_is_read_at_once(reactor: EPollReactor) -> None:
    """As procfs, which does not know RWF_NOWAIT."""
    path = "/proc/self/maps"
    descriptor = os.open(path, os.O_RDONLY)
    with pytest.raises(OSError, match="not supported"):
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    cache = PageCache(reactor, ThreadPool(0, 1))
    file = BaseFile(descriptor, 0, path)
    assert cache.holds(file, 0, 10)
    assert cache.read(file, 0, 10) == os.pread(descriptor, 10, 0)
    os.close(descriptor)


@ensure_deferred
async def test_a_load_that_fails_says_so(reactor: EPollReactor, tmp_path: Path, pool: ThreadPool) -> None:
    directory = BaseFile(os.open(tmp_path, os.O_RDONLY), 10, str(tmp_path))
    with pytest.raises(OSError, match="Is a directory"):
        await PageCache(reactor, pool).load(directory, 0, 10)
    os.close(directory.descriptor)
