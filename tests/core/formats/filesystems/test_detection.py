from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.detection import FileSystem, detect_file_system
from tests.acceptance.clients import run_client
from tests.core.formats.filesystems.file_systems import make_erofs, make_squashfs, write_tree
from tests.core.formats.filesystems.iso_builder import build_iso
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from pathlib import Path

UUID = "01234567-89ab-cdef-0123-456789abcdef"
MIB = 1024 * 1024
PROGRAMS = {
    "ext2": ("ext2", 8, f"mkfs.ext4 -q -F -t ext2 -L some -U {UUID}"),
    "ext3": ("ext3", 8, f"mkfs.ext4 -q -F -t ext3 -L some -U {UUID}"),
    "ext4": ("ext4", 8, f"mkfs.ext4 -q -F -L some -U {UUID}"),
    "vfat": ("vfat", 8, "mkfs.vfat -n some -i 1234abcd"),
    "xfs": ("xfs", 512, f"mkfs.xfs -q -f -L some -m uuid={UUID}"),
    "btrfs": ("btrfs", 128, f"mkfs.btrfs -q -f -L some -U {UUID}"),
    "ntfs": ("ntfs", 8, "mkfs.ntfs -Q -q -F -L some"),
    "swap": ("swap", 8, f"mkswap -q -L some -U {UUID}"),
}


@pytest.mark.parametrize(("kind", "mebibytes", "command"), PROGRAMS.values(), ids=PROGRAMS)
def test_kind_label_and_uuid_are_those_that_blkid_prints(
    tmp_path: Path, kind: str, mebibytes: int, command: str
) -> None:
    image = tmp_path / "image"
    image.touch()
    os.truncate(image, mebibytes * MIB)
    program, *options = command.split()
    run_client(program, *options, image)
    told = dict(
        line.split("=", 1) for line in run_client("blkid", "-p", "-o", "export", image).decode().splitlines()
    )

    with image.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        found = detect_file_system(read_at, mebibytes * MIB)

    assert found
    assert (found.kind, kind, found.uuid) == (told["TYPE"], kind, told["UUID"])
    assert found.label == told["LABEL"]
    assert (found.root is not None) == (kind in {"ext2", "ext3", "ext4", "vfat"})


def detect(image: bytes) -> FileSystem | None:
    return detect_file_system(reader(image), len(image))


def test_read_only_file_systems_have_a_root(tmp_path: Path) -> None:
    tree = write_tree(tmp_path / "tree", {"file": b"content"})

    for kind, image in (
        ("squashfs", make_squashfs(tree, "-comp gzip")),
        ("erofs", make_erofs(tree, f"-U {UUID}")),
    ):
        found = detect(image)
        assert found
        assert found.root
        assert (found.kind, found.root.entries()["file"]().read()) == (kind, b"content")
        assert found.uuid == ("" if kind == "squashfs" else UUID)


def test_iso_has_its_volume_identifier() -> None:
    found = detect(build_iso({"file": b"content"}, volume_id="some-volume"))

    assert found
    assert (found.kind, found.label) == ("iso9660", "some-volume")


def test_encrypted_and_physical_volumes_are_named() -> None:
    luks = b"LUKS\xba\xbe\x00\x02".ljust(24, b"\0") + b"some".ljust(144, b"\0") + UUID.encode()
    lvm = bytes(512) + b"LABELONE".ljust(24, b"\0") + b"LVM2 001" + b"0123456789abcdefghijklmnopqrstuv"

    assert detect(luks.ljust(MIB, b"\0")) == FileSystemLike("crypto_LUKS", "some", UUID)
    assert detect(lvm.ljust(MIB, b"\0")) == FileSystemLike(
        "LVM2_member", "", "012345-6789-abcd-efgh-ijkl-mnop-qrstuv"
    )
    assert detect(b"\xeb\x52\x90-FVE-FS-".ljust(MIB, b"\0")) == FileSystemLike("BitLocker", "", "")


class FileSystemLike:
    """Equals a file system of its properties."""

    def __init__(self, kind: str, label: str, identifier: str) -> None:
        self._properties = kind, label, identifier

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, FileSystem)
        return (other.kind, other.label, other.uuid) == self._properties

    def __hash__(self) -> int:
        return hash(self._properties)


@pytest.mark.parametrize("size", [0, 1, 511, 512, 1024, 4096, 40_000, MIB])
def test_zeros_of_any_size_are_no_file_system(size: int) -> None:
    assert detect(bytes(size)) is None


MAGICS = [
    (0, b"XFSB"),
    (0, b"hsqs"),
    (3, b"NTFS    "),
    (1024, b"\xe2\xe1\xf5\xe0"),
    (1080, b"\x53\xef"),
    (4086, b"SWAPSPACE2"),
    (32769, b"CD001"),
    (65600, b"_BHRfS_M"),
    (0, b"LUKS\xba\xbe"),
    (510, b"\x55\xaa"),
]


@given(st.sampled_from(MAGICS), st.binary(max_size=2000), st.integers(0, 70_000), st.integers(0, 1_500))
def test_any_volume_with_a_magic_is_described_or_damaged(
    magic: tuple[int, bytes], noise: bytes, size: int, start: int
) -> None:
    image = bytearray(max(size, 1500) + len(noise))
    image[start : start + len(noise)] = noise
    offset, data = magic
    image[offset : offset + len(data)] = data
    try:
        found = detect(bytes(image))
    except FormatError:
        return
    assert found is None or found.kind
    if found and found.uuid.count("-") == 4:
        assert str(uuid.UUID(found.uuid)) == found.uuid
