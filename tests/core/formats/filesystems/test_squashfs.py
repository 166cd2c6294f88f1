from __future__ import annotations

import stat
import struct
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, find_node
from image_service.core.formats.filesystems.squashfs import read_squashfs
from tests.core.formats.filesystems.file_systems import (
    FILES,
    LARGE,
    NMSTATECTL,
    label,
    make_squashfs,
    noise,
    patched,
    read_all,
    window,
    write_tree,
)

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {NMSTATECTL: b"program " * 900, "etc/hosts": b"127.0.0.1 localhost\n", "etc/tail": b"t" * 5000}
OPTIONS = [
    "-comp gzip",
    "-comp xz",
    "-comp zstd",
    "-comp gzip -b 4096",
    "-comp xz -b 1048576",
    "-comp zstd -b 1048576 -Xcompression-level 22",
    "-comp xz -b 262144 -Xbcj x86 -Xdict-size 50%",
    "-comp gzip -Xcompression-level 1 -Xwindow-size 9 -Xstrategy huffman_only",
    "-comp zstd -no-fragments",
    "-comp zstd -always-use-fragments -b 8192",
    "-comp gzip -no-duplicates -no-sparse",
    "-comp gzip -noI",
    "-comp gzip -noD -b 4096",
    "-comp gzip -noF",
    "-comp zstd -noI -noD -noF -noX",
    "-comp gzip -no-exports -no-xattrs",
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = write_tree(tmp_path_factory.mktemp("squashfs") / "tree", FILES | LARGE)
    (tree / "usr/bin/link").symlink_to("nmstatectl")
    (tree / "usr/bin/hard").hardlink_to(tree / NMSTATECTL)
    (tree / "hollow").mkdir()
    with (tree / "holes").open("wb") as file:
        file.truncate(1_000_000)
        file.seek(300_000)
        file.write(b"between holes")
    return tree


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A small uncompressed image."""
    tree = write_tree(tmp_path_factory.mktemp("squashfs") / "small", SMALL)
    (tree / NMSTATECTL).chmod(0o640)
    return make_squashfs(tree, "-comp gzip -b 4096 -nopad -noI -noD -noF -no-xattrs")


@pytest.mark.parametrize("options", OPTIONS)
def test_images_of_mksquashfs_are_read(tree: Path, options: str) -> None:
    root = read_squashfs(window(make_squashfs(tree, options)))
    assert read_all(root, FILES) == FILES
    assert find_node(root, "holes").read() == (tree / "holes").read_bytes()
    assert (
        find_node(root, "usr/bin/link").read() == find_node(root, "usr/bin/hard").read() == FILES[NMSTATECTL]
    )
    assert find_node(root, "hollow").entries() == {}
    assert [f"large/{name}" for name in find_node(root, "large").entries()] == sorted(LARGE)
    assert find_node(root, max(LARGE)).read() == LARGE[max(LARGE)]


def test_nodes_with_extended_attributes_are_read(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", SMALL | LARGE)
    (tree / "usr/bin/link").symlink_to("nmstatectl")
    label(tree)
    root = read_squashfs(window(make_squashfs(tree, "-comp gzip")))
    assert read_all(root, SMALL) == SMALL
    assert find_node(root, "usr/bin/link").read() == SMALL[NMSTATECTL]


def test_many_fragments_are_read(tmp_path: Path) -> None:
    files = {f"{number:04}": noise(3000 + number) for number in range(1050)}
    image = make_squashfs(write_tree(tmp_path / "tree", files), "-comp gzip -b 4096 -noF")
    assert int.from_bytes(image[16:20], "little") > 2 * 512  # more than two blocks of the table describe
    some = dict(list(files.items())[::40])
    assert read_all(read_squashfs(window(image)), some) == some


@pytest.mark.parametrize("compression", ["lzo", "lz4"])
def test_unsupported_compressions_are_refused_by_name(tree: Path, compression: str) -> None:
    image = make_squashfs(tree, f"-comp {compression}")
    with pytest.raises(FormatError, match=f"compressed by {compression}; gzip, xz and zstd are supported"):
        read_squashfs(window(image))


def test_nodes_have_type_and_size(plain: bytes) -> None:
    root = read_squashfs(window(plain))
    program = find_node(root, NMSTATECTL)
    assert (program.mode, program.size) == (stat.S_IFREG | 0o640, 7200)
    assert stat.S_ISDIR(root.mode)
    with pytest.raises(FileNotInImage):
        find_node(root, "usr/bin/other")


def test_only_nodes_on_the_path_are_read(tree: Path) -> None:
    image = make_squashfs(tree, "-comp gzip")
    root = read_squashfs(window(image, limit=len(FILES[NMSTATECTL])))
    assert find_node(root, NMSTATECTL).read() == FILES[NMSTATECTL]


def test_truncated_image_is_refused(plain: bytes) -> None:
    needed = int.from_bytes(plain[80:88], "little") + 8  # the rest are unread tables
    assert read_all(read_squashfs(window(plain[:needed])), SMALL) == SMALL
    for length in range(0, needed, 7):
        with pytest.raises(FormatError, match="is damaged"):
            read_all(read_squashfs(window(plain[:length])), SMALL)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (28, struct.pack("<H", 3), "version 3.0; 4.0 is supported"),
        (30, struct.pack("<H", 1), "version 4.1"),
        (12, struct.pack("<I", 4095), "blocks of 4095 bytes"),
        (12, struct.pack("<I", 2 << 20), "blocks of 2097152 bytes"),
        (20, struct.pack("<H", 7), "compressed by method 7"),
        (32, struct.pack("<Q", 2**64 - 1), r"refers to 2 bytes at offset \d+"),
        (64, struct.pack("<Q", 2**64 - 1), r"refers to 2 bytes at offset \d+"),
        (72, struct.pack("<Q", 2**63), r"refers to 2 bytes at offset \d+"),
        (80, struct.pack("<Q", 2**64 - 8), r"refers to 8 bytes at offset \d+"),
        (16, struct.pack("<I", 0), "fragment 0 of 0"),
    ],
)
def test_invalid_superblock_is_refused(plain: bytes, offset: int, value: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_all(read_squashfs(window(patched(plain, offset, value))), SMALL)


@pytest.mark.parametrize(
    ("path", "offset", "value", "message"),
    [
        (NMSTATECTL, 0, struct.pack("<H", 4), "inode of type 4"),
        (NMSTATECTL, 16, struct.pack("<I", 2**32 - 1), r"refers to \d+ bytes at offset \d+"),  # its blocks
        (NMSTATECTL, 28, struct.pack("<I", 2**32 - 1), "metadata ends"),  # its size
        (NMSTATECTL, 32, struct.pack("<I", 4097), "4097 bytes, more than 4096"),  # its first block
        (NMSTATECTL, 32, struct.pack("<I", 1 << 24 | 4095), "a block has 4095 bytes of 4096"),
        (NMSTATECTL, 32, struct.pack("<I", 0xFFFFFFFF), "bytes, more than 4096"),
        (NMSTATECTL, 32, struct.pack("<I", 4096), "its 4096 bytes cannot be decompressed"),
        ("etc/hosts", 20, struct.pack("<I", 1), "fragment 1 of 1"),
        ("etc/hosts", 24, struct.pack("<I", 1), "fragment 0 ends too soon"),
    ],
)
def test_invalid_file_is_refused(plain: bytes, path: str, offset: int, value: bytes, message: str) -> None:
    image = patched(plain, inode_of(plain, path) + offset, value)
    with pytest.raises(FormatError, match=message):
        find_node(read_squashfs(window(image)), path).read()


def test_oversized_directory_is_refused_unread(tree: Path) -> None:
    image = make_squashfs(tree, "-comp gzip -noI")
    size = struct.pack("<I", find_node(read_squashfs(window(image)), "large").size)
    at = image.index(size, int.from_bytes(image[64:72], "little"))
    for claimed, message in (
        (MAX_DIRECTORY + 3, "metadata ends"),
        (MAX_DIRECTORY + 4, f"has {MAX_DIRECTORY + 1} bytes, more than {MAX_DIRECTORY}"),
    ):
        root = read_squashfs(window(patched(image, at, struct.pack("<I", claimed))))
        with pytest.raises(FormatError, match=message):
            find_node(root, "large").entries()


@pytest.mark.parametrize("missing", [1, 10, 11, 18, 19])
def test_truncated_directory_is_refused(plain: bytes, missing: int) -> None:
    size = inode_of(plain, NMSTATECTL) + 40 + 24  # its directory's inode is the next
    shorter = struct.unpack_from("<H", plain, size)[0] - missing
    with pytest.raises(FormatError, match="a directory ends too soon"):
        find_node(read_squashfs(window(patched(plain, size, struct.pack("<H", shorter)))), NMSTATECTL)


def inode_of(plain: bytes, path: str) -> int:
    """Return the offset of the inode of a file of `SMALL`, whose sizes all differ."""
    return plain.index(struct.pack("<I", len(SMALL[path])), int.from_bytes(plain[64:72], "little")) - 28
