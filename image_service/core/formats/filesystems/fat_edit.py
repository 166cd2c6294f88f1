"""Edits of a FAT file system of unchanged size, as patches.

A replaced file keeps its entry with its dates, and as many of its clusters as it needs. A new file gets the
lowest free clusters, in the order of the paths, and the date of its directory.

free clusters   of FAT32, in a sector of its own: RRaA: 0 (4); rrAa: 484 (4); their number: 488 (4); the
                cluster that was allocated last: 492 (4); each has all bits set if it is not known
"""

from __future__ import annotations

import stat
import struct
from array import array
from collections import defaultdict
from heapq import merge
from itertools import count, islice, pairwise
from typing import TYPE_CHECKING, TypeAlias

from image_service.core.errors import FormatError, FormatUnread, Unprocessable
from image_service.core.extents import Literal, Overlay
from image_service.core.formats.filesystems.fat import (
    DIRECTORY,
    ENTRY_BYTES,
    FIRST_CLUSTER,
    FatEntry,
    parse_directory,
    read_fat,
)
from image_service.core.formats.filesystems.fat_directory import FatDirectory, check_name, pack_entry
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, find_optional, fold_case
from image_service.core.formats.reading import Span, SpanReader, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from image_service.core.formats.filesystems.fat import FatVolume
    from image_service.core.formats.reading import ReadAt

_SECTOR = 512  # bytes that are compared at once
_MAX_TABLE = 8 * 1024 * 1024  # 8 GiB in clusters of 4 KiB; EFI system partitions have some hundred MiB
_TABLE_PART = 4096  # entries that are read at once; an even number, so that a part of FAT12 has whole bytes
_WHOLE_BYTES = {16: "H", 32: "I"}  # bits of an entry: its code in `struct`
_MAX_FILE = 0xFFFF_FFFF
_MAX_NAMES = 64  # on a path
_INFORMATION = struct.Struct("<4s480x4sII")
_INFORMATION_MARKS = (b"RRaA", b"rrAa")
_UNKNOWN = 0xFFFF_FFFF

_Patch: TypeAlias = tuple[int, bytes]  # an offset, and its new bytes


class FatEditor:
    """A FAT file system, and the files to put into it.

    Args:
        read_at: reads the file system by offsets from its start.
        size: bytes that can be read.

    Raises:
        FormatError: it is damaged.
    """

    def __init__(self, read_at: ReadAt, size: int) -> None:
        fat = read_fat(SpanReader(read_at, Span("the FAT file system", 0, size)), size)
        self._root = fat.root
        self._volume = fat.volume
        self._puts: dict[tuple[str, ...], tuple[tuple[str, ...], bytes]] = {}  # by the path in capitals

    @property
    def size(self) -> int:
        """Bytes up to the end of the last cluster."""
        return self._volume.data + self._volume.clusters * self._volume.cluster_size

    def read(self, path: str) -> bytes | None:
        """Return a file's content, as it was put if it was; None: there is no such file."""
        put = self._puts.get(_fold(_split(path)))
        if put:
            return put[1]
        node = find_optional(self._root, path)
        return node.read() if node and stat.S_ISREG(node.mode) else None

    def list(self, path: str) -> Mapping[str, bool] | None:
        """Return the names in a directory, with True for directories; None: it is absent."""
        node = find_optional(self._root, path)
        found = {}
        if node and stat.S_ISDIR(node.mode):
            for name, read_node in node.entries().items():
                found[fold_case(name)] = name, stat.S_ISDIR(read_node().mode)
        above = _fold(_split(path))
        for key in sorted(self._puts):
            if len(key) > len(above) and key[: len(above)] == above:
                names, _ = self._puts[key]
                found.setdefault(key[len(above)], (names[len(above)], len(names) > len(above) + 1))
        return dict(found.values()) if found or (node and stat.S_ISDIR(node.mode)) else None

    def put(self, path: str, content: bytes) -> None:
        """Add or replace a file; directories on its path are made.

        Raises:
            Unprocessable: FAT cannot store that name or that many bytes.
        """
        names = _split(path)
        if not 0 < len(names) <= _MAX_NAMES:
            raise Unprocessable(f"the path {path!r} has {len(names)} names; it must have 1 to {_MAX_NAMES}")
        if len(content) > _MAX_FILE:
            raise Unprocessable(f"{path} has {len(content)} bytes; a file in FAT has at most {_MAX_FILE}")
        for name in names:
            check_name(name)
        self._puts[_fold(names)] = names, content

    def finish(self) -> tuple[Overlay, ...]:
        """Return the patches, sorted and disjoint; they do not depend on the order in which files were put.

        Raises:
            Unprocessable: there is no room, or a file is where a directory must be, or the reverse.
            FormatError: the file system is damaged.
        """
        return _Edit(self._volume).apply([self._puts[key] for key in sorted(self._puts)])


def _split(path: str) -> tuple[str, ...]:
    return tuple(filter(None, path.split("/")))


def _fold(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(fold_case, names))


class _Edit:
    """A run of `FatEditor.finish`: replaced files free their clusters, then all get what they need."""

    def __init__(self, volume: FatVolume) -> None:
        if volume.clusters * volume.bits > _MAX_TABLE * 8:
            raise FormatUnread(
                f"the FAT file system has {volume.clusters} clusters of {volume.bits} bits in its table,"
                f" of which at most {_MAX_TABLE} bytes are read"
            )
        self._volume = volume
        self._table = _Table(volume)
        self._free = self._table.find_free()
        self._opened: set[int] = set()  # clusters of directories and of replaced files
        self._needed = self._missing = self._last_allocated = 0
        self._contents: list[tuple[list[int], int, bytes]] = []  # clusters, how many of them are old, content
        self._directories: dict[tuple[str, ...], FatDirectory] = {(): self._open_root()}
        self._pending: dict[tuple[str, ...], set[str]] = defaultdict(set)  # names that come, by directory

    def apply(self, puts: Sequence[tuple[tuple[str, ...], bytes]]) -> tuple[Overlay, ...]:
        """Return the patches that put files, sorted by path."""
        for names, _ in puts:
            for index, name in enumerate(folded := _fold(names)):
                self._pending[folded[:index]].add(name)
        kept = [self._shrink(names, len(content)) for names, content in puts]
        for (names, content), clusters in zip(puts, kept, strict=True):
            self._store(names, content, clusters)
        if self._missing:
            raise Unprocessable(
                f"the FAT file system has no room: {self._needed} clusters of"
                f" {self._volume.cluster_size} bytes are needed, {self._needed - self._missing} are free"
            )
        return tuple(_join(sorted(self._patches())))

    def _shrink(self, names: tuple[str, ...], size: int) -> list[int]:
        """Free the clusters of a present file that are not needed, and return the others."""
        directory = self._find_directory(names[:-1])
        entry = directory.entries.get(fold_case(names[-1])) if directory else None
        if entry is None:
            return []
        if entry.is_directory:
            raise Unprocessable(f"{'/'.join(names)} is a directory in the FAT file system")
        clusters = self._open_chain(entry.cluster) if entry.cluster else []
        needed = -(-size // self._volume.cluster_size)
        for cluster in clusters[needed:]:
            self._table[cluster] = 0
        if 0 < needed < len(clusters):
            self._table[clusters[needed - 1]] = self._volume.mask
        return clusters[:needed]

    def _store(self, names: tuple[str, ...], content: bytes, clusters: list[int]) -> None:
        """Give a file its clusters and its entry."""
        for index in range(1, len(names)):
            if self._find_directory(names[:index]) is None:
                self._make_directory(names[:index])
        old = len(clusters)
        self._grow(clusters, -(-len(content) // self._volume.cluster_size) - old)
        self._contents.append((clusters, old, content))
        directory = self._directories[_fold(names[:-1])]
        entry = directory.entries.get(fold_case(names[-1]))
        first = clusters[0] if clusters else 0
        if entry:
            directory.change(entry, first, len(content))
        else:
            self._add(names, first, len(content))

    def _find_directory(self, names: tuple[str, ...]) -> FatDirectory | None:
        """Return a directory, read if it was not yet; None if it is absent."""
        key = _fold(names)
        if key in self._directories:
            return self._directories[key]
        parent = self._find_directory(names[:-1])
        entry = parent.entries.get(key[-1]) if parent else None
        if parent is None or entry is None:
            return None
        path = "/".join(names)
        if not entry.is_directory:
            raise Unprocessable(f"{path} is a file in the FAT file system, not a directory")
        self._directories[key] = self._open(f"{path}/", entry.cluster, parent.date_of(entry))
        return self._directories[key]

    def _open_root(self) -> FatDirectory:
        fixed = self._volume.fixed_root
        if fixed:
            listing = bytearray(read_exactly(self._volume.read_at, fixed.offset, fixed.length))
            root = FatDirectory("", [], listing, b"", 0)
        else:
            root = self._open("", self._volume.root_cluster, b"")
        labels = (entry for entry in parse_directory(bytes(root.listing)) if entry.is_label)
        root.modified = root.date_of(next(labels, None))
        return root

    def _open(self, path: str, first: int, modified: bytes) -> FatDirectory:
        clusters = self._open_chain(first)
        size = self._volume.cluster_size
        if len(clusters) * size > MAX_DIRECTORY:
            raise FormatError(
                f"the directory {path!r} in the FAT file system has more than {MAX_DIRECTORY} bytes"
            )
        listing = bytearray()
        for index, length in _runs(clusters):
            listing += read_exactly(
                self._volume.read_at, self._volume.offset_of(clusters[index]), length * size
            )
        return FatDirectory(path, clusters, listing, modified, len(clusters))

    def _open_chain(self, first: int) -> list[int]:
        clusters = []
        for cluster in self._table.read_chain(first):
            if cluster in self._opened:
                raise FormatError(f"the FAT file system is damaged: two files have cluster {cluster}")
            self._opened.add(cluster)
            clusters.append(cluster)
        return clusters

    def _make_directory(self, names: tuple[str, ...]) -> None:
        parent = self._directories[_fold(names[:-1])]
        clusters: list[int] = []
        self._grow(clusters, 1)
        above = parent.clusters[0] if len(names) > 1 else 0
        entries = (
            FatEntry(".", b".".ljust(11), DIRECTORY, clusters[0], 0, 0),
            FatEntry("..", b"..".ljust(11), DIRECTORY, above, 0, 0),
        )
        listing = bytearray(b"".join(pack_entry(entry, parent.modified) for entry in entries))
        listing += bytes(self._volume.cluster_size - len(listing))
        self._directories[_fold(names)] = FatDirectory(
            f"{'/'.join(names)}/", clusters, listing, parent.modified, old_clusters=0
        )
        self._add(names, clusters[0], None)

    def _add(self, names: tuple[str, ...], cluster: int, size: int | None) -> None:
        """Add an entry for a file, or for a directory, which has no size."""
        above = _fold(names[:-1])
        directory = self._directories[above]
        entry = directory.make_entry(names[-1], cluster, size, self._pending[above])
        data = pack_entry(entry, directory.modified)
        position = directory.find_room(len(data))
        if position is None:
            position = self._extend(directory, len(data))
        directory.add(position, entry, data)

    def _extend(self, directory: FatDirectory, wanted: int) -> int:
        """Make room for so many bytes at the end of a directory, and return where it is."""
        position = directory.find_free_end()
        size = position + wanted
        if not directory.clusters:
            raise Unprocessable(
                "the FAT file system has no room: its root directory has"
                f" {directory.count_free()} free entries of {len(directory.listing) // ENTRY_BYTES};"
                f" {wanted // ENTRY_BYTES} in a row are needed"
            )
        if size > MAX_DIRECTORY:
            raise Unprocessable(
                f"the FAT file system has no room: the directory {directory.path!r} would have {size} bytes"
                f" of at most {MAX_DIRECTORY}"
            )
        more = -(-(size - len(directory.listing)) // self._volume.cluster_size)
        self._grow(directory.clusters, more)
        directory.listing += bytes(more * self._volume.cluster_size)
        return position

    def _grow(self, clusters: list[int], more: int) -> None:
        """Append clusters to those of a file."""
        if more == 0:
            return
        new = list(islice(self._free, more))
        self._needed += more
        self._missing += more - len(new)
        new += [0] * (more - len(new))  # `apply` refuses the edit when it knows how many are needed in all
        for before, after in pairwise([*clusters[-1:], *new]):
            self._table[before] = after
        self._table[new[-1]] = self._volume.mask
        self._last_allocated = new[-1]
        clusters += new

    def _patches(self) -> Iterator[_Patch]:
        for directory in self._directories.values():
            if directory.clusters:
                yield from self._write(directory.clusters, directory.old_clusters, bytes(directory.listing))
            elif self._volume.fixed_root:
                yield from self._compare(self._volume.fixed_root.offset, bytes(directory.listing))
        for clusters, old, content in self._contents:
            yield from self._write(clusters, old, content)
        for offset, data in self._table.find_changed():
            yield from self._compare(offset, data)
        if self._volume.information is not None and self._table.is_changed:
            yield from self._compare(
                self._volume.information, self._update_information(self._volume.information)
            )

    def _write(self, clusters: list[int], old: int, data: bytes) -> Iterator[_Patch]:
        """Patch clusters; the first `old` ones only where they differ."""
        size = self._volume.cluster_size
        for index, length in _runs(clusters[:old]):
            block = data[index * size : (index + length) * size]
            yield from self._compare(self._volume.offset_of(clusters[index]), block)
        for index, length in _runs(clusters[old:]):
            block = data[(old + index) * size : (old + index + length) * size]
            yield self._volume.offset_of(clusters[old + index]), block

    def _compare(self, offset: int, data: bytes) -> Iterator[_Patch]:
        """Patch the sectors that differ."""
        present = read_exactly(self._volume.read_at, offset, len(data))
        for start in range(0, len(data), _SECTOR):
            sector = data[start : start + _SECTOR]
            if sector != present[start : start + _SECTOR]:
                yield offset + start, sector

    def _update_information(self, offset: int) -> bytes:
        sector = bytearray(read_exactly(self._volume.read_at, offset, _SECTOR))
        begin, middle, free, last = _INFORMATION.unpack_from(sector)
        if (begin, middle) == _INFORMATION_MARKS:
            free += self._table.count_freed()
            if free not in range(self._volume.clusters + 1):  # it was not known, or wrong
                free = _UNKNOWN
            _INFORMATION.pack_into(sector, 0, begin, middle, free, self._last_allocated or last)
        return bytes(sector)


class _Table:
    """The file allocation table, with the entries that change; it is read in parts."""

    def __init__(self, volume: FatVolume) -> None:
        self._volume = volume
        self._stop = volume.clusters + FIRST_CLUSTER
        self._width = -(-volume.bits // 8)  # bytes that an entry is in
        # Bytes and bits before an entry of a part.
        self._places = [divmod(index * volume.bits, 8) for index in range(_TABLE_PART)]
        self._parts: dict[int, array[int]] = {}  # of the first copy, as they are in the file system
        self._changes: dict[int, int] = {}

    def __setitem__(self, cluster: int, entry: int) -> None:
        self._changes[cluster] = entry

    @property
    def is_changed(self) -> bool:
        """True if entries were set."""
        return bool(self._changes)

    def read_chain(self, first: int) -> Iterator[int]:
        """Yield the clusters of a file or directory, as they are in the file system."""
        cluster = first
        for before in count():
            self._volume.check_cluster(cluster, before)
            yield cluster
            cluster = self._read_entry(cluster)
            if self._volume.is_end(cluster):
                return

    def find_free(self) -> Iterator[int]:
        """Yield the clusters in ascending order that are free when the first one is asked for."""
        freed = sorted(cluster for cluster, entry in self._changes.items() if not entry)
        yield from merge(freed, self._zeros())

    def _zeros(self) -> Iterator[int]:
        for first in range(0, self._stop, _TABLE_PART):
            part = self._part(first // _TABLE_PART)
            if 0 not in part:  # `array` finds that out many times faster than a loop
                continue
            for cluster, entry in enumerate(part, first):
                if not entry and cluster >= FIRST_CLUSTER:
                    yield cluster

    def count_freed(self) -> int:
        """Return how many clusters become free, less those that become used."""
        return sum((not entry) - (not self._read_entry(cluster)) for cluster, entry in self._changes.items())

    def find_changed(self) -> Iterator[_Patch]:
        """Yield the parts with changes, of each copy: the offset and the bytes."""
        changed: dict[int, list[int]] = defaultdict(list)
        for cluster in self._changes:
            changed[cluster // _TABLE_PART].append(cluster)
        for table in self._volume.tables:
            for part, clusters in changed.items():
                offset, data = self._read_part(table, part)
                yield offset, self._change(data, clusters)

    def _change(self, part: bytes, clusters: Iterable[int]) -> bytes:
        data, mask, width = bytearray(part), self._volume.mask, self._width
        for cluster in clusters:
            at, shift = self._places[cluster % _TABLE_PART]
            present = int.from_bytes(data[at : at + width], "little")
            entry = present & ~(mask << shift) | self._changes[cluster] << shift
            data[at : at + width] = entry.to_bytes(width, "little")
        return bytes(data)

    def _read_entry(self, cluster: int) -> int:
        part, index = divmod(cluster, _TABLE_PART)
        return self._part(part)[index]

    def _part(self, part: int) -> array[int]:
        if part not in self._parts:
            _, data = self._read_part(self._volume.tables[0], part)
            self._parts[part] = array("I", self._decode(data))
        return self._parts[part]

    def _decode(self, part: bytes) -> Iterator[int]:
        mask = self._volume.mask
        entries = len(part) * 8 // self._volume.bits
        if code := _WHOLE_BYTES.get(self._volume.bits):
            return (entry & mask for entry in struct.unpack(f"<{entries}{code}", part))
        places = self._places[:entries]
        return (int.from_bytes(part[at : at + 2], "little") >> shift & mask for at, shift in places)

    def _read_part(self, table: int, part: int) -> tuple[int, bytes]:
        first = part * _TABLE_PART
        entries = min(_TABLE_PART, self._stop - first)
        offset = table + first * self._volume.bits // 8
        return offset, read_exactly(self._volume.read_at, offset, -(-entries * self._volume.bits // 8))


def _runs(clusters: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the runs of consecutive clusters: the index of the first one, and how many there are."""
    start = 0
    for index in range(1, len(clusters) + 1):
        if index == len(clusters) or clusters[index] != clusters[index - 1] + 1:
            yield start, index - start
            start = index


def _join(patches: Iterable[_Patch]) -> Iterator[Overlay]:
    """Yield sorted patches, adjacent ones as one."""
    parts: list[bytes] = []
    start = stop = 0
    for offset, data in patches:
        if parts and offset != stop:
            yield Overlay(start, Literal(b"".join(parts)))
            parts = []
        start = start if parts else offset
        stop = offset + len(data)
        parts.append(data)
    if parts:
        yield Overlay(start, Literal(b"".join(parts)))
