"""Edits an ISO that is never written: the new image is the base, some overlays and a tail behind it.

The content of each file that is put, directories without room for one more record, longer path tables,
partitions that the grown ISO would overlap, and the backup GPT are in the tail; everything else is a patch of
some bytes. The label, the dates and so the UUID of the volume stay. An HFS+ catalog is not changed.
"""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, Unprocessable
from image_service.core.extents import ExtentMap, Literal, Overlay, Zeros, apply_overlays
from image_service.core.formats.filesystems.el_torito import EFI, read_boot_images
from image_service.core.formats.iso9660.descriptors import Descriptor, Names, read_descriptors
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso_edit.layout import TreeChange, lay_out
from image_service.core.formats.iso_edit.partitions import ALIGNMENT, Growth, HybridTables, Move
from image_service.core.formats.iso_edit.tree import Tree
from image_service.core.formats.reading import Span

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from image_service.core.extents import Extent
    from image_service.core.formats.filesystems.el_torito import BootImageEntry
    from image_service.core.formats.iso9660.records import Record

MAX_FILE = (1 << 32) - SECTOR
"""Bytes: a larger file needs several sections, which GRUB 2.06 does not read."""

_PADDING = 150 * SECTOR  # as mkisofs does: some readers ahead fail in the last sectors of an image
_COMPARED = 32  # bytes of a block: equal bytes between two differences count if they are fewer
_CHANGED_BLOCKS = re.compile(
    rb"(?:\0{%d})++|(?:(?!\0{%d}).{%d})++" % (_COMPARED, _COMPARED, _COMPARED), re.DOTALL
)
"""The runs of equal and of changed blocks in the exclusive or of two contents."""


@attrs.frozen
class IsoPlan:
    """How an edited ISO differs from its base.

    Args:
        overlays: by offset, disjoint.
        tail: what follows the base, and zeros up to the next sector first; empty: the size is the same.
        places: where the files are that were put.
        moves: partitions of the base that are elsewhere now.
    """

    overlays: tuple[Overlay, ...]
    tail: tuple[Extent, ...] = ()
    places: tuple[Span, ...] = ()
    moves: tuple[Move, ...] = ()

    def apply(self, base: ExtentMap) -> ExtentMap:
        """Return the edited ISO."""
        return ExtentMap(apply_overlays(base, self.overlays).extents + self.tail)


class IsoEditor:
    """Collects changes of an ISO.

    Args:
        base: the ISO; read while the changes are made, at most some MiB of it, which may block.

    Raises:
        FormatError: it cannot be edited; says why.
    """

    def __init__(self, base: ExtentMap) -> None:
        self._base = base
        self._tables = HybridTables(base.read_at, base.size)
        found: list[Descriptor] = []
        for start in (0, *self._tables.volumes):
            found += read_descriptors(base.read_at, start)
        for descriptor in found:
            end = descriptor.start + descriptor.blocks * SECTOR
            if end > base.size:
                raise FormatError(f"the ISO is incomplete: it has {base.size} of {end} bytes")
        key = lambda each: (each.start, each.root.block)  # noqa: E731 - of both functions
        self._trees = [
            Tree(list(group), base.read_at) for _, group in groupby(sorted(found, key=key), key=key)
        ]
        if not any(tree.start == 0 and tree.spelling is Names.ISO for tree in self._trees):
            raise FormatError("not an ISO 9660 image: no primary volume descriptor")
        self._names = min((tree for tree in self._trees if tree.start == 0), key=_rank)
        self._puts: dict[str, tuple[Extent, ...]] = {}
        self._patches: list[Overlay] = []

    @property
    def volume_id(self) -> str:
        """The label, without padding."""
        first = next(tree for tree in self._trees if tree.start == 0 and tree.spelling is Names.ISO)
        return first.descriptors[0].data[40:72].decode("ascii", "replace").rstrip(" \0")

    def list(self, path: str = "") -> Mapping[str, bool] | None:
        """Return the names in a directory of the base, with True for directories; None: it is absent.

        Names are those of Rock Ridge, else those of Joliet, else lower-case ones of ISO 9660.
        """
        entries = self._names.entries(path)
        return None if entries is None else {name: each.is_directory for name, each in entries.items()}

    def find(self, path: str) -> ExtentMap | None:
        """Return the content of a file of the base; None if there is no such file."""
        records = self._names.find(path)
        if not records or records[0].is_directory:
            return None
        extents = [extent for record in records for extent in self._content(path, record)]
        return ExtentMap(tuple(extents))

    def locate(self, path: str) -> Span | None:
        """Return where a file of the base lies; None if it is absent or in several runs."""
        found = self._names.find(path)
        if len(found) != 1 or found[0].is_directory:
            return None
        return Span(path, self._names.start + found[0].block * SECTOR, found[0].length)

    def put(self, path: str, content: Sequence[Extent]) -> None:
        """Add or replace a file, and make its directories, in all trees.

        Raises:
            Unprocessable: no ISO can have such a path, or the file is too large.
        """
        names = path.split("/")
        if any(name in {"", ".", ".."} or "\0" in name for name in names):
            raise Unprocessable(f"{path!r} is not the path of a file in an ISO: names separated by /")
        size = _length(content)
        if size > MAX_FILE:
            raise Unprocessable(f"{path!r} has {size} bytes, more than the {MAX_FILE} of a file in an ISO")
        self._puts[path] = tuple(extent for extent in content if extent.length)

    def patch(self, offset: int, data: Literal | Zeros) -> None:
        """Replace bytes of the base; patches must not overlap. Those of a partition that moves go with it."""
        self._patches.append(Overlay(offset, data))

    def finish(self) -> IsoPlan:
        """Return the changes as a plan, which does not depend on the order in which they were made.

        Raises:
            FormatError: the ISO is damaged where it must be changed.
            Unprocessable: a path is of a directory, passes through a file, or cannot be stored in the ISO.
        """
        if not self._puts:
            return IsoPlan(_sorted(self._patches))
        replaced = {path: self._names.find(path) for path in sorted(self._puts)}
        tail = _Tail(self._base.size)
        places = {path: tail.append(self._puts[path]) for path in replaced}
        overlays = [*self._patches]
        for change in self._change_trees(replaced, places, tail):
            if change.was:
                overlays += _differences(change.at, change.was, change.data)
            else:
                tail.fill(change.at, change.data)
        end = tail.end + _PADDING
        if self._tables.are_there:
            end += -end % ALIGNMENT
            growth = self._tables.grow(end)
        else:
            growth = Growth((), (), b"", end)
        tail.append((Zeros(end - tail.end),))
        for extent in self._moved_partitions(growth, end):
            tail.append((extent,), 1)
        overlays += self._grow_volumes(end, growth)
        overlays += self._move_boot_images(replaced, places, growth)
        for at, data in growth.patches:
            overlays += _differences(at, self._base.read_at(at, len(data)), data)
        spans = tuple(Span(path, at, _length(self._puts[path])) for path, at in places.items())
        return IsoPlan(_sorted(overlays), tail.extents, spans, growth.moves)

    def _change_trees(
        self, replaced: Mapping[str, tuple[Record, ...]], places: Mapping[str, int], tail: _Tail
    ) -> Iterator[TreeChange]:
        for tree in self._trees:
            for path, offset in places.items():
                tree.put(path, offset, _length(self._puts[path]), replaced[path])
            yield from lay_out(tree, tail.allocate)

    def _content(self, path: str, record: Record) -> tuple[Extent, ...]:
        start = self._names.start + record.block * SECTOR
        if start + record.length > self._base.size:
            raise FormatError(
                f"{path!r} in the ISO extends beyond the file of {self._base.size} bytes:"
                f" {record.length} bytes at offset {start}"
            )
        return self._base.slice(start, start + record.length)

    def _moved_partitions(self, growth: Growth, end: int) -> Iterator[Extent]:
        patched = apply_overlays(self._base, self._patches)
        position = end
        for move in growth.moves:
            yield Zeros(move.to - position)
            yield from patched.slice(move.start, move.start + move.length)
            position = move.to + move.length
        yield Zeros(growth.size - len(growth.backup) - position)
        yield Literal(growth.backup)

    def _grow_volumes(self, end: int, growth: Growth) -> Iterator[Overlay]:
        """Let volumes end where the ISO does; those that cover partitions behind it cover them again.

        UEFI boots from a partition as a CD only within the volume.
        """
        behind = min((move.start for move in growth.moves), default=self._base.size)
        for tree in self._trees:
            for descriptor in tree.descriptors:
                covers = descriptor.start + descriptor.blocks * SECTOR > behind
                size = (growth.size if covers else end) - descriptor.start
                grown = descriptor.with_blocks(size // SECTOR)
                was = self._base.read_at(descriptor.at, SECTOR)
                yield from _differences(descriptor.at, was, grown.data)

    def _move_boot_images(
        self, replaced: Mapping[str, tuple[Record, ...]], places: Mapping[str, int], growth: Growth
    ) -> Iterator[Overlay]:
        """Let firmware find boot images that moved: in a partition, or because their file is replaced."""
        files = {
            self._names.start + records[0].block * SECTOR: path
            for path, records in replaced.items()
            if records
        }
        for image in read_boot_images(self._base.read_at, self._base.size):
            to = _new_offset(image, growth)
            if path := files.get(image.offset):
                if image.platform != EFI:
                    raise Unprocessable(
                        f"{path!r} is a boot image for BIOS, which has its own place written in it"
                    )
                to = places[path]
            if to is not None:
                yield from _differences(
                    image.block_at,
                    self._base.read_at(image.block_at, 4),
                    (to // SECTOR).to_bytes(4, "little"),
                )


class _Tail:
    """What follows the base; offsets are those of the new image."""

    def __init__(self, base_size: int) -> None:
        self.end = base_size
        self._extents: list[Extent] = []
        self._allocated: dict[int, int] = {}
        self._add(Zeros(-base_size % SECTOR))

    @property
    def extents(self) -> tuple[Extent, ...]:
        return tuple(extent for extent in self._extents if extent.length)

    def append(self, content: Sequence[Extent], alignment: int = SECTOR) -> int:
        """Add a file; return its offset."""
        begin = self.end
        for extent in content:
            self._add(extent)
        self._add(Zeros(-self.end % alignment))
        return begin

    def allocate(self, length: int) -> int:
        """Reserve bytes that `fill` sets; return their offset."""
        begin = self.end
        self._allocated[begin] = len(self._extents)
        self._add(Zeros(length))
        return begin

    def fill(self, at: int, data: bytes) -> None:
        """Set the bytes that `allocate` has reserved at an offset."""
        self._extents[self._allocated[at]] = Literal(data)

    def _add(self, extent: Extent) -> None:
        self._extents.append(extent)
        self.end += extent.length


def _length(content: Sequence[Extent]) -> int:
    return sum(extent.length for extent in content)


def _rank(tree: Tree) -> int:
    """Order trees by how well they keep names."""
    if tree.has_rock_ridge:
        return 0
    return {Names.JOLIET: 1, Names.ENHANCED: 2, Names.ISO: 3}[tree.spelling]


def _new_offset(image: BootImageEntry, growth: Growth) -> int | None:
    for move in growth.moves:
        if move.start <= image.offset < move.start + move.length:
            return image.offset - move.start + move.to
    return None


def _differences(at: int, was: bytes, data: bytes) -> Iterator[Overlay]:
    """Yield what differs: runs of blocks, without the equal bytes at both ends of each.

    Args:
        was: as many bytes as `data`.
    """
    size = len(data) + -len(data) % _COMPARED
    changed = int.from_bytes(was, "little") ^ int.from_bytes(data, "little")
    for blocks in _CHANGED_BLOCKS.finditer(changed.to_bytes(size, "little")):
        run = blocks[0]
        begin = blocks.start() + len(run) - len(run.lstrip(b"\0"))
        end = blocks.start() + len(run.rstrip(b"\0"))
        if begin < end:
            yield Overlay(at + begin, Literal(data[begin:end]))


def _sorted(overlays: Iterable[Overlay]) -> tuple[Overlay, ...]:
    found = sorted((each for each in overlays if each.data.length), key=lambda each: each.offset)
    for one, following in pairwise(found):
        if one.stop > following.offset:
            raise FormatError(f"structures of the ISO overlap at offset {following.offset}")
    return tuple(found)
