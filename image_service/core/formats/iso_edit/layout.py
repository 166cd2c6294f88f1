"""The layout of a changed tree: its directories, each where it is or behind the ISO, and its path tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatUnread
from image_service.core.formats.iso9660.path_table import MAX_TABLE_BYTES, ROOT, PathTable
from image_service.core.formats.iso9660.records import SECTOR, Record, parse_records, render_records
from image_service.core.formats.iso9660.rock_ridge import add_links
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.iso_edit.tree import Directory, Tree


@attrs.frozen
class TreeChange:
    """Bytes at an offset of the new image, and those of the base there; b"": they are behind its end."""

    at: int
    data: bytes = attrs.field(repr=False)
    was: bytes = attrs.field(repr=False)


def lay_out(tree: Tree, allocate: Callable[[int], int]) -> Iterator[TreeChange]:
    """Yield what changes of directories and path tables; the descriptors are changed after that.

    Args:
        allocate: returns the offset of so many new bytes.
    """
    for directory in list(_walk(tree.root)):
        _count_links(tree, directory)
    places: dict[Directory, int] = {}
    for directory in sorted(_walk(tree.root), key=lambda each: (each.depth, each.identifier)):
        size = len(render_records(directory.records))
        if directory.at < 0 or size > directory.allocated:
            places[directory] = allocate(size)
            directory.allocated = size
            if directory.parent:
                directory.parent.is_changed = True
    for directory, place in places.items():
        yield from _move(tree, directory, place)
    for directory in _walk(tree.root):
        content = render_records(directory.records).ljust(directory.allocated, b"\0")
        yield TreeChange(
            places.get(directory, directory.at), content, b"" if directory in places else directory.was
        )
    if places:
        yield from _lay_out_tables(tree, places, allocate)


def _walk(directory: Directory) -> Iterator[Directory]:
    if directory.is_changed:
        yield directory
    for child in directory.children.values():
        yield from _walk(child)


def _count_links(tree: Tree, directory: Directory) -> None:
    """Count new subdirectories in the directory's own record and in that of its parent."""
    more = directory.new_subdirectories
    if not more or tree.skip is None:
        return
    directory.records[0] = _with_links(tree, directory.records[0], more)
    if directory.parent is None:
        directory.records[1] = _with_links(tree, directory.records[1], more)
    else:
        _replace_in_parent(directory, lambda record: _with_links(tree, record, more))


def _with_links(tree: Tree, record: Record, more: int) -> Record:
    skip = 0 if record is tree.root.records[0] else tree.skip or 0
    area = record.system_use
    return record.with_system_use(area[:skip] + add_links(area[skip:], more))


def _replace_in_parent(directory: Directory, change: Callable[[Record], Record]) -> None:
    parent = directory.parent
    assert parent  # noqa: S101 - the root is in no other directory
    for index, record in enumerate(parent.records):
        if record.identifier == directory.identifier and record.is_directory:
            parent.records[index] = change(record)
    parent.is_changed = True


def _move(tree: Tree, directory: Directory, place: int) -> Iterator[TreeChange]:
    """Write the directory's new place into all records of it; yield those of unchanged directories."""
    block, size = (place - tree.start) // SECTOR, directory.allocated
    directory.records[0] = directory.records[0].moved(block, size)
    if directory.parent is None:
        directory.records[1] = directory.records[1].moved(block, size)
        tree.descriptors = [each.with_root(each.root.moved(block, size)) for each in tree.descriptors]
    else:
        _replace_in_parent(directory, lambda record: record.moved(block, size))
        if directory.at < 0:  # if its parent moves too, that one sets it again
            parent = directory.parent.records[0]
            directory.records[1] = directory.records[1].moved(parent.block, parent.length)
    for record in directory.records[2:]:
        child = directory.children.get(record.identifier)
        if child and child.is_changed:
            child.records[1] = child.records[1].moved(block, size)
        elif record.is_directory:
            at = tree.start + record.block * SECTOR
            was = read_exactly(tree.read_at, at, SECTOR)
            own, above, *_ = parse_records(was, at)
            moved = own.data + above.moved(block, size).data
            yield TreeChange(at, moved + was[len(moved) :], was)


def _lay_out_tables(
    tree: Tree, places: Mapping[Directory, int], allocate: Callable[[int], int]
) -> Iterator[TreeChange]:
    first = tree.descriptors[0]
    size, blocks = first.table_bytes, first.tables
    if size > MAX_TABLE_BYTES:
        raise FormatUnread(f"a path table of the ISO has {size} bytes, more than {MAX_TABLE_BYTES}")
    room = size + -size % SECTOR
    was = read_exactly(tree.read_at, tree.start + blocks[0] * SECTOR, room)
    paths = PathTable.parse(was[:size])
    little, big = (table.ljust(room, b"\0") for table in paths.render())
    expected_tables = little, big, big
    for directory, place in places.items():
        block = (place - tree.start) // SECTOR
        if directory.at >= 0 or directory.parent is None:
            paths.blocks[_number(directory, paths) - 1] = block
        else:
            paths.add(_number(directory.parent, paths), directory.identifier, block)
    little, big = paths.render()
    if len(little) <= room:
        yield TreeChange(tree.start + blocks[0] * SECTOR, little.ljust(room, b"\0"), was)
        for block, table, expected in zip(blocks[1:], (little, big, big), expected_tables, strict=True):
            if block:
                at = tree.start + block * SECTOR
                yield TreeChange(at, table.ljust(room, b"\0"), _table_at(tree, at, expected))
    else:
        room = len(little) + -len(little) % SECTOR
        new = allocate(room), allocate(room)
        for at, table in zip(new, (little, big), strict=True):
            yield TreeChange(at, table.ljust(room, b"\0"), b"")
        blocks = ((new[0] - tree.start) // SECTOR, 0, (new[1] - tree.start) // SECTOR, 0)
    tree.descriptors = [each.with_tables(len(little), blocks) for each in tree.descriptors]


def _table_at(tree: Tree, at: int, expected: bytes) -> bytes:
    """Return a table of the base: if its first sector is as expected, the rest is not read."""
    is_expected = read_exactly(tree.read_at, at, SECTOR) == expected[:SECTOR]
    return expected if is_expected else read_exactly(tree.read_at, at, len(expected))


def _number(directory: Directory, paths: PathTable) -> int:
    if directory.parent is None:
        return ROOT
    return paths.find(_number(directory.parent, paths), directory.identifier)
