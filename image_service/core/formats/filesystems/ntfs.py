"""NTFS, read-only: the directories and files of a volume, each read on demand; see `ntfs_records`.

    boot sector   bytes of a sector: 11 (2); sectors of a cluster: 13 (1); sectors: 40 (8); first cluster of
                  the MFT: 48 (8); clusters of a record: 64 (1; if negative, a power of two in bytes)

A record that is full has a list of attributes (0x20) in other records. Compressed and encrypted files are not
read.
"""

from __future__ import annotations

import stat
import struct
from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.file_tree import MAX_READ, CaseInsensitiveEntries
from image_service.core.formats.filesystems.ntfs_records import (
    NtfsRecord,
    parse_attributes,
    parse_index,
    parse_list,
    parse_runs,
    restore_block,
)
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.reading import ReadAt

_BOOT_SECTOR = struct.Struct("<11xHB26xQQ8xb")
_MAGIC = b"NTFS    "
_MFT, _VOLUME, _ROOT = 0, 3, 5
_RECORD = struct.Struct("<4sHH12xHH")
_IN_USE, _IS_DIRECTORY = 1, 2
_SECTOR = 512
_MAX_SECTORS = 128  # of a cluster; above, a negative power of two
_LIST, _VOLUME_NAME, _DATA = 0x20, 0x60, 0x80
_INDEX_ROOT, _INDEX_BLOCKS, _BITMAP = 0x90, 0xA0, 0xB0
_MAX_LABEL = 256
_NOT_STORED_PLAIN = 0x40FF  # encrypted, or compressed
_MAX_DIRECTORY = 16 * 1024 * 1024  # bytes; a Windows\System32 has about one million
_MAX_RECORD = 64 * 1024
_MAX_ATTRIBUTES = 1024


@attrs.frozen(eq=False)
class Ntfs:
    """A volume: its label, "" if it has none, and its root; names are found in any case."""

    label: str
    root: NtfsNode


def read_ntfs(read_at: ReadAt, size: int) -> Ntfs:
    """Return the volume in `size` bytes; FormatError if it is damaged."""
    sector = read_exactly(read_at, 0, _SECTOR)
    sector_size, sectors, total, mft, record = _BOOT_SECTOR.unpack_from(sector)
    cluster = sector_size * (sectors if sectors <= _MAX_SECTORS else 1 << 256 - sectors)
    record_size = record * cluster if record > 0 else 1 << -record
    if (
        not sector.startswith(_MAGIC, 3)
        or sector_size not in {512, 1024, 2048, 4096}
        or not 0 < cluster <= 1 << 21
        or not _SECTOR <= record_size <= _MAX_RECORD
        or total * sector_size > size
    ):
        raise FormatError("the NTFS volume is damaged or incomplete: its boot sector has impossible sizes")
    volume = _NtfsVolume(read_at, cluster, record_size, total * sector_size)
    first = volume.parse_record(read_exactly(read_at, mft * cluster, record_size), _MFT)
    # The list of a fragmented MFT's attributes may name records that only its first runs contain.
    volume = attrs.evolve(volume, mft=volume.open_value(first, _DATA))
    volume = attrs.evolve(volume, mft=volume.open_value(volume.read_record(_MFT), _DATA))
    label = volume.open_value(volume.read_record(_VOLUME), _VOLUME_NAME)
    text = label.read(0, min(label.size, _MAX_LABEL)).decode("utf-16-le", "replace")
    return Ntfs(text, NtfsNode(volume, volume.read_record(_ROOT)))


@attrs.frozen(eq=False)
class NtfsNode:
    """A file or a directory; see `TreeNode`."""

    _volume: _NtfsVolume
    _record: NtfsRecord

    @property
    def mode(self) -> int:
        """Return the file's type; NTFS has no permissions of this kind."""
        return stat.S_IFDIR | 0o755 if self._record.flags & _IS_DIRECTORY else stat.S_IFREG | 0o644

    @property
    def size(self) -> int:
        """Return the bytes of the content."""
        return 0 if stat.S_ISDIR(self.mode) else self._volume.open_value(self._record, _DATA).size

    def read(self) -> bytes:
        """Return the content, at most `MAX_READ` bytes."""
        content = self._volume.open_value(self._record, _DATA)
        if content.size > MAX_READ:
            raise FormatError(f"a file has {content.size} bytes, more than {MAX_READ} at once")
        return content.read(0, content.size)

    def entries(self) -> Mapping[str, Callable[[], NtfsNode]]:
        """Return a directory's entries: by name in any case, a function that reads the node."""
        names = dict(self._volume.list_names(self._record))
        return CaseInsensitiveEntries(
            {name: partial(_open_node, self._volume, names[name]) for name in names}
        )


@attrs.frozen
class _NtfsValue:
    """The value of an attribute: bytes, or runs of clusters (the first, None: zeros; their number)."""

    volume: _NtfsVolume = attrs.field(repr=False)
    size: int
    resident: bytes | None
    runs: tuple[tuple[int | None, int], ...] = ()

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the value; FormatError where there are fewer."""
        if offset + length > self.size:
            raise FormatError(f"the NTFS volume is damaged: a value of {self.size} bytes ends too soon")
        if self.resident is not None:
            return self.resident[offset : offset + length]
        content, cluster, start = bytearray(), self.volume.cluster, 0
        for first, count in self.runs:
            stop = start + count * cluster
            low, high = max(start, offset), min(stop, offset + length)
            if low < high:
                content += (
                    bytes(high - low)
                    if first is None
                    else self.volume.read(first * cluster + low - start, high - low)
                )
            start = stop
        if len(content) != length:
            raise FormatError(f"the NTFS volume is damaged: runs of {self.size} bytes end too soon")
        return bytes(content)


@attrs.frozen(eq=False)
class _NtfsVolume:
    """Reads records and values."""

    read_at: ReadAt
    cluster: int  # bytes
    record_size: int
    size: int
    mft: _NtfsValue | None = None

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes of the volume."""
        if offset < 0 or offset + length > self.size:
            raise FormatError(f"the NTFS volume is damaged: it refers to {length} bytes at offset {offset}")
        return read_exactly(self.read_at, offset, length)

    def read_record(self, number: int) -> NtfsRecord:
        """Read a record, and those that its list of attributes names."""
        record = self._read_single(number)
        lists = [each for each in record.attributes if each.type == _LIST]
        if not lists:
            return record
        value = self.open_value(record, _LIST)
        others = set(parse_list(value.read(0, min(value.size, _MAX_RECORD)))) - {number}
        if len(others) > _MAX_ATTRIBUTES:
            raise FormatError(f"the NTFS volume is damaged: record {number} has {len(others)} others")
        further = tuple(each for other in sorted(others) for each in self._read_single(other).attributes)
        return attrs.evolve(record, attributes=(*record.attributes, *further))

    def _read_single(self, number: int) -> NtfsRecord:
        if self.mft is None:
            raise FormatError("the NTFS volume is damaged: it has no MFT")
        return self.parse_record(self.mft.read(number * self.record_size, self.record_size), number)

    def parse_record(self, stored: bytes, number: int) -> NtfsRecord:
        """Return a record without those that its list names."""
        block = restore_block(stored, b"FILE", f"record {number}")
        *_, first, flags = _RECORD.unpack_from(block)
        if not flags & _IN_USE:
            raise FormatError(f"the NTFS volume is damaged: record {number} is not in use")
        return NtfsRecord(number, flags, tuple(parse_attributes(block, first, number)))

    def open_value(self, record: NtfsRecord, kind: int) -> _NtfsValue:
        """Return the value of an attribute."""
        parts = sorted(
            (each for each in record.attributes if each.type == kind), key=lambda each: each.first_cluster
        )
        if not parts:
            raise FormatError(f"the NTFS volume has record {record.number} without attribute 0x{kind:x}")
        if parts[0].flags & _NOT_STORED_PLAIN:
            raise FormatError(f"record {record.number} is compressed or encrypted, which is not supported")
        if parts[0].is_resident:
            value = parts[0].resident_value()
            return _NtfsValue(self, len(value), value)
        runs: list[tuple[int | None, int]] = []
        for part in parts:
            if part.is_resident or part.first_cluster != sum(count for _, count in runs):
                raise FormatError(f"the NTFS volume is damaged: runs of record {record.number} are missing")
            runs += parse_runs(part.stored)
        size = int.from_bytes(parts[0].stored[48:56], "little")
        return _NtfsValue(self, size, None, tuple(runs))

    def list_names(self, record: NtfsRecord) -> Iterator[tuple[str, int]]:
        """Yield the names in a directory, less those of DOS, with the numbers of their records."""
        index = self.open_value(record, _INDEX_ROOT)
        root = index.read(0, min(index.size, _MAX_RECORD))
        yield from parse_index(root, 16)
        if not any(each.type == _INDEX_BLOCKS for each in record.attributes):
            return
        blocks, bitmap = self.open_value(record, _INDEX_BLOCKS), self.open_value(record, _BITMAP)
        size = int.from_bytes(root[8:12], "little")
        if blocks.size > _MAX_DIRECTORY or not _SECTOR <= size <= _MAX_RECORD:
            raise FormatError(f"a directory of NTFS has {blocks.size} bytes in blocks of {size}")
        used = int.from_bytes(bitmap.read(0, min(bitmap.size, _MAX_RECORD)), "little")
        for number in range(blocks.size // size):
            if used >> number & 1:
                yield from parse_index(
                    restore_block(blocks.read(number * size, size), b"INDX", "an index"), 24
                )


def _open_node(volume: _NtfsVolume, number: int) -> NtfsNode:
    return NtfsNode(volume, volume.read_record(number))
