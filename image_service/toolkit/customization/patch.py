"""The difference between a disk and an edited copy of one of its partitions."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.data_ranges import data_ranges
from image_service.core.errors import UnsafeImage
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.toolkit.customization.boot_partition import list_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from image_service.core.formats.disk.model import VirtualDisk
    from image_service.core.formats.disk.partitions import Partition
    from image_service.core.formats.reading import ReadAt

_CHUNK = 1024 * 1024
_BLOCK = 4096


@attrs.frozen
class Change:
    """A run of bytes of a disk that becomes another of the same length."""

    offset: int
    before: bytes = attrs.field(repr=False)
    after: bytes = attrs.field(repr=False)


@attrs.frozen
class Patch:
    """The changes of a disk, ascending, none touching another."""

    changes: tuple[Change, ...]

    @property
    def size(self) -> int:
        """Return the bytes that change."""
        return sum(len(change.after) for change in self.changes)

    def sha256(self) -> str:
        """Return the digest of the new bytes, in order."""
        return hashlib.sha256(b"".join(change.after for change in self.changes)).hexdigest()

    def reversed(self) -> Patch:
        """Return the patch that undoes this one."""
        return Patch(tuple(Change(change.offset, change.after, change.before) for change in self.changes))

    def find_missing(self, read_at: ReadAt) -> list[Change]:
        """Return the changes that a disk does not have, or has in part."""
        return [
            change for change in self.changes if read_at(change.offset, len(change.after)) != change.after
        ]

    def check_fits(self, read_at: ReadAt) -> None:
        """Raise UnsafeImage unless each sector of a disk is as before or as after the patch."""
        for change in self.changes:
            found = read_at(change.offset, len(change.before))
            for start in range(0, len(change.before), SECTOR_BYTES):
                sector = slice(start, start + SECTOR_BYTES)
                if found[sector] not in {change.before[sector], change.after[sector]}:
                    raise UnsafeImage(
                        f"the sector at offset {change.offset + start} is neither as before nor as after the"
                        " customization: it belongs to another disk, or somebody has written to this one"
                    )


def compare_with_copy(disk: VirtualDisk, partition: Partition, copy: Path, block_bytes: int) -> Patch:
    """Return the patch that makes a partition equal to its edited copy, in whole blocks."""
    with copy.open("rb") as file:
        changes: list[Change] = []
        data = [*list_data(disk, partition), *data_ranges(file.fileno())]
        for start, length in _chunks(data, partition.length):
            before = disk.read_at(partition.offset + start, length)
            after = os.pread(file.fileno(), length, start)
            changes += _compare(partition.offset + start, before, after, block_bytes)
    return Patch(tuple(_join(changes)))


def compare_files(before: int, after: int, pace: Callable[[int], None]) -> Patch:
    """Return the patch that makes an open file equal to the beginning of another, which is not shorter.

    Args:
        pace: such as `Workspace.pace`.
    """
    changes: list[Change] = []
    data = [*data_ranges(before), *data_ranges(after)]
    for start, length in _chunks(data, os.fstat(before).st_size):
        pace(length)
        was, now = (os.pread(descriptor, length, start) for descriptor in (before, after))
        changes += _compare(start, was, now, _BLOCK)
    return Patch(tuple(_join(changes)))


def _chunks(data: Iterable[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield offset and length of the chunks with data, ascending, up to a size."""
    chunks = {
        chunk for start, length in data for chunk in range(start // _CHUNK, -(-(start + length) // _CHUNK))
    }
    for chunk in sorted(chunks):
        start = chunk * _CHUNK
        if start < size:
            yield start, min(_CHUNK, size - start)


def _compare(offset: int, before: bytes, after: bytes, block_bytes: int) -> Iterator[Change]:
    if before == after:
        return
    for start in range(0, len(before), block_bytes):
        block = slice(start, start + block_bytes)
        if before[block] != after[block]:
            yield Change(offset + start, before[block], after[block])


def _join(changes: list[Change]) -> Iterator[Change]:
    """Yield changes of which no two touch."""
    pending: list[Change] = []
    for change in changes:
        if pending and pending[-1].offset + len(pending[-1].after) != change.offset:
            yield _merge(pending)
            pending = []
        pending.append(change)
    if pending:
        yield _merge(pending)


def _merge(changes: list[Change]) -> Change:
    before, after = (b"".join(parts) for parts in zip(*((c.before, c.after) for c in changes), strict=True))
    return Change(changes[0].offset, before, after)
