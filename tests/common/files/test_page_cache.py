from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from array import array
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import CancelledError, Deferred
from twisted.python.threadpool import ThreadPool

from image_service.common.files.cachestat import is_cached
from image_service.common.files.local_file import LocalFile
from image_service.common.files.page_cache import PROBE_BYTES, READ_BYTES, PageCache
from image_service.common.files.residency_cache import REGION_BYTES
from tests.core.images.building import base_file
from tests.pytwisted import ensure_deferred
from tests.server.transport.reactor_turns import turns, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.base_file import BaseFile

SIZE = 16 * 2**20
PAGE = mmap.PAGESIZE
CONTENT = array("Q", range(SIZE // 8)).tobytes()


@pytest.fixture
def pool() -> Iterator[ThreadPool]:
    threads = ThreadPool(0, 2, "disk")
    threads.start()
    yield threads
    threads.stop()


@pytest.fixture
def page_cache(reactor: EPollReactor, pool: ThreadPool) -> PageCache:
    return PageCache(reactor, pool)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[BaseFile]:
    """A file on the disk of which the kernel holds nothing, until the first look at it."""
    path = tmp_path / "base.iso"
    path.write_bytes(CONTENT)
    opened = LocalFile.open(path)
    try:
        _skip_without_nowait(opened.descriptor)
        _evict(opened)
        yield opened
    finally:
        opened.close()


@pytest.fixture
def cachestat(file: BaseFile) -> None:
    """Only where the kernel has it."""
    if is_cached(file.descriptor, 0, 1) is None:
        pytest.skip("this kernel has no cachestat(2)")


def holds(page_cache: PageCache, file: BaseFile, offset: int, length: int) -> bool:
    """Return True if all of it is resident."""
    return page_cache.resident_bytes(file, offset, length) == length


def _evict(file: BaseFile) -> None:
    """Empty the page cache of the file; the kernel may refuse for pages that are in use."""
    for _ in range(100):
        os.fsync(file.descriptor)
        os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if resident(file) == 0:
            return
    pytest.skip("the kernel does not evict the file")


def _skip_without_nowait(descriptor: int) -> None:
    """Asked behind the end of the file, so that nothing is brought in."""
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system does not support RWF_NOWAIT")


@pytest.mark.usefixtures("cachestat")
@pytest.mark.parametrize("offset", [0, 1, PAGE, SIZE // 2, SIZE - PAGE])
def test_absent_part_is_not_resident(page_cache: PageCache, file: BaseFile, offset: int) -> None:
    assert not holds(page_cache, file, offset, PAGE)


def test_read_of_an_absent_part_does_not_wait(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the kernel starts to read, and may be done before it returns."""
    monkeypatch.setattr(os, "preadv", busy)
    assert read(page_cache, file, 0, PAGE) is None


def read(page_cache: PageCache, file: BaseFile, offset: int, length: int) -> bytes | None:
    buffer = bytearray(length)
    count = page_cache.read_into(memoryview(buffer), file, offset)
    return None if count is None else bytes(buffer[:count])


def busy(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
    """What the kernel says of what it would have to wait for."""
    del descriptor, buffers, offset
    assert flags & os.RWF_NOWAIT
    raise BlockingIOError


@pytest.mark.usefixtures("cachestat")
@pytest.mark.parametrize(("offset", "length"), [(0, 1), (100, PAGE), (SIZE // 2 - 7, 2**20), (SIZE - 3, 3)])
@ensure_deferred
async def test_prefetched_part_is_resident(
    page_cache: PageCache, file: BaseFile, offset: int, length: int
) -> None:
    assert not holds(page_cache, file, offset, length)
    await page_cache.prefetch(file, offset, length)
    assert holds(page_cache, file, offset, length)
    assert read(page_cache, file, offset, length) == CONTENT[offset : offset + length]


@pytest.mark.usefixtures("cachestat")
def test_part_with_absent_pages_between_is_not_resident(page_cache: PageCache, file: BaseFile) -> None:
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing but what is read comes in
    assert os.pread(file.descriptor, 1, 0)
    assert holds(page_cache, file, 0, PAGE)
    assert not holds(page_cache, file, 0, PAGE + 1)
    assert os.pread(file.descriptor, 1, SIZE - 1)
    assert not holds(page_cache, file, 0, SIZE)
    # Again, because the kernel may reclaim pages at any moment, and does so early on some machines.
    assert any(os.pread(file.descriptor, SIZE, 0) and holds(page_cache, file, 0, SIZE) for _ in range(100))


@pytest.mark.usefixtures("cachestat")
def test_part_with_one_absent_page_is_not_resident(page_cache: PageCache, file: BaseFile) -> None:
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for offset in (0, PAGE, 3 * PAGE, 4 * PAGE):
        assert os.pread(file.descriptor, 1, offset)
    assert holds(page_cache, file, PAGE + 1, PAGE - 1)
    assert holds(page_cache, file, 3 * PAGE, 2 * PAGE)
    assert not holds(page_cache, file, PAGE, 2 * PAGE + 1)


@pytest.mark.parametrize("length", [1, PAGE, 300_000])
def test_older_kernel_is_probed_every_so_many_bytes(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """There is no other way there, and to ask for every page would cost more than to send them."""
    asked: list[int] = []

    def held(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        del descriptor, buffers
        assert flags == os.RWF_NOWAIT
        asked.append(offset)
        return 1

    monkeypatch.setattr("image_service.common.files.page_cache.is_cached", lambda *_: None)
    monkeypatch.setattr(os, "preadv", held)
    assert holds(page_cache, file, 5, length)
    assert asked[-1] == 4 + length
    assert all(later - earlier <= PROBE_BYTES for earlier, later in pairwise([5, *asked]))
    assert len(asked) <= length // PROBE_BYTES + 2


def test_part_that_is_still_being_read_is_not_resident(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.pread(file.descriptor, SIZE, 0)
    monkeypatch.setattr(os, "preadv", busy)
    assert not holds(page_cache, file, 0, PAGE)


@pytest.mark.usefixtures("cachestat")
def test_region_that_is_read_repeatedly_is_probed_once(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.pread(file.descriptor, SIZE, 0)
    asked: list[int] = []
    preadv = os.preadv

    def probe(descriptor: int, buffers: list[bytearray], offset: int, flags: int) -> int:
        asked.append(offset)
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", probe)
    assert holds(page_cache, file, 0, PAGE)
    assert asked == [PAGE - 1]
    assert holds(page_cache, file, PAGE, PAGE)
    looks = sorted(asked[1:])
    assert looks[-1] == REGION_BYTES - 1
    assert all(later - earlier <= READ_BYTES for earlier, later in pairwise([0, *looks]))
    for offset in range(0, REGION_BYTES, PAGE):
        assert holds(page_cache, file, offset, PAGE)
    assert len(asked) == 1 + len(looks)


@pytest.mark.usefixtures("cachestat")
def test_check_of_residency_reads_nothing(page_cache: PageCache, file: BaseFile) -> None:
    """The kernel would begin to read, and the reactor might have to wait for its turn at the disk."""
    assert not holds(page_cache, file, 0, SIZE)
    assert resident(file) == 0


def test_partly_resident_part_is_read_in_part(page_cache: PageCache, file: BaseFile) -> None:
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    for _ in range(10):  # on a busy machine the kernel has once held all of it again
        _evict(file)
        assert os.pread(file.descriptor, 1, 0)
        found = read(page_cache, file, 5, SIZE - 5)
        assert found
        assert CONTENT.startswith(found, 5)
        if len(found) < SIZE - 5:
            return
    pytest.fail("a part that is not resident was read to its end")


@ensure_deferred
async def test_prefetch_requests_read_ahead(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *arguments: advice.append(arguments))
    await page_cache.prefetch(file, 0, PAGE)
    assert advice == [(file.descriptor, 0, 8 * 2**20, os.POSIX_FADV_WILLNEED)]


def resident(file: BaseFile) -> int:
    """Pages of the file that the kernel holds, counted without a look that would bring any in."""
    libc = ctypes.CDLL(None, use_errno=True)
    with mmap.mmap(file.descriptor, SIZE, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        held = (ctypes.c_ubyte * (SIZE // PAGE))()
        status = libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(SIZE), held)
        del first  # else the map could not be closed
        assert status == 0, os.strerror(ctypes.get_errno())
    return sum(page & 1 for page in held)


@pytest.mark.parametrize("offset", [SIZE, SIZE + 1, SIZE + 10 * PAGE])
@ensure_deferred
async def test_read_behind_the_end_is_empty(page_cache: PageCache, file: BaseFile, offset: int) -> None:
    await page_cache.prefetch(file, offset, PAGE)
    assert read(page_cache, file, offset, PAGE) == b""


@ensure_deferred
async def test_truncated_file_is_read_short(page_cache: PageCache, file: BaseFile) -> None:
    os.truncate(file.path, 100)
    await page_cache.prefetch(file, 0, 3 * 2**20)
    assert read(page_cache, file, 90, 1000) == CONTENT[90:100]


# File systems without RWF_NOWAIT: never resident, except those in memory.


@ensure_deferred
async def test_file_system_without_nowait_is_never_resident(
    page_cache: PageCache, file: BaseFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As FUSE and NFS, which do not know RWF_NOWAIT."""
    preadv = os.preadv

    def refuse(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags & os.RWF_NOWAIT:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", refuse)
    await page_cache.prefetch(file, 0, SIZE)
    assert resident(file) == SIZE // PAGE
    assert not holds(page_cache, file, 0, PAGE)
    assert read(page_cache, file, 0, PAGE) is None


def test_file_in_memory_is_always_resident(page_cache: PageCache) -> None:
    with base_file(CONTENT[:100_000]) as file:
        os.truncate(file.descriptor, 200_000)  # a hole, of which the page cache has nothing
        with pytest.raises(OSError, match="not supported"):
            os.preadv(file.descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        assert holds(page_cache, file, 0, 200_000)
        assert read(page_cache, file, 5, 50_000) == CONTENT[5:50_005]
        assert read(page_cache, file, 99_990, 50_000) == CONTENT[99_990:100_000] + bytes(49_990)
        assert read(page_cache, file, 200_000, 1) == b""


@ensure_deferred
async def test_disk_error_fails_the_prefetch(page_cache: PageCache, tmp_path: Path) -> None:
    """A directory stands for a broken disk: reading it fails, and fails again."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    broken = LocalFile(descriptor, 100, "broken")
    try:
        with pytest.raises(IsADirectoryError):
            await page_cache.prefetch(broken, 0, 100)
    finally:
        os.close(descriptor)


# Order of reads.


class Reads:
    """Reads in the pool, each of which waits until the test lets it go on."""

    def __init__(self, file: BaseFile, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[int] = []
        self.go_on = threading.Semaphore(0)
        self._descriptor = file.descriptor
        monkeypatch.setattr("image_service.common.files.page_cache._read_through", self._wait)

    def _wait(self, file: BaseFile, offset: int, length: int) -> None:
        del length
        if file.descriptor == self._descriptor:
            self.started.append(offset)
            self.go_on.acquire()


@pytest.fixture
def reads(file: BaseFile, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(file, monkeypatch)


def asked(page_cache: PageCache, file: BaseFile, count: int) -> list[Deferred[None]]:
    """So many reads that are waited for, of bytes 0, 1 and so on."""
    return [Deferred.fromCoroutine(page_cache.prefetch(file, offset, 1)) for offset in range(count)]


@ensure_deferred
async def test_reads_queue_in_order_of_arrival(
    reactor: EPollReactor, page_cache: PageCache, file: BaseFile, reads: Reads
) -> None:
    waiting = asked(page_cache, file, 4)
    for number, deferred in enumerate(waiting):
        await until(reactor, lambda: reads.started[-1:] == [number])  # noqa: B023 - called before the next one
        reads.go_on.release()
        await deferred
    assert reads.started == [0, 1, 2, 3]


@ensure_deferred
async def test_hanging_file_system_does_not_stop_others(
    reactor: EPollReactor, page_cache: PageCache, file: BaseFile, reads: Reads
) -> None:
    waiting = asked(page_cache, file, 10)
    await until(reactor, lambda: reads.started)
    with base_file(b"elsewhere") as other:
        await page_cache.prefetch(other, 0, 9)
    assert reads.started == [0]
    assert not any(deferred.called for deferred in waiting)
    for deferred in waiting:
        reads.go_on.release()
        await deferred


@ensure_deferred
async def test_canceled_prefetch_is_not_read(
    reactor: EPollReactor, page_cache: PageCache, file: BaseFile, reads: Reads
) -> None:
    first, dropped, last = asked(page_cache, file, 3)
    await until(reactor, lambda: reads.started)
    dropped.addErrback(lambda failure: failure.trap(CancelledError))
    dropped.cancel()
    for deferred in (first, last):
        reads.go_on.release()
        await deferred
    assert reads.started == [0, 2]


@ensure_deferred
async def test_canceled_hanging_read_keeps_its_thread(
    reactor: EPollReactor, page_cache: PageCache, file: BaseFile, reads: Reads
) -> None:
    """Otherwise each canceled read would take one more thread."""
    hanging, following = asked(page_cache, file, 2)
    await until(reactor, lambda: reads.started)
    hanging.addErrback(lambda failure: failure.trap(CancelledError))
    hanging.cancel()
    await turns(reactor)
    assert reads.started == [0]
    for _ in range(2):
        reads.go_on.release()
    await following


@ensure_deferred
async def test_failed_thread_start_releases_its_slot(
    page_cache: PageCache, file: BaseFile, pool: ThreadPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a container has too few processes."""

    def no_thread(*_args: object, **_options: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "threadFactory", no_thread)
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await page_cache.prefetch(file, 0, PAGE)
    await page_cache.prefetch(file, 0, PAGE)
