"""The files of one cached version: its bytes, sparse, and the map of which granules are present.

Granules are in `data`, at their own offsets. `map` has a header and, for each granule, a checksum and three
bytes; every process that uses the version has it mapped (MAP_SHARED). After a restart of the processes the
map is right, because a granule becomes present after its bytes were written. After a crash of the machine
the disk may have any mixture of old and new pages of both files: each granule is compared with its checksum
before it is used.

Locks (`ofd_locks`) on bytes of `map`, per granule: who fetches it (CLAIM), who changes it (WRITE), who keeps
it (HOLD, shared); and one for the version: who has it open (OPEN, shared).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import shutil
import struct
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from image_service.common.files.block_cache.source import GRANULE_BYTES
from image_service.common.files.modes import private_mode
from image_service.common.files.ofd_locks import EXCLUSIVE, SHARED, reopen, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterator

ABSENT, PRESENT, UNVERIFIED = 0, 1, 2
UNUSED, USED, AHEAD, EVICTED = 0, 1, 2, 3
"""Since the last sweep of eviction: not read, read, fetched ahead of a reader; or evicted and not back."""
CLAIM, WRITE, HOLD, OPEN = (region << 40 for region in (1, 2, 3, 4))
DATA, MAP = "data", "map"

_HEADER = struct.Struct("=16sQ36s")
_HEADER_BYTES = mmap.PAGESIZE
_MAGIC = b"image-service 01"
_BYTES_PER_GRANULE = 7
_PUNCH = 0x01 | 0x02  # linux/falloc.h: FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE


class VersionFiles:
    """The open files of a version, and its map.

    Raises:
        OSError: a file cannot be opened.
        ValueError: the files are not those of a version.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.map = os.open(directory / MAP, os.O_RDWR | os.O_CLOEXEC)
        try:
            self.data = os.open(directory / DATA, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            os.close(self.map)
            raise
        try:
            self.size = self._read_size()
            self.granules = -(-self.size // GRANULE_BYTES)
            self._mapped = mmap.mmap(self.map, _map_bytes(self.size))
        except BaseException:
            os.close(self.data)
            os.close(self.map)
            raise
        avoid_large_folios(self.data)
        view, count = memoryview(self._mapped), self.granules
        arrays = view[_HEADER_BYTES + 4 * count :]
        self._views = [view, arrays]
        self.checksums = view[_HEADER_BYTES : _HEADER_BYTES + 4 * count].cast("I")
        self.present, self.used, self.pinned = (
            arrays[index * count : (index + 1) * count] for index in range(3)
        )

    def _read_size(self) -> int:
        header = os.pread(self.map, _HEADER.size, 0)
        if len(header) < _HEADER.size:
            raise ValueError("the map has no header")
        magic, size, _ = _HEADER.unpack(header)
        is_whole = os.fstat(self.map).st_size == _map_bytes(size) and os.fstat(self.data).st_size == size
        if magic != _MAGIC or not is_whole:
            raise ValueError("the map is not that of the data")
        return int(size)

    def close(self) -> None:
        """Unmap the map and close the files, which releases the locks on `map`."""
        for view in (self.checksums, self.present, self.used, self.pinned, *reversed(self._views)):
            view.release()
        self._mapped.close()
        os.close(self.data)
        os.close(self.map)

    def begin(self, boot_id: str) -> None:
        """Trust the map if this boot of the machine wrote it. The caller excludes other processes."""
        magic, size, written = _HEADER.unpack(self._mapped[: _HEADER.size])
        current = boot_id.encode()
        if written != current:
            for granule in range(self.granules):
                if self.present[granule]:
                    self.present[granule] = UNVERIFIED
            self._mapped[: _HEADER.size] = _HEADER.pack(magic, size, current)

    def length_of(self, granule: int) -> int:
        """Return the bytes of a granule, fewer than `GRANULE_BYTES` for the last one."""
        return min(GRANULE_BYTES, self.size - granule * GRANULE_BYTES)

    def present_bytes(self) -> int:
        """Return the bytes of present granules."""
        count = bytes(self.present).count(PRESENT) * GRANULE_BYTES
        last = self.granules - 1
        return count - (GRANULE_BYTES - self.length_of(last) if self.present[last] == PRESENT else 0)

    def stray_bytes(self) -> int:
        """Return about how many bytes absent granules take on disk."""
        present = self.granules - bytes(self.present).count(ABSENT)
        return os.fstat(self.data).st_blocks * 512 - present * GRANULE_BYTES

    def lock(self, region: int, kind: int, first: int, count: int = 1) -> int | None:
        """Return a descriptor with a lock on granules until it is closed; None: another lock conflicts."""
        descriptor = reopen(self.map)
        if try_lock(descriptor, kind, region + first, count):
            return descriptor
        os.close(descriptor)
        return None

    def write(self, granule: int, content: memoryview, checksum: int, used: int) -> None:
        """Make a granule present. The caller has its WRITE lock.

        One pwrite per granule: the kernel keeps a larger write in pages that two granules share, and to punch
        one of these would overwrite, in place, bytes that sockets have yet to send.
        """
        offset, done = granule * GRANULE_BYTES, 0
        while done < len(content):
            done += os.pwrite(self.data, content[done:], offset + done)
        self.checksums[granule] = checksum
        self.used[granule] = used
        self.present[granule] = PRESENT

    def verify(self, granule: int) -> None:
        """Decide whether an unverified granule is present. The caller has its WRITE lock."""
        if self.present[granule] == UNVERIFIED:
            is_right = crc32(self.read(granule)) == self.checksums[granule]
            self.present[granule] = PRESENT if is_right else ABSENT

    def read(self, granule: int) -> bytes:
        """Return the content of a granule on disk."""
        return os.pread(self.data, self.length_of(granule), granule * GRANULE_BYTES)

    def punch(self, first: int, count: int) -> None:
        """Free the disk space of granules, which are absent and no sender is about to read."""
        _punch(self.data, first * GRANULE_BYTES, count * GRANULE_BYTES)

    def allocated_granules(self) -> Iterator[int]:
        """Find the granules that have disk space, present or not."""
        offset, latest = 0, -1
        with suppress(OSError):  # ENXIO: only a hole follows
            while offset < self.size:
                start = os.lseek(self.data, offset, os.SEEK_DATA)
                offset = os.lseek(self.data, start, os.SEEK_HOLE)
                for granule in range(max(latest + 1, start // GRANULE_BYTES), -(-offset // GRANULE_BYTES)):
                    yield granule
                    latest = granule

    def keep_open(self) -> None:
        """Tell other processes that the version is in use, until the files are closed."""
        try_lock(self.map, SHARED, OPEN)

    def is_unused(self) -> bool:
        """Return True if no process has the version open. The caller excludes those that would open it."""
        return try_lock(self.map, EXCLUSIVE, OPEN)


def create_version(directory: Path, size: int) -> None:
    """Make the files of a version, all absent; earlier files in the directory are removed.

    Raises:
        OSError: the file system cannot hold it, or has no holes.
    """
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(mode=private_mode(0o700))
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    data = os.open(directory / DATA, flags, private_mode(0o600))
    try:
        os.ftruncate(data, size)
        _punch(data, 0, GRANULE_BYTES)
    finally:
        os.close(data)
    unfinished = directory / f"{MAP}.new"
    descriptor = os.open(unfinished, flags, private_mode(0o600))
    try:
        os.pwrite(descriptor, _HEADER.pack(_MAGIC, size, b""), 0)
        os.posix_fallocate(descriptor, 0, _map_bytes(size))  # else a full disk kills those who have it mapped
    finally:
        os.close(descriptor)
    unfinished.rename(directory / MAP)


def avoid_large_folios(descriptor: int) -> None:
    """Turn the kernel's read-ahead off: it puts granules into common pages, too."""
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)


@cache
def read_boot_id() -> str:
    """Return the identifier of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def _map_bytes(size: int) -> int:
    return _HEADER_BYTES + _BYTES_PER_GRANULE * -(-size // GRANULE_BYTES)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _punch(descriptor: int, offset: int, length: int) -> None:
    if _libc().fallocate64(descriptor, _PUNCH, ctypes.c_int64(offset), ctypes.c_int64(length)):
        code = ctypes.get_errno()
        if code == errno.EINTR:
            _punch(descriptor, offset, length)
            return
        raise OSError(code, f"cannot punch a hole: {os.strerror(code)}")
