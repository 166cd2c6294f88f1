from __future__ import annotations

import stat
import struct
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.erofs import ErofsNode, read_erofs
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, find_node
from tests.acceptance.clients import needs_client
from tests.core.formats.filesystems.file_systems import (
    DEPLOYMENT,
    FILES,
    LARGE,
    NMSTATECTL,
    OSTREE_FILES,
    erofs_fixture,
    label,
    make_erofs,
    noise,
    patched,
    read_all,
    window,
    write_tree,
)

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = [
    "",
    "-Enoinline_data",
    "-Eforce-inode-compact",
    "-Eforce-inode-extended",
    "-zlz4",
    "-zlz4hc,12",
    "-zlz4 -C8192",
    "-zlz4hc -C65536",
    "-zlz4hc -C1048576",
    "-zlz4 -x-1",
    "-zlz4hc -Eforce-inode-compact -C16384",
    "-zlz4hc --max-extent-bytes=65536",
]
NEWER_OPTIONS = [
    "-zlzma",
    "-zlzma,level=6 -Efragments -C1048576",
    "-zlzma,level=6 -Efragments -C16384",
    "-zlzma,level=6 -Eall-fragments,fragdedupe=inode -C1048576",
    "-zlzma,level=6 -Eall-fragments,fragdedupe=inode -C16384",
    "-zlzma,dictsize=8192 -b1024",
    "-zlzma -Elegacy-compress,fragments -C16384",
    "-zlz4hc:lzma -Efragments -C32768",
    "-zlz4hc -Efragments",
    "-zlz4hc -Eall-fragments -b512",
    "-Eall-fragments -zlz4 -C65536",
]
SUPERBLOCK, HEADER = 1024, 32  # of the index, from the inode on
PROGRAM = OSTREE_FILES[f"{DEPLOYMENT}/{NMSTATECTL}"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = write_tree(tmp_path_factory.mktemp("erofs") / "tree", FILES | LARGE)
    (tree / "usr/bin/link").symlink_to("nmstatectl")
    (tree / "usr/bin/hard").hardlink_to(tree / NMSTATECTL)
    (tree / "hollow").mkdir()
    return tree


def program(image: bytes) -> ErofsNode:
    node = find_node(read_erofs(window(image)), f"{DEPLOYMENT}/{NMSTATECTL}")
    assert isinstance(node, ErofsNode)
    return node


def assert_read(image: bytes) -> None:
    root = read_erofs(window(image))
    assert read_all(root, FILES) == FILES
    assert (
        find_node(root, "usr/bin/link").read() == find_node(root, "usr/bin/hard").read() == FILES[NMSTATECTL]
    )
    assert find_node(root, "hollow").entries() == {}
    assert {f"large/{name}" for name in find_node(root, "large").entries()} == set(LARGE)
    assert find_node(root, max(LARGE)).read() == LARGE[max(LARGE)]


@pytest.mark.parametrize("options", OPTIONS)
def test_images_of_mkfs_erofs_are_read(tree: Path, options: str) -> None:
    assert_read(make_erofs(tree, options))


@pytest.mark.parametrize("options", NEWER_OPTIONS)
def test_images_of_newer_mkfs_erofs_are_read(tree: Path, options: str) -> None:
    tell = [needs_client("mkfs.erofs"), "--help"]
    if "lzma" not in subprocess.run(tell, check=True, capture_output=True, text=True).stdout:
        pytest.skip("this mkfs.erofs knows no LZMA, as of before 1.8")
    assert_read(make_erofs(tree, options))


@pytest.mark.parametrize("options", ["-zlz4 -x1000", "-zlz4 -x1", "-x1000"])
def test_nodes_with_extended_attributes_are_read(tmp_path: Path, options: str) -> None:
    """They precede the content or the index: all of them or, where nodes share them, their numbers."""
    tree = write_tree(tmp_path / "tree", FILES | LARGE)
    (tree / "usr/bin/link").symlink_to("nmstatectl")
    (tree / "usr/bin/hard").hardlink_to(tree / NMSTATECTL)
    (tree / "hollow").mkdir()
    label(tree)
    assert_read(make_erofs(tree, options))


@pytest.mark.parametrize("name", ["fragments", "all-fragments"])
def test_layout_of_coreos_is_read(name: str) -> None:
    assert read_all(read_erofs(window(erofs_fixture(name))), OSTREE_FILES) == OSTREE_FILES


@given(
    name=st.sampled_from(["fragments", "all-fragments"]),
    start=st.integers(0, len(PROGRAM)),
    length=st.integers(0, len(PROGRAM)),
)
def test_parts_of_compressed_files_equal_slices_of_the_whole(name: str, start: int, length: int) -> None:
    length = min(length, len(PROGRAM) - start)
    assert program(erofs_fixture(name)).read_part(start, length) == PROGRAM[start : start + length]


def test_parts_of_plain_files_equal_slices_of_the_whole(tree: Path) -> None:
    file, content = find_node(read_erofs(window(make_erofs(tree, ""))), NMSTATECTL), FILES[NMSTATECTL]
    assert isinstance(file, ErofsNode)
    edges = [0, 1, 4095, 4096, 4097, len(content) // 4096 * 4096, len(content) - 1, len(content)]
    for start in edges:
        for stop in filter(start.__le__, edges):
            assert file.read_part(start, stop - start) == content[start:stop]


def test_nodes_have_type_and_size() -> None:
    root = read_erofs(window(erofs_fixture("fragments")))
    file = find_node(root, f"{DEPLOYMENT}/{NMSTATECTL}")
    assert (file.mode, file.size) == (stat.S_IFREG | 0o644, len(PROGRAM))
    assert stat.S_ISDIR(root.mode)
    with pytest.raises(FileNotInImage):
        find_node(root, "usr/bin/other")


def test_only_nodes_on_the_path_are_read(tree: Path) -> None:
    root = read_erofs(window(make_erofs(tree, "-zlz4hc"), limit=len(FILES[NMSTATECTL])))
    assert find_node(root, NMSTATECTL).read() == FILES[NMSTATECTL]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-zlz4 -Eztailpacking", r"ends after the index \(ztailpacking\) \(feature 0x10\)"),
        ("--chunksize=65536", r"files in chunks \(feature 0x4\)"),
    ],
)
def test_unsupported_features_are_refused_by_name(tree: Path, options: str, message: str) -> None:
    with pytest.raises(FormatError, match=f"{message}, which is not supported"):
        assert_read(make_erofs(tree, options))


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (0x8, "several devices or a second compression"),
        (0x80, "48-bit addresses"),
        (0x100, "metabox"),
        (0x80000000, "an unknown feature"),
    ],
)
def test_unknown_features_are_refused(feature: int, message: str) -> None:
    image = erofs_fixture("fragments")
    features = struct.unpack_from("<I", image, SUPERBLOCK + 80)[0] | feature
    with pytest.raises(FormatError, match=f"{message}.* \\(feature {feature:#x}\\)"):
        read_erofs(window(patched(image, SUPERBLOCK + 80, struct.pack("<I", features))))


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (12, b"\x08", "blocks have 2^8 bytes"),
        (12, b"\x11", "blocks have 2^17 bytes"),
        (13, b"\xff", r"refers to|LZMA dictionary of"),
        (14, b"\xff\xff", "refers to"),
        (40, b"\xff\xff\xff\xff", "refers to"),
        (80, b"\x22\0\0\0", "padding after them"),
        (80, b"\x21\0\0\0", "compressed by LZMA"),
        (80, b"\x03\0\0\0", "packed inode"),
        (84, b"\0\0", "compressed by LZMA"),
        (130, struct.pack("<I", 8 * 1024 * 1024 + 1), "LZMA dictionary of 8388609 bytes, more than 8388608"),
        (96, b"\xff" * 8, "refers to"),
    ],
)
def test_invalid_superblock_is_refused(offset: int, value: bytes, message: str) -> None:
    image = patched(erofs_fixture("fragments"), SUPERBLOCK + offset, value)
    with pytest.raises(FormatError, match=message.replace("^", "\\^")):
        program(image).read()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (0, struct.pack("<H", 4 << 1), "layout 4, which is not supported"),
        (0, struct.pack("<H", 0xFFFE), "layout 32767"),
        (2, b"\xff\xff", "is damaged|not read"),
        (8, struct.pack("<I", 0xFFFFFFFF), "is damaged"),
        (HEADER + 4, struct.pack("<H", 0x40), "flags 0x40"),
        (HEADER + 4, struct.pack("<H", 8), "flags 0x8"),
        (HEADER + 6, b"\x02", "compressed by deflate"),
        (HEADER + 6, b"\x03", "compressed by zstd"),
        (HEADER + 6, b"\x0f", "compressed by method 15"),
        (HEADER + 7, b"\x01", "clusters 0x1"),
        (HEADER + 0, b"\xff\xff\xff\xff", "has none at 4294974"),
        (HEADER + 7, b"\x80", "has none at"),
    ],
)
def test_invalid_file_is_refused(offset: int, value: bytes, message: str) -> None:
    image = erofs_fixture("fragments")
    damaged = patched(image, inode_of(image, f"{DEPLOYMENT}/usr/bin", "nmstatectl") + offset, value)
    with pytest.raises(FormatError, match=message):
        program(damaged).read()


def test_inodes_may_start_in_any_block() -> None:
    image = erofs_fixture("fragments")
    there = patched(image, SUPERBLOCK + 40, struct.pack("<I", len(image) // 4096))
    settings = SUPERBLOCK + 128 + 16
    assert program(patched(there, settings, bytes(4096 - settings)) + image).read() == PROGRAM


def test_compressed_file_may_be_empty() -> None:
    image = erofs_fixture("fragments")
    inode = inode_of(image, f"{DEPLOYMENT}/usr/bin", "nmstatectl")
    assert program(patched(image, inode + 8, bytes(4))).read() == b""


def test_extent_with_more_blocks_than_content_is_refused(tmp_path: Path) -> None:
    words = b"".join(b"%07d " % value for value in noise(30_000))
    tree = write_tree(tmp_path / "tree", {"usr/words": words})
    image = make_erofs(tree, "-zlz4 -C65536 -Eforce-inode-compact")
    assert find_node(read_erofs(window(image)), "usr/words").read() == words
    shorter = patched(image, inode_of(image, "usr", "words") + 8, struct.pack("<I", 5000))
    with pytest.raises(FormatError, match="5000 bytes are in 16 blocks"):
        find_node(read_erofs(window(shorter)), "usr/words").read()


def test_packed_node_that_refers_to_itself_is_refused() -> None:
    image = erofs_fixture("all-fragments")
    inode = inode_of(image, f"{DEPLOYMENT}/usr/bin", "nmstatectl")
    looped = patched(image, inode + HEADER, struct.pack("<Q", 1 << 63))
    looped = patched(looped, SUPERBLOCK + 96, struct.pack("<Q", inode // 32))
    with pytest.raises(FormatError, match="packed inode"):
        program(looped).read()


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (8, b"\0\0", "first name is at offset 0"),
        (8, b"\x0d\0", "first name is at offset 13"),
        (8, b"\xfc\xff", "first name is at offset 65532"),
        (24, b"\xff" * 8, "refers to"),  # the entry after . and ..
    ],
)
def test_damaged_directory_raises_format_error(offset: int, value: bytes, message: str) -> None:
    image = erofs_fixture("fragments")
    inode = inode_of(image, f"{DEPLOYMENT}/usr", "bin")
    damaged = patched(image, inode + 32 + offset, value)  # the few entries follow the inode
    with pytest.raises(FormatError, match=message):
        [
            entry()
            for entry in find_node(read_erofs(window(damaged)), f"{DEPLOYMENT}/usr/bin").entries().values()
        ]


def test_oversized_directory_is_refused_unread() -> None:
    image = erofs_fixture("fragments")
    inode = inode_of(image, f"{DEPLOYMENT}/usr", "bin")
    for size, message in ((MAX_DIRECTORY, "refers to"), (MAX_DIRECTORY + 1, f"more than {MAX_DIRECTORY}")):
        large = patched(image, inode + 8, struct.pack("<I", size))
        with pytest.raises(FormatError, match=message):
            program(large)


def inode_of(image: bytes, directory: str, name: str) -> int:
    """Return the offset of an inode, in an image whose inodes start at block 0."""
    entry = find_node(read_erofs(window(image)), directory).entries()[name]
    assert isinstance(entry, partial)
    return int(entry.args[0]) * 32
