"""FAT12, FAT16 and FAT32 with long names, read-only: the file systems of EFI system partitions.

boot sector   bytes of a sector: 11 (2); sectors of a cluster: 13 (1); sectors before the first table:
              14 (2); number of tables: 16 (1); entries of the root directory, none in FAT32: 17 (2);
              sectors: 19 (2), or 32 (4); medium: 21 (1); sectors of a table: 22 (2), or 36 (4) in FAT32;
              first cluster of FAT32's root: 44 (4); serial number and label: 39 (4) and 43 (11), in FAT32
              67 and 71; 55 AA: 510 (2)
table         an entry of 12, 16 or 32 bits (28 are used) for each cluster: the next one of the file, or
              from ``..F8`` on, the end; the first cluster has number 2
directory     entries of 32 bytes: name (8 and 3), attributes (1), case of the name (1), upper half of the
              first cluster: 20 (2), lower half: 26 (2), size: 28 (4). 0xE5: deleted; 0: the end
long name     entries before it, the last part first: order (1), 5 characters in UTF-16, attributes
              0x0F (1), 0, checksum of the short name (1), 6 characters, 0 (2), 2 characters
"""

from __future__ import annotations

import stat
import struct
from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, MAX_READ, CaseInsensitiveEntries
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.reading import ReadAt

_BOOT_SECTOR_BYTES = 512
_BOOT_SECTOR = struct.Struct("<11xHBHBHHBH8xII4xI")
_OTHER_FILE_SYSTEMS = (b"NTFS    ", b"EXFAT   ", b"-FVE-FS-")
_SECTOR_SIZES = {512, 1024, 2048, 4096}
_CLUSTER_SECTORS = {1 << power for power in range(8)}
_MEDIA = {0xF0, *range(0xF8, 0x100)}
_MAX_TABLES = 4
_MAX_FAT12, _MAX_FAT16 = 4084, 65524  # clusters
_FIRST_CLUSTER = 2
_ENTRY = struct.Struct("<11sBB7xH4xHI")
_DELETED, _LONG_NAME, _VOLUME, _DIRECTORY, _READ_ONLY = 0xE5, 0x0F, 0x08, 0x10, 0x01
_LAST_PART, _PART_NUMBERS = 0x40, 0x1F
_LOWER_STEM, _LOWER_EXTENSION = 0x08, 0x10
_NO_LABEL = "NO NAME"


@attrs.frozen(eq=False)
class Fat:
    """A FAT file system.

    Args:
        bits: 12, 16 or 32.
        label: "" if it has none.
        uuid: the serial number as Linux names it: ``1234-ABCD``.
        root: the root directory; names on a path are found in any case.
    """

    bits: int
    label: str
    uuid: str
    root: FatNode


def is_fat(sector: bytes) -> bool:
    """Return True if the first sector of a volume is that of a FAT file system."""
    if len(sector) < _BOOT_SECTOR_BYTES or sector[510:512] != b"\x55\xaa":
        return False
    size, cluster, reserved, tables, _, _, medium, *_ = _BOOT_SECTOR.unpack_from(sector)
    return (
        size in _SECTOR_SIZES
        and cluster in _CLUSTER_SECTORS
        and reserved > 0
        and 0 < tables <= _MAX_TABLES
        and medium in _MEDIA
        and not any(sector.startswith(name, 3) for name in _OTHER_FILE_SYSTEMS)
    )


def read_fat(read_at: ReadAt, size: int) -> Fat:
    """Return the file system in `size` bytes; FormatError if it is damaged."""
    sector = read_exactly(read_at, 0, _BOOT_SECTOR_BYTES)
    if not is_fat(sector):
        raise FormatError("not a FAT file system: its boot sector has other fields")
    (
        sector_size, cluster_sectors, reserved, tables, root_entries, sectors, _, table_sectors,
        many_sectors, long_table_sectors, root_cluster,
    ) = _BOOT_SECTOR.unpack_from(sector)  # fmt: skip
    sectors, is_fat32 = sectors or many_sectors, table_sectors == 0
    table_bytes = (table_sectors or long_table_sectors) * sector_size
    first_table = reserved * sector_size
    root_start = first_table + tables * table_bytes
    data_start = root_start + -(-root_entries * _ENTRY.size // sector_size) * sector_size
    cluster_size = cluster_sectors * sector_size
    clusters = (sectors * sector_size - data_start) // cluster_size
    bits = 32 if is_fat32 else 12 if clusters <= _MAX_FAT12 else 16
    if sectors * sector_size > size or clusters <= 0 or (clusters + _FIRST_CLUSTER) * bits > table_bytes * 8:
        raise FormatError(
            f"the FAT file system is damaged or incomplete: {sectors} sectors of {sector_size} bytes and"
            f" tables of {table_bytes} bytes in {size} bytes"
        )
    volume = _FatVolume(read_at, bits, clusters, cluster_size, first_table, data_start)
    if is_fat32:
        root = FatNode(volume, stat.S_IFDIR | 0o755, 0, root_cluster)
    else:
        root = FatNode(volume, stat.S_IFDIR | 0o755, root_entries * _ENTRY.size, 0, root_start)
    at = 67 if is_fat32 else 39
    serial = sector[at : at + 4][::-1].hex().upper()
    label = root.find_label() or sector[at + 4 : at + 15].decode("ascii", "replace").rstrip(" \0")
    return Fat(bits, "" if label == _NO_LABEL else label, f"{serial[:4]}-{serial[4:]}", root)


@attrs.frozen(eq=False)
class FatNode:
    """A file or a directory; see `TreeNode`. FAT has no symlinks."""

    _volume: _FatVolume
    mode: int
    size: int  # of a directory: 0, except for the root of FAT12 and FAT16
    _cluster: int
    _start: int | None = None  # offset of that root

    def read(self) -> bytes:
        """Return the content, at most `MAX_READ` bytes."""
        if self.size > MAX_READ:
            raise FormatError(f"a file has {self.size} bytes, more than {MAX_READ} at once")
        return self.read_part(0, self.size)

    def read_part(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the content at `offset`; FormatError where there are fewer."""
        if not stat.S_ISREG(self.mode) or offset + length > self.size:
            raise FormatError(f"a file of {self.size} bytes has no {length} bytes at offset {offset}")
        size, content = self._volume.cluster_size, bytearray()
        first = offset // size
        for index, block in enumerate(self._volume.read_chain(self._cluster, first)):
            content += block[offset % size if index == 0 else 0 :]
            if len(content) >= length:
                return bytes(content[:length])
        if length:
            raise FormatError(f"a file of {self.size} bytes is damaged: its clusters end before")
        return b""

    def entries(self) -> Mapping[str, Callable[[], FatNode]]:
        """Return a directory's entries: by name in any case, a function that reads the node."""
        if not stat.S_ISDIR(self.mode):
            raise FormatError("a file of the FAT file system is used as a directory")
        found: dict[str, Callable[[], FatNode]] = {}
        for name, attributes, cluster, size in _parse_directory(self._read_listing()):
            if attributes & _VOLUME or name in {".", ".."}:
                continue
            kind = stat.S_IFDIR if attributes & _DIRECTORY else stat.S_IFREG
            mode = kind | (0o555 if attributes & _READ_ONLY else 0o755)
            found[name] = partial(FatNode, self._volume, mode, size, cluster)
        return CaseInsensitiveEntries(found)

    def find_label(self) -> str:
        """Return the label that a root directory has; "" if it has none."""
        labels = (
            name for name, attributes, _, _ in _parse_directory(self._read_listing()) if attributes & _VOLUME
        )
        return next(labels, "")

    def _read_listing(self) -> bytes:
        if self._start is not None:
            return read_exactly(self._volume.read_at, self._start, self.size)
        listing = bytearray()
        for block in self._volume.read_chain(self._cluster, 0):
            listing += block
            if len(listing) > MAX_DIRECTORY:
                raise FormatError(f"a directory of the FAT file system has more than {MAX_DIRECTORY} bytes")
        return bytes(listing)


@attrs.frozen(eq=False)
class _FatVolume:
    """The parts of the file system; offsets count from its start."""

    read_at: ReadAt
    bits: int
    clusters: int
    cluster_size: int
    table: int
    data: int

    def read_chain(self, cluster: int, skipped: int) -> Iterator[bytes]:
        """Yield the clusters of a file from its first one on, less those `skipped`; none for cluster 0."""
        end = (1 << min(self.bits, 28)) - 8
        count = 0
        while cluster and cluster < end:
            if not _FIRST_CLUSTER <= cluster < self.clusters + _FIRST_CLUSTER or count > self.clusters:
                raise FormatError(
                    f"the FAT file system is damaged: a file goes to cluster {cluster} of {self.clusters}"
                )
            if count >= skipped:
                position = self.data + (cluster - _FIRST_CLUSTER) * self.cluster_size
                yield read_exactly(self.read_at, position, self.cluster_size)
            count += 1
            cluster = self._next(cluster)

    def _next(self, cluster: int) -> int:
        position, rest = divmod(cluster * self.bits, 8)
        entry = read_exactly(self.read_at, self.table + position, -(-self.bits // 8))
        return int.from_bytes(entry, "little") >> rest & (1 << min(self.bits, 28)) - 1


def _parse_directory(listing: bytes) -> Iterator[tuple[str, int, int, int]]:
    """Yield the entries: name, attributes, first cluster, and size in bytes."""
    parts: dict[int, bytes] = {}  # of a long name, by their order
    checksum = -1
    for position in range(0, len(listing) - _ENTRY.size + 1, _ENTRY.size):
        entry = listing[position : position + _ENTRY.size]
        short, attributes, case, upper, lower, size = _ENTRY.unpack(entry)
        if entry[0] == 0:
            return
        if entry[0] == _DELETED:
            parts = {}
        elif attributes & 0x3F == _LONG_NAME:
            if entry[0] & _LAST_PART or entry[13] != checksum:
                parts, checksum = {}, entry[13]
            parts[entry[0] & _PART_NUMBERS] = entry[1:11] + entry[14:26] + entry[28:32]
        else:
            is_whole = sorted(parts) == [*range(1, len(parts) + 1)] and checksum == _checksum(short)
            if parts and is_whole:
                characters = b"".join(parts[number] for number in sorted(parts))
                name = characters.decode("utf-16-le", "replace").partition("\0")[0]
            else:
                name = _short_name(short, case, is_volume=bool(attributes & _VOLUME))
            yield name, attributes, upper << 16 | lower, size
            parts = {}


def _short_name(short: bytes, case: int, *, is_volume: bool) -> str:
    text = (b"\xe5" + short[1:] if short.startswith(b"\x05") else short).decode("cp437")
    if is_volume:
        return text.rstrip()
    stem, extension = text[:8].rstrip(), text[8:].rstrip()
    if case & _LOWER_STEM:
        stem = stem.lower()
    if case & _LOWER_EXTENSION:
        extension = extension.lower()
    return f"{stem}.{extension}" if extension else stem


def _checksum(short: bytes) -> int:
    total = 0
    for byte in short:
        total = ((total & 1) << 7 | total >> 1) + byte & 0xFF
    return total
