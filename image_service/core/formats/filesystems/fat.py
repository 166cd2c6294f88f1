"""FAT12, FAT16 and FAT32 with long names: the file systems of EFI system partitions; `fat_edit` edits them.

boot sector   bytes of a sector: 11 (2); sectors of a cluster: 13 (1); sectors before the first table:
              14 (2); number of tables: 16 (1); entries of the root directory, none in FAT32: 17 (2);
              sectors: 19 (2), or 32 (4); medium: 21 (1); sectors of a table: 22 (2), or 36 (4) in FAT32;
              serial number and label: 39 (4) and 43 (11), in FAT32 67 and 71; 55 AA: 510 (2)
FAT32         flags: 40 (2), 0x80 and a table's number if it alone is used; first cluster of the root: 44 (4);
              sector with the number of free clusters: 48 (2)
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
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, MAX_READ, CaseInsensitiveEntries
from image_service.core.formats.reading import Span, read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.reading import ReadAt

_BOOT_SECTOR_BYTES = 512
_BOOT_SECTOR = struct.Struct("<11xHBHBHHBH8xIIH2xIH")
_OTHER_FILE_SYSTEMS = (b"NTFS    ", b"EXFAT   ", b"-FVE-FS-")
_SECTOR_SIZES = {512, 1024, 2048, 4096}
_CLUSTER_SECTORS = {1 << power for power in range(8)}
_MEDIA = {0xF0, *range(0xF8, 0x100)}
_MAX_TABLES = 4
_MAX_FAT12, _MAX_FAT16 = 4084, 65524  # clusters
_ONE_TABLE, _TABLE_NUMBER = 0x80, 0x0F
_ENTRY = struct.Struct("<11sBB7xH4xHI")
_VOLUME, _READ_ONLY = 0x08, 0x01
_PART_NUMBERS = 0x1F
_END_MARKS = 7  # below the largest one
_LOWER_STEM, _LOWER_EXTENSION = 0x08, 0x10
_NO_LABEL = "NO NAME"

FIRST_CLUSTER: Final = 2
ENTRY_BYTES: Final = _ENTRY.size
DELETED: Final = 0xE5
LONG_NAME: Final = 0x0F
LAST_PART: Final = 0x40
DIRECTORY: Final = 0x10


@attrs.frozen(eq=False)
class Fat:
    """A FAT file system.

    Args:
        bits: 12, 16 or 32.
        label: "" if it has none.
        uuid: the serial number as Linux names it: ``1234-ABCD``.
        root: the root directory; names on a path are found in any case.
        volume: where its parts are.
    """

    bits: int
    label: str
    uuid: str
    root: FatNode
    volume: FatVolume


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
        many_sectors, long_table_sectors, flags, root_cluster, information,
    ) = _BOOT_SECTOR.unpack_from(sector)  # fmt: skip
    sectors, is_fat32 = sectors or many_sectors, table_sectors == 0
    table_bytes = (table_sectors or long_table_sectors) * sector_size
    first_table = reserved * sector_size
    root_start = first_table + tables * table_bytes
    data_start = root_start + -(-root_entries * ENTRY_BYTES // sector_size) * sector_size
    cluster_size = cluster_sectors * sector_size
    clusters = (sectors * sector_size - data_start) // cluster_size
    bits = 32 if is_fat32 else 12 if clusters <= _MAX_FAT12 else 16
    if sectors * sector_size > size or clusters <= 0 or (clusters + FIRST_CLUSTER) * bits > table_bytes * 8:
        raise FormatError(
            f"the FAT file system is damaged or incomplete: {sectors} sectors of {sector_size} bytes and"
            f" tables of {table_bytes} bytes in {size} bytes"
        )
    used = range(tables)
    if is_fat32 and flags & _ONE_TABLE:
        used = range(flags & _TABLE_NUMBER, (flags & _TABLE_NUMBER) + 1)
    if used.stop > tables:
        raise FormatError(f"the FAT file system is damaged: it uses table {used.start} of {tables}")
    volume = FatVolume(
        read_at=read_at,
        bits=bits,
        clusters=clusters,
        cluster_size=cluster_size,
        tables=tuple(first_table + number * table_bytes for number in used),
        information=information * sector_size if is_fat32 and 0 < information < reserved else None,
        root_cluster=root_cluster if is_fat32 else 0,
        fixed_root=None if is_fat32 else Span("the root directory", root_start, root_entries * ENTRY_BYTES),
        data=data_start,
    )
    root = FatNode(volume, stat.S_IFDIR | 0o755, 0, volume.root_cluster, is_root=True)
    at = 67 if is_fat32 else 39
    serial = sector[at : at + 4][::-1].hex().upper()
    label = root.find_label() or sector[at + 4 : at + 15].decode("ascii", "replace").rstrip(" \0")
    return Fat(bits, "" if label == _NO_LABEL else label, f"{serial[:4]}-{serial[4:]}", root, volume)


@attrs.frozen(eq=False)
class FatNode:
    """A file or a directory; see `TreeNode`. FAT has no symlinks."""

    _volume: FatVolume
    mode: int
    size: int  # of a directory: 0
    _cluster: int
    _is_root: bool = False

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
        for entry in parse_directory(self._read_listing()):
            if entry.is_label or entry.name in {".", ".."}:
                continue
            kind = stat.S_IFDIR if entry.is_directory else stat.S_IFREG
            mode = kind | (0o555 if entry.attributes & _READ_ONLY else 0o755)
            found[entry.name] = partial(FatNode, self._volume, mode, entry.size, entry.cluster)
        return CaseInsensitiveEntries(found)

    def find_label(self) -> str:
        """Return the label that a root directory has; "" if it has none."""
        return next((entry.name for entry in parse_directory(self._read_listing()) if entry.is_label), "")

    def _read_listing(self) -> bytes:
        fixed = self._volume.fixed_root
        if self._is_root and fixed:
            return read_exactly(self._volume.read_at, fixed.offset, fixed.length)
        listing = bytearray()
        for block in self._volume.read_chain(self._cluster, 0):
            listing += block
            if len(listing) > MAX_DIRECTORY:
                raise FormatError(f"a directory of the FAT file system has more than {MAX_DIRECTORY} bytes")
        return bytes(listing)


@attrs.frozen(eq=False)
class FatVolume:
    """The parts of a file system; offsets count from its start.

    Args:
        clusters: their number; the first one is `FIRST_CLUSTER`.
        tables: offsets of the copies in use, which are equal.
        information: offset of the sector with the number of free clusters.
        root_cluster: 0: the root is `fixed_root`.
        data: offset of the first cluster.
    """

    read_at: ReadAt
    bits: int
    clusters: int
    cluster_size: int
    tables: tuple[int, ...]
    information: int | None
    root_cluster: int
    fixed_root: Span | None
    data: int

    @property
    def mask(self) -> int:
        """The bits of a table's entry that name a cluster; all set: the end of a file."""
        return (1 << min(self.bits, 28)) - 1

    def offset_of(self, cluster: int) -> int:
        """Return where a cluster begins."""
        return self.data + (cluster - FIRST_CLUSTER) * self.cluster_size

    def check_cluster(self, cluster: int, before: int) -> None:
        """Raise FormatError if a file with `before` clusters cannot go on with this one."""
        if not FIRST_CLUSTER <= cluster < self.clusters + FIRST_CLUSTER or before > self.clusters:
            raise FormatError(
                f"the FAT file system is damaged: a file goes to cluster {cluster} of {self.clusters}"
            )

    def is_end(self, entry: int) -> bool:
        """Return True if an entry of a table marks the last cluster of a file."""
        return entry >= self.mask - _END_MARKS

    def read_chain(self, cluster: int, skipped: int) -> Iterator[bytes]:
        """Yield the clusters of a file from its first one on, less those `skipped`; none for cluster 0."""
        count = 0
        while cluster and not self.is_end(cluster):
            self.check_cluster(cluster, count)
            if count >= skipped:
                yield read_exactly(self.read_at, self.offset_of(cluster), self.cluster_size)
            count += 1
            cluster = self._next(cluster)

    def _next(self, cluster: int) -> int:
        position, rest = divmod(cluster * self.bits, 8)
        entry = read_exactly(self.read_at, self.tables[0] + position, -(-self.bits // 8))
        return int.from_bytes(entry, "little") >> rest & self.mask


@attrs.frozen
class FatEntry:
    """A directory's entry.

    Args:
        name: the long name if it has one.
        short: the name of 8 and 3 characters, padded.
        cluster: the first one; 0 if there is none.
        position: offset of its last 32 bytes in the listing; a long name is before them.
    """

    name: str
    short: bytes
    attributes: int
    cluster: int
    size: int
    position: int

    @property
    def alias(self) -> str:
        """The short name as it is written: in capitals, with a dot."""
        return _short_name(self.short, 0, is_volume=False)

    @property
    def is_directory(self) -> bool:
        """True for ``.`` and ``..`` too."""
        return bool(self.attributes & DIRECTORY)

    @property
    def is_label(self) -> bool:
        """True if it is the label of the volume and not a file."""
        return bool(self.attributes & _VOLUME)


def parse_directory(listing: bytes) -> Iterator[FatEntry]:
    """Yield the entries up to the end mark, less those deleted."""
    parts: dict[int, bytes] = {}  # of a long name, by their order
    checksum = -1
    for position in range(0, len(listing) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = listing[position : position + ENTRY_BYTES]
        short, attributes, case, upper, lower, size = _ENTRY.unpack(entry)
        if entry[0] == 0:
            return
        if entry[0] == DELETED:
            parts = {}
        elif attributes & 0x3F == LONG_NAME:
            if entry[0] & LAST_PART or entry[13] != checksum:
                parts, checksum = {}, entry[13]
            parts[entry[0] & _PART_NUMBERS] = entry[1:11] + entry[14:26] + entry[28:32]
        else:
            is_whole = sorted(parts) == [*range(1, len(parts) + 1)] and checksum == name_checksum(short)
            if parts and is_whole:
                characters = b"".join(parts[number] for number in sorted(parts))
                name = characters.decode("utf-16-le", "replace").partition("\0")[0]
            else:
                name = _short_name(short, case, is_volume=bool(attributes & _VOLUME))
            yield FatEntry(name, short, attributes, upper << 16 | lower, size, position)
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


def name_checksum(short: bytes) -> int:
    """Return what ties a long name to its short name."""
    total = 0
    for byte in short:
        total = ((total & 1) << 7 | total >> 1) + byte & 0xFF
    return total
