"""Path tables, compared with ones that are written of a tree of objects, one entry after the other."""

from __future__ import annotations

import struct
from typing import TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.iso9660.path_table import MAX_DIRECTORIES, ROOT, PathTable

Node: TypeAlias = "dict[bytes, Node]"


def written(root: Node, order: str) -> bytes:
    """Return the table of a tree; the block of a directory is the sum of the lengths of its path's names."""
    table, level, number = b"", [(b"\0", root, 1, 7)], 0
    while level:
        below = []
        for name, node, parent, block in level:
            number += 1
            table += struct.pack(f"{order}BBIH", len(name), 0, block, parent) + name + bytes(len(name) % 2)
            below += [(each, child, number, block + len(each)) for each, child in sorted(node.items())]
        level = below
    return table


def add(node: Node, path: tuple[bytes, ...]) -> None:
    for name in path:
        node = node.setdefault(name, {})


paths = st.lists(st.tuples(*[st.sampled_from([b"A", b"BB", b"CCC", b"DD"])] * 3), max_size=12)
cuts = st.integers(1, 3)


@given(before=paths, added=paths, cut=cuts)
def test_added_directories_are_where_a_table_of_the_whole_tree_has_them(
    before: list[tuple[bytes, ...]], added: list[tuple[bytes, ...]], cut: int
) -> None:
    tree: Node = {}
    for path in before:
        add(tree, path[:cut])
    table = PathTable.parse(written(tree, "<"))
    assert table.render() == (written(tree, "<"), written(tree, ">"))
    for path in added:
        node, number, block = tree, ROOT, 7
        for name in path:
            block += len(name)
            if name not in node:
                node[name] = {}
                table.add(number, name, block)
            number = table.find(number, name)
            node = node[name]
            assert table.blocks[number - 1] == block
    assert table.render() == (written(tree, "<"), written(tree, ">"))


def rows(*entries: tuple[bytes, int, int]) -> bytes:
    return b"".join(
        struct.pack("<BBIH", len(name), 0, block, parent) + name + bytes(len(name) % 2)
        for name, block, parent in entries
    )


def test_table_in_another_order_is_sorted_by_levels_and_parents() -> None:
    table = PathTable.parse(rows((b"\0", 1, 1), (b"A", 2, 1), (b"A1", 3, 2), (b"B", 4, 1), (b"A2", 5, 2)))
    assert table.names == [b"\0", b"A", b"B", b"A1", b"A2"]
    assert (table.blocks, table.parents) == ([1, 2, 4, 3, 5], [1, 1, 1, 2, 2])
    assert table.find(2, b"A2") == 5


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (b"", "does not end with an entry"),
        (rows((b"\0", 1, 1)) + b"\0\0", "does not end with an entry"),
        (rows((b"\0", 1, 1), (b"", 2, 1)), "damaged at entry 2"),
        (rows((b"\0", 1, 1), (b"A", 2, 2)), "damaged at entry 2"),
        (rows((b"\0", 1, 1), (b"A", 2, 1), (b"B", 2, 0)), "damaged at entry 3"),
        (rows((b"\0", 1, 2)), "damaged at entry 1"),
        (rows((b"\0", 1, 1), (b"ABCD", 2, 1))[:-2], "damaged at entry 2"),
        (rows((b"\0", 1, 1), *[(b"A", 2, 1)] * MAX_DIRECTORIES), f"more than {MAX_DIRECTORIES} directories"),
    ],
)
def test_damaged_table_is_refused(table: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        PathTable.parse(table)


def test_directory_that_is_absent_and_one_too_many_are_refused() -> None:
    table = PathTable.parse(rows((b"\0", 1, 1), *[(b"A", 2, 1)] * (MAX_DIRECTORIES - 1)))
    with pytest.raises(FormatError, match="lacks a directory: b'B'"):
        table.find(ROOT, b"B")
    table.add(ROOT, b"B", 3)
    with pytest.raises(FormatError, match=f"more than {MAX_DIRECTORIES} directories"):
        table.render()
