"""Checks of an ISO: which firmware boots it, and from which kind of drive."""

from __future__ import annotations

import lzma
import struct
import uuid
import zlib
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.disk.partition_types import EFI_SYSTEM
from image_service.core.formats.disk.partitions import read_partitions
from image_service.core.formats.filesystems.el_torito import read_boot_images
from image_service.core.formats.iso9660.volume import read_iso9660
from image_service.tools.doctor.boot_checks import check_boot_records, find_boot_ways
from tests.acceptance.clients import run_client
from tests.acceptance.make_sample import PACKED
from tests.acceptance.media import master
from tests.core.formats.efi_programs import build_efi_program
from tests.core.formats.filesystems.iso_builder import SECTOR, build_live_iso
from tests.core.formats.reading import fixture, reader

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BIOS = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
UEFI = "-e images/efiboot.img -no-emul-boot"
SHIM = build_efi_program(sbat=b"sbat,1,SBAT\nshim,4,UEFI shim\n", signature=b"signature")


def efi_boot_image(directory: Path, loaders: Mapping[str, bytes]) -> bytes:
    image = directory / "efiboot.img"
    run_client("mformat", "-C", "-f", "1440", "-i", image, "::")
    run_client("mmd", "-i", image, "::EFI", "::EFI/BOOT")
    for name, content in loaders.items():
        (directory / name).write_bytes(content)
        run_client("mcopy", "-i", image, directory / name, f"::EFI/BOOT/{name}")
    return image.read_bytes()


def make_iso(directory: Path, loaders: Mapping[str, bytes], options: str) -> bytes:
    files = {
        "isolinux/isolinux.bin": b"loader" * 1000,
        "images/efiboot.img": efi_boot_image(directory, loaders),
    }
    master(directory / "made.iso", files, "boot", *options.split())
    return (directory / "made.iso").read_bytes()


def check(
    image: bytes, architecture: str | None = None, volume_id: str = "boot"
) -> dict[str, tuple[str, str]]:
    outcomes = check_boot_records(find_boot_ways(reader(image), len(image)), architecture, volume_id)
    return {outcome.name: (str(outcome.status), outcome.detail) for outcome in outcomes}


def test_sample_of_the_service_is_named() -> None:
    image = lzma.decompress(PACKED.read_bytes())
    volume_id = read_iso9660(reader(image), len(image)).volume_id
    status, detail = check(image, "x86_64", volume_id)["boot-records"]
    assert (status, detail) == ("fail", "this is the sample of image-service, which has no system to boot")


@pytest.fixture
def hybrid(tmp_path: Path) -> bytes:
    """An ISO with a GPT."""
    (tmp_path / "usb").mkdir()
    efi_boot_image(tmp_path / "usb", {"BOOTX64.EFI": SHIM})
    partition = f"-append_partition 2 0xef {tmp_path}/usb/efiboot.img -appended_part_as_gpt"
    options = f"{BIOS} -eltorito-alt-boot {UEFI} -partition_offset 16 {partition}"
    return make_iso(tmp_path, {"BOOTX64.EFI": SHIM}, options)


def test_damaged_partition_table_is_a_warning(hybrid: bytes) -> None:
    status, detail = check(hybrid.replace(b"EFI PART", b"no table"), "x86_64")["boot-records"]
    assert status == "warn"
    assert detail.startswith("BIOS from CD, UEFI from CD; ")


@pytest.mark.parametrize(("first", "sectors"), [(1 << 20, 64), (64, 1 << 20)], ids=["missing", "cut"])
def test_partition_that_is_not_all_in_the_image_hides_no_other(
    hybrid: bytes, first: int, sectors: int
) -> None:
    image = with_entry(hybrid, 3, first, sectors)
    assert check(image, "x86_64")["boot-records"] == ("ok", "BIOS from CD, UEFI from CD, UEFI from USB")


def test_partition_with_the_loader_must_be_whole(hybrid: bytes) -> None:
    table = read_partitions(reader(hybrid), len(hybrid))
    assert table
    loader = next(each for each in table.partitions if each.type == EFI_SYSTEM)
    image = with_entry(hybrid, loader.number, loader.offset // 512, 1 << 20)
    status, detail = check(image, "x86_64")["boot-records"]
    assert status == "warn"
    assert detail.startswith(f"BIOS from CD, UEFI from CD; partition {loader.number} (")
    assert f"is not in the disk of {len(hybrid)} bytes" in detail


def with_entry(image: bytes, number: int, first: int, sectors: int) -> bytes:
    """Return a disk with a changed entry in its GPT."""
    disk = bytearray(image)
    entries = int.from_bytes(disk[512 + 72 : 512 + 80], "little") * 512
    count, size = struct.unpack_from("<II", disk, 512 + 80)
    entry = entries + (number - 1) * size
    kind = uuid.UUID("0FC63DAF-8483-4772-8E79-3D69D8477DE4").bytes_le
    if not any(disk[entry : entry + 16]):
        disk[entry : entry + 32] = kind + uuid.uuid4().bytes_le
    struct.pack_into("<QQ", disk, entry + 32, first, first + sectors - 1)
    struct.pack_into("<I", disk, 512 + 88, zlib.crc32(disk[entries : entries + count * size]))
    struct.pack_into("<I", disk, 512 + 16, 0)
    struct.pack_into("<I", disk, 512 + 16, zlib.crc32(disk[512 : 512 + 92]))
    return bytes(disk)


def test_signed_shim_on_cd_and_usb_is_found(hybrid: bytes) -> None:
    checks = check(hybrid, "x86_64")
    assert checks["boot-records"] == ("ok", "BIOS from CD, UEFI from CD, UEFI from USB")
    assert checks["secure-boot"] == ("ok", "a signed shim for x86_64")


@pytest.mark.parametrize(
    ("loader", "status", "detail"),
    [
        (build_efi_program(), "warn", "the loader for x86_64 has no signature"),
        (build_efi_program(signature=b"signed"), "skip", "signed, but not named shim"),
        (b"no program", "skip", "no EFI/BOOT/BOOTX64.EFI"),
    ],
    ids=["unsigned", "signed", "damaged"],
)
def test_other_loaders_are_no_shim(tmp_path: Path, loader: bytes, status: str, detail: str) -> None:
    found = check(make_iso(tmp_path, {"BOOTX64.EFI": loader}, UEFI))["secure-boot"]
    assert found[0] == status
    assert detail in found[1]


def test_uefi_alone_is_right_for_aarch64_and_a_warning_for_x86_64(tmp_path: Path) -> None:
    image = make_iso(tmp_path, {"BOOTAA64.EFI": build_efi_program(machine=0xAA64)}, UEFI)
    assert check(image, "aarch64")["boot-records"] == ("ok", "UEFI from CD")
    assert check(image, "x86_64")["boot-records"] == ("warn", "UEFI from CD; not BIOS from CD")


def test_bios_alone_is_a_warning(tmp_path: Path) -> None:
    assert check(make_iso(tmp_path, {}, BIOS))["boot-records"] == ("warn", "BIOS from CD; not UEFI from CD")


def test_image_without_boot_records_is_a_failure() -> None:
    assert check(build_live_iso())["boot-records"][0] == "fail"
    assert check(build_live_iso(), "s390x")["boot-records"][0] == "skip"


def test_damaged_catalog_is_a_failure(tmp_path: Path) -> None:
    image = bytearray(make_iso(tmp_path, {}, BIOS))
    assert read_boot_images(reader(bytes(image)), len(image))
    at = int.from_bytes(image[17 * SECTOR + 71 : 17 * SECTOR + 75], "little") * SECTOR
    image[at] = 9
    status, detail = check(bytes(image))["boot-records"]
    assert status == "fail"
    assert f"offset {at}" in detail


def test_real_live_iso_boots_in_all_ways_that_its_remains_show() -> None:
    checks = check(fixture("embed-areas-2023-07.x86_64.iso"), "x86_64")
    assert checks["boot-records"] == ("ok", "BIOS from CD, UEFI from CD, BIOS from USB")
