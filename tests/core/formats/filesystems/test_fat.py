from __future__ import annotations

import stat
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.filesystems.fat import Fat, read_fat
from image_service.core.formats.filesystems.file_tree import find_node
from image_service.core.formats.reading import Span, SpanReader
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.ext4_images import list_nodes
from tests.core.formats.filesystems.file_systems import noise, write_tree
from tests.core.formats.reading import MeteredReader

if TYPE_CHECKING:
    from pathlib import Path

FILES = {
    "EFI/BOOT/BOOTX64.EFI": noise(100_000),
    "EFI/fedora/shimx64.efi": noise(5_000),
    "EFI/Boot Entries/a long name with blanks \N{LATIN SMALL LETTER A WITH DIAERESIS}.conf": b"long",
    "lower.txt": b"lower",
    "MiXed.TxT": b"mixed",
    "UPPER.TXT": b"",
    "NOEXT": b"1",
    "sizes/511": noise(511),
    "sizes/512": noise(512),
    "sizes/2048": noise(2048),
    "sizes/2049": noise(2049),
    **{f"many/file-with-a-long-name-{number}.efi": b"%d" % number for number in range(150)},
}
KINDS = {
    "FAT12": ("-F 12", 4096),
    "FAT16": ("-F 16 -s 4", 32768),
    "FAT32": ("-F 32", 40960),
    "FAT32 with large clusters": ("-F 32 -s 8", 300_000),
    "FAT16 of 4096-byte sectors": ("-F 16 -S 4096 -s 1", 32768),
    "automatic": ("", 16384),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("fat") / "tree", FILES)


def make_fat(directory: Path, tree: Path, options: str, kibibytes: int) -> bytes:
    image = directory / "fat.img"
    run_client("mkfs.vfat", "-C", "-i", "1234abcd", *options.split(), image, str(kibibytes))
    run_client("mcopy", "-s", "-Q", "-i", image, *sorted(tree.iterdir()), "::")
    return image.read_bytes()


def open_fat(image: bytes, limit: int = 1 << 40) -> Fat:
    return read_fat(SpanReader(MeteredReader(image, limit), Span("fat", 0, len(image))), len(image))


@pytest.mark.parametrize(("options", "kibibytes"), KINDS.values(), ids=KINDS)
def test_all_files_are_those_of_the_tree(tmp_path: Path, tree: Path, options: str, kibibytes: int) -> None:
    fat = open_fat(make_fat(tmp_path, tree, options, kibibytes))

    found = list_nodes(fat.root)

    assert {name: content for name, content in found.items() if content is not None} == FILES
    assert fat.uuid == "1234-ABCD"
    if options:
        assert f"-F {fat.bits}" in options


def test_label_is_that_of_the_root_directory(tmp_path: Path, tree: Path) -> None:
    assert open_fat(make_fat(tmp_path, tree, "-n EFI-SYSTEM", 4096)).label == "EFI-SYSTEM"
    run_client("mlabel", "-i", tmp_path / "fat.img", "::OTHER")
    assert open_fat((tmp_path / "fat.img").read_bytes()).label == "OTHER"
    (tmp_path / "fat.img").unlink()
    assert open_fat(make_fat(tmp_path, tree, "", 4096)).label == ""


def test_names_are_found_in_any_case(tmp_path: Path, tree: Path) -> None:
    root = open_fat(make_fat(tmp_path, tree, "", 4096)).root

    assert find_node(root, "efi/Boot/bootx64.efi").read() == FILES["EFI/BOOT/BOOTX64.EFI"]
    assert stat.S_ISDIR(find_node(root, "EFI").mode)
    with pytest.raises(FileNotInImage):
        find_node(root, "EFI/none")


def test_parts_of_a_file_are_right(tmp_path: Path, tree: Path) -> None:
    node = open_fat(make_fat(tmp_path, tree, "-F 12 -s 1", 1024)).root.entries()["EFI"]()
    loader = node.entries()["BOOT"]().entries()["BOOTX64.EFI"]()

    for start, length in ((0, 0), (0, 1), (511, 2), (512, 512), (70_001, 9_999), (99_999, 1), (100_000, 0)):
        assert loader.read_part(start, length) == FILES["EFI/BOOT/BOOTX64.EFI"][start : start + length]
    with pytest.raises(FormatError):
        loader.read_part(99_999, 2)


def test_deleted_files_are_not_listed(tmp_path: Path, tree: Path) -> None:
    make_fat(tmp_path, tree, "", 4096)
    run_client("mdel", "-i", tmp_path / "fat.img", "::MiXed.TxT")

    assert "MiXed.TxT" not in open_fat((tmp_path / "fat.img").read_bytes()).root.entries()


def test_cycle_of_clusters_is_refused(tmp_path: Path, tree: Path) -> None:
    image = bytearray(make_fat(tmp_path, tree, "-F 32", 40960))
    root = 32 * 512 + 4 * 2  # after the reserved sectors: the entry of the root's cluster
    struct.pack_into("<I", image, root, 2)

    with pytest.raises(FormatError, match="more than 1048576 bytes"):
        open_fat(bytes(image), 1 << 24)


@pytest.mark.parametrize("offset", [11, 13, 14, 16, 510])
def test_other_boot_sectors_are_refused(tmp_path: Path, tree: Path, offset: int) -> None:
    image = bytearray(make_fat(tmp_path, tree, "", 4096))
    image[offset : offset + 2] = b"\x77\x77"

    with pytest.raises(FormatError, match="FAT"):
        open_fat(bytes(image))


def test_truncated_file_system_is_refused(tmp_path: Path, tree: Path) -> None:
    with pytest.raises(FormatError, match="incomplete"):
        open_fat(make_fat(tmp_path, tree, "", 4096)[:1_000_000])


@pytest.mark.parametrize("bits", [12, 16, 32])
def test_altered_bytes_are_read_or_refused(tmp_path: Path, bits: int) -> None:
    tree = write_tree(tmp_path / "tree", {"EFI/BOOT/BOOTX64.EFI": bytes(5000), "a long name": b""})
    image = make_fat(tmp_path, tree, f"-F {bits} -s 1", {12: 512, 16: 4096, 32: 40960}[bits])
    used = [offset for offset, byte in enumerate(image) if byte]

    @given(st.sampled_from(used), st.binary(min_size=1, max_size=4))
    def alter(position: int, data: bytes) -> None:
        meter = MeteredReader(image, 1 << 23)

        def read_at(offset: int, length: int) -> bytes:
            block = bytearray(meter(offset, length))
            for index, byte in enumerate(data, start=position - offset):
                if 0 <= index < len(block):
                    block[index] = byte
            return bytes(block)

        try:
            root = read_fat(SpanReader(read_at, Span("fat", 0, len(image))), len(image)).root
            node = find_node(root, "EFI/BOOT/BOOTX64.EFI")
            assert len(node.read_part(0, min(node.size, 50_000))) <= 50_000  # type: ignore[attr-defined]
        except (FormatError, FileNotInImage):
            pass

    alter()
