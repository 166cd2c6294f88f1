from __future__ import annotations

import re
import struct
import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.crc32c import update_crc32c
from image_service.core.formats.filesystems.ext4 import Ext4, read_ext4
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, MAX_READ, find_node
from image_service.core.formats.reading import Span, SpanReader
from tests.acceptance.clients import needs_client, run_client
from tests.core.formats.filesystems.ext4_images import RHCOS, UUID, list_nodes, list_tree, make_ext, make_tree
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from pathlib import Path

FEATURES = {
    "rhcos": RHCOS,
    "defaults": "-t ext4",
    "1 KiB blocks": "-t ext4 -b 1024 -O metadata_csum,64bit",
    "2 KiB blocks": "-t ext4 -b 2048",
    "64 KiB blocks": "-t ext4 -b 65536 -O metadata_csum,^has_journal -N 1000",
    "ext2": "-t ext2 -b 1024",
    "ext3": "-t ext3 -b 1024",
    "small inodes": "-t ext4 -I 128 -O metadata_csum",
    "large inodes": "-t ext4 -I 1024 -O metadata_csum",
    "inline data": "-t ext4 -O inline_data,metadata_csum",
    "inline data, large inodes": "-t ext4 -O inline_data -I 512",
    "block maps with checksums": "-t ext4 -O ^extent,^64bit,metadata_csum",
    "bigalloc": "-t ext4 -O bigalloc -C 16384",
    "bigalloc, 1 KiB blocks": "-t ext4 -O bigalloc,metadata_csum -b 1024 -C 8192",
    "meta_bg": "-t ext4 -O meta_bg,^resize_inode,metadata_csum -b 1024 -g 1024",
    "meta_bg, all backups": "-t ext4 -O meta_bg,^resize_inode,^sparse_super -b 1024 -g 1024",
    "sparse_super2": "-t ext4 -O meta_bg,^resize_inode,sparse_super2 -b 1024 -g 512",
    "many groups": "-t ext4 -O ^flex_bg,metadata_csum -b 1024 -g 1024",
    "seed": "-t ext4 -O metadata_csum_seed,metadata_csum",
    "casefold, encrypt, verity": "-t ext4 -O casefold,encrypt,verity,ea_inode,large_dir,project,quota",
    "uninit_bg": "-t ext4 -O ^metadata_csum,uninit_bg",
    "no filetype": "-t ext2 -O ^filetype -b 1024",
    "revision 0": "-t ext2 -r 0 -O none -b 1024",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tree(tmp_path_factory.mktemp("ext4"))


@pytest.fixture(scope="module")
def rhcos(tree: Path) -> bytes:
    return make_ext(tree.parent, tree, RHCOS)


def open_ext(image: bytes, limit: int = 1 << 40) -> Ext4:
    reader = SpanReader(MeteredReader(image, limit), Span("ext4", 0, len(image)))
    return read_ext4(reader, len(image))


@pytest.mark.parametrize("options", FEATURES.values(), ids=FEATURES)
def test_all_files_are_those_of_the_tree(tmp_path: Path, tree: Path, options: str) -> None:
    system = open_ext(make_ext(tmp_path, tree, options, "64M" if "65536" in options else "16M"))

    assert list_nodes(system.root) == list_tree(tree)


def test_properties_are_those_that_dumpe2fs_names(tmp_path: Path, tree: Path) -> None:
    system = open_ext(make_ext(tmp_path, tree, RHCOS))
    told = run_client("dumpe2fs", "-h", tmp_path / "ext.img").decode()

    (features,) = re.findall(r"Filesystem features: +(.*)", told)
    assert system.features == set(features.split())
    assert (system.label, system.uuid, system.block_size) == ("boot", UUID, 4096)
    assert system.superblock.kind == "ext4"
    assert not system.needs_recovery


@pytest.mark.parametrize("kind", ["ext2", "ext3", "ext4"])
def test_kind_is_told(tmp_path: Path, tree: Path, kind: str) -> None:
    assert open_ext(make_ext(tmp_path, tree, f"-t {kind}")).superblock.kind == kind


@pytest.mark.parametrize("options", [RHCOS, "-t ext4 -b 1024", "-t ext3 -b 1024"])
def test_indexed_directories_have_all_names(tmp_path: Path, options: str) -> None:
    tree = tmp_path / "tree"
    (tree / "many").mkdir(parents=True)
    for number in range(1600):  # of blocks of 1,024 bytes, the index has two levels
        (tree / "many" / f"{'name' * 20}{number}").touch()
    make_ext(tmp_path, tree, f"{options} -N 4000")
    needs_client("e2fsck")
    run_client("sh", "-c", f"e2fsck -fyD {tmp_path / 'ext.img'}; test $? -le 1")
    told = run_client("debugfs", "-R", "htree_dump /many", tmp_path / "ext.img").decode()
    assert f"Indirect levels: {int('-b 1024' in options)}" in told

    system = open_ext((tmp_path / "ext.img").read_bytes())

    assert list_nodes(system.root) == list_tree(tree)


@pytest.mark.parametrize("options", ["-t ext4 -b 1024 -O metadata_csum", "-t ext2 -b 1024"])
def test_parts_of_a_scattered_file_are_right(tmp_path: Path, options: str) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    content = bytearray(3_000_000)
    with (tree / "file").open("wb") as file:  # every third block is stored: the extents need several levels
        for number in range(0, 2900, 3):
            data = struct.pack("<I", number + 1) * 256
            content[number * 1024 : (number + 1) * 1024] = data
            file.seek(number * 1024)
            file.write(data)
        file.truncate(len(content))
    node = find_node(open_ext(make_ext(tmp_path, tree, options)).root, "file")

    assert node.read() == content
    places = [0, 1, 1023, 1024, 1025, 12 * 1024, 268 * 1024 - 1, 1_500_000, 2_999_999, 3_000_000]
    for start, stop in pairwise(places):
        assert node.read_part(start, stop - start) == content[start:stop]  # type: ignore[attr-defined]
    with pytest.raises(FormatError, match="none at 3000001"):
        node.read_part(1, 3_000_000)  # type: ignore[attr-defined]


def test_symlinks_are_resolved_and_missing_files_named(rhcos: bytes) -> None:
    root = open_ext(rhcos).root

    for path in ("loader/entries/ostree-1.conf", "slow/entries/ostree-1.conf"):
        assert find_node(root, path).read() == b"title CoreOS\n"
    with pytest.raises(FileNotInImage):
        find_node(root, "loader/none")


def test_small_files_read_few_bytes(rhcos: bytes) -> None:
    assert find_node(open_ext(rhcos, 100_000).root, "loader/entries/ostree-1.conf").read()


def with_superblock(image: bytes, offset: int, data: bytes) -> bytes:
    """Return an image with other bytes in its superblock, and the right checksum."""
    block = bytearray(image[1024:2048])
    block[offset : offset + len(data)] = data
    block[1020:] = struct.pack("<I", update_crc32c(0xFFFFFFFF, bytes(block[:1020])))
    return image[:1024] + block + image[2048:]


def test_needed_recovery_is_told(rhcos: bytes) -> None:
    (readers,) = struct.unpack_from("<I", rhcos, 1024 + 96)

    assert open_ext(with_superblock(rhcos, 96, struct.pack("<I", readers | 4))).needs_recovery


@pytest.mark.parametrize(
    ("bit", "name"), [(0x01, "compression"), (0x08, "journal_dev"), (1 << 30, "FEATURE_I30")]
)
def test_features_without_support_are_refused(rhcos: bytes, bit: int, name: str) -> None:
    (readers,) = struct.unpack_from("<I", rhcos, 1024 + 96)

    with pytest.raises(FormatError, match=name):
        open_ext(with_superblock(rhcos, 96, struct.pack("<I", readers | bit)))


@pytest.mark.parametrize(
    ("offset", "data"),
    [
        (4, b"\xff\xff\xff\xff"),  # blocks
        (24, b"\x07"),  # block size
        (24, b"\xff\xff\xff\xff"),
        (32, bytes(4)),  # blocks of a group
        (40, bytes(4)),  # inodes of a group
        (88, b"\x00\x00"),  # bytes of an inode
        (88, b"\x00\x80"),
        (254, b"\x00\x00"),  # bytes of a group descriptor
        (254, b"\x60\x00"),
    ],
)
def test_impossible_sizes_are_refused(rhcos: bytes, offset: int, data: bytes) -> None:
    with pytest.raises(FormatError, match="ext4 file system"):
        open_ext(with_superblock(rhcos, offset, data))


def test_truncated_file_system_is_refused(rhcos: bytes) -> None:
    with pytest.raises(FormatError, match="incomplete: 1048576 of 16777216 bytes"):
        open_ext(rhcos[: 1 << 20])


def test_huge_sizes_are_refused_before_anything_is_allocated(tmp_path: Path, tree: Path) -> None:
    make_ext(tmp_path, tree, "-t ext4 -O ^metadata_csum")
    for command in ("sif short size 0x3fffffffffff", "sif many size 0x7fffff00"):
        run_client("debugfs", "-w", "-R", command, tmp_path / "ext.img")
    root = open_ext((tmp_path / "ext.img").read_bytes()).root

    tracemalloc.start()
    with pytest.raises(FormatError, match=str(MAX_READ)):
        find_node(root, "short").read()
    with pytest.raises(FormatError, match=str(MAX_DIRECTORY)):
        find_node(root, "many").entries()
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def used_bytes(image: bytes) -> list[int]:
    """Return the offsets of metadata and data that are not zeros."""
    return [offset for offset, byte in enumerate(image) if byte]


def test_altered_metadata_with_checksums_are_refused_or_have_no_effect(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "directory").mkdir(parents=True)
    (tree / "directory" / "file").write_bytes(bytes(5000))
    (tree / "symlink").symlink_to("directory/file")
    image = make_ext(tmp_path, tree, "-t ext4 -b 1024 -O metadata_csum,64bit,^has_journal -N 64", "1M")
    expected, used = list_tree(tree), used_bytes(image)

    @given(st.sampled_from(used), st.integers(1, 255))
    def alter(position: int, mask: int) -> None:
        altered = bytearray(image)
        altered[position] ^= mask
        try:
            found = list_nodes(open_ext(bytes(altered), 1 << 24).root)
        except FormatError:
            return
        assert found == expected

    alter()


@pytest.mark.parametrize("options", ["-t ext2 -b 1024", "-t ext4 -b 1024 -O inline_data,^metadata_csum"])
def test_altered_metadata_without_checksums_are_read_or_refused(tmp_path: Path, options: str) -> None:
    tree = tmp_path / "tree"
    (tree / "directory").mkdir(parents=True)
    (tree / "directory" / "file").write_bytes(bytes(5000))
    (tree / "symlink").symlink_to("directory/file")
    image = make_ext(tmp_path, tree, f"{options} -N 64", "1M")
    used = used_bytes(image)

    @given(st.sampled_from(used), st.binary(min_size=1, max_size=4))
    def alter(position: int, data: bytes) -> None:
        altered = bytearray(image)
        altered[position : position + len(data)] = data
        try:
            root = open_ext(bytes(altered[: len(image)]), 1 << 24).root
            for path in ("directory/file", "symlink"):
                node = find_node(root, path)
                assert len(node.read_part(0, min(node.size, 100_000))) <= 100_000  # type: ignore[attr-defined]
        except (FormatError, FileNotInImage):
            pass

    alter()
