from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.http.page_cache import READ_AHEAD_BYTES, PageCache
from image_service.images.extents import BaseFile
from tests.images.building import base_file
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

SIZE = 16 * 2**20
PAGE = mmap.PAGESIZE
CONTENT = b"".join(b"%015d\n" % number for number in range(SIZE // 16))


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
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        _skip_without_nowait(descriptor)
        yield BaseFile(descriptor, SIZE, str(path))
    finally:
        os.close(descriptor)


def _skip_without_nowait(descriptor: int) -> None:
    """Asked behind the end of the file, so that nothing is brought in."""
    try:
        os.preadv(descriptor, [bytearray(1)], SIZE, os.RWF_NOWAIT)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this file system cannot tell what the page cache holds (EOPNOTSUPP)")


@pytest.mark.parametrize("offset", [0, 1, PAGE, SIZE // 2, SIZE - PAGE])
def test_a_cold_part_is_told_cold(page_cache: PageCache, file: BaseFile, offset: int) -> None:
    assert not page_cache.holds(file, offset, PAGE)


@pytest.mark.parametrize("offset", [0, 1, PAGE, SIZE // 2, SIZE - PAGE])
def test_a_cold_part_is_not_waited_for(page_cache: PageCache, file: BaseFile, offset: int) -> None:
    assert page_cache.read(file, offset, PAGE) is None


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (100, PAGE), (SIZE // 2 - 7, 2**20), (SIZE - 3, 3)])
@ensure_deferred
async def test_what_was_loaded_is_held(
    page_cache: PageCache, file: BaseFile, offset: int, length: int
) -> None:
    assert not page_cache.holds(file, offset, length)
    await page_cache.load(file, offset, length)
    assert page_cache.holds(file, offset, length)
    assert page_cache.read(file, offset, length) == CONTENT[offset : offset + length]


@ensure_deferred
async def test_both_ends_must_be_held(page_cache: PageCache, file: BaseFile) -> None:
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)  # nothing but what is read comes in
    assert os.pread(file.descriptor, 1, 0)
    assert page_cache.holds(file, 0, PAGE)
    assert not page_cache.holds(file, 0, PAGE + 1)
    assert not page_cache.holds(file, 0, SIZE)
    assert os.pread(file.descriptor, 1, SIZE - 1)
    assert page_cache.holds(file, 0, SIZE), "what is between comes and goes with its ends"


def test_what_is_partly_held_is_read_in_part(page_cache: PageCache, file: BaseFile) -> None:
    os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    assert os.pread(file.descriptor, 1, 0)
    found = page_cache.read(file, 5, SIZE - 5)
    assert found
    assert len(found) < SIZE - 5
    assert CONTENT.startswith(found, 5)


@ensure_deferred
async def test_loading_lets_the_kernel_begin_with_what_follows(
    reactor: EPollReactor, page_cache: PageCache, file: BaseFile
) -> None:
    assert resident(file) == 0
    await page_cache.load(file, 0, PAGE)
    while resident(file) * PAGE < READ_AHEAD_BYTES // 2:  # far more than it begins with by itself
        await deferLater(reactor, 0.001)
    assert READ_AHEAD_BYTES == 8 * 2**20


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
async def test_behind_the_end_there_is_nothing_to_wait_for(
    page_cache: PageCache, file: BaseFile, offset: int
) -> None:
    assert page_cache.holds(file, offset, PAGE)
    assert page_cache.read(file, offset, PAGE) == b""
    await page_cache.load(file, offset, PAGE)


@ensure_deferred
async def test_a_file_that_has_shrunk_is_read_short(page_cache: PageCache, file: BaseFile) -> None:
    os.truncate(file.path, 100)
    await page_cache.load(file, 0, 3 * 2**20)
    assert page_cache.holds(file, 0, 3 * 2**20)
    assert page_cache.read(file, 90, 1000) == CONTENT[90:100]


@ensure_deferred
async def test_the_reactor_does_not_wait_for_the_disk(
    reactor: EPollReactor, pool: ThreadPool, page_cache: PageCache, file: BaseFile
) -> None:
    """While every thread of the pool is taken, loading waits and the reactor does not."""
    release = threading.Event()
    taken = [deferToThreadPool(reactor, pool, release.wait) for _ in range(2)]
    loading = page_cache.load(file, 0, PAGE)
    assert not page_cache.holds(file, SIZE // 2, PAGE)
    assert not loading.called
    release.set()
    await loading
    for deferred in taken:
        await deferred


# A file system that cannot tell (tmpfs; here memory itself) is taken at its word: everything is held.


@ensure_deferred
async def test_where_the_kernel_cannot_tell_everything_is_read_at_once(page_cache: PageCache) -> None:
    with base_file(CONTENT[:100_000]) as file:
        with pytest.raises(OSError, match="not supported"):
            os.preadv(file.descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
        assert page_cache.holds(file, 0, 100_000)
        assert page_cache.read(file, 5, 50_000) == CONTENT[5:50_005]
        assert page_cache.read(file, 99_990, 50_000) == CONTENT[99_990:100_000]
        assert page_cache.read(file, 100_000, 1) == b""
        await page_cache.load(file, 0, 100_000)


@ensure_deferred
async def test_a_fault_is_told_where_the_bytes_are_wanted(page_cache: PageCache, tmp_path: Path) -> None:
    """A directory stands for a broken disk: reading it fails, and fails again."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    broken = BaseFile(descriptor, 100, "broken")
    try:
        assert page_cache.holds(broken, 0, 100), "nothing to wait for: the error comes at once"
        with pytest.raises(IsADirectoryError):
            page_cache.read(broken, 0, 100)
        with pytest.raises(IsADirectoryError):
            await page_cache.load(broken, 0, 100)
    finally:
        os.close(descriptor)
