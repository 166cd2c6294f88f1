from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.filesystems.el_torito import BIOS, EFI, BootImageEntry, read_boot_images
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.iso9660.volume import read_iso9660
from tests.acceptance.media import master
from tests.core.formats.filesystems.iso_builder import build_iso
from tests.core.formats.reading import MeteredReader, reader

if TYPE_CHECKING:
    from pathlib import Path

BOOT_RECORD = 17 * SECTOR
CATALOG = 19
SIZE = 64 * SECTOR


def validation(platform: int) -> bytes:
    entry = bytearray(struct.pack("<BB28xH", 1, platform, 0xAA55))
    total = sum(struct.unpack("<16H", entry))
    entry[28:30] = struct.pack("<H", -total & 0xFFFF)
    return bytes(entry)


def entry(first: int, sectors: int, indicator: int = 0x88, media: int = 0) -> bytes:
    return struct.pack("<BB4xHI20x", indicator, media, sectors, first)


def iso_with_catalog(*entries: bytes) -> bytes:
    image = bytearray(SIZE)
    record = b"\0CD001\x01EL TORITO SPECIFICATION".ljust(71, b"\0") + struct.pack("<I", CATALOG)
    image[BOOT_RECORD : BOOT_RECORD + len(record)] = record
    catalog = b"".join(entries)
    image[CATALOG * SECTOR : CATALOG * SECTOR + len(catalog)] = catalog
    return bytes(image)


def read(image: bytes) -> tuple[BootImageEntry, ...]:
    return read_boot_images(reader(image), len(image))


def test_boot_images_of_an_iso_by_xorriso_are_its_files(tmp_path: Path) -> None:
    files = {"isolinux/isolinux.bin": b"loader" * 2000, "images/efiboot.img": b"fat " * 3000}
    options = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4"
    uefi = "-eltorito-alt-boot -e images/efiboot.img -no-emul-boot"
    master(tmp_path / "a.iso", files, "BOOT", *options.split(), *uefi.split())
    image = (tmp_path / "a.iso").read_bytes()
    iso = read_iso9660(reader(image), len(image))
    bios, efi = read(image)
    assert (bios.platform, bios.bootable) == (BIOS, True)
    assert (bios.offset, bios.length) == (iso.find_file("isolinux/isolinux.bin").offset, 4 * 512)
    assert (efi.platform, efi.bootable) == (EFI, True)
    assert efi.offset == iso.find_file("images/efiboot.img").offset
    assert 12_000 <= efi.length <= 12_288


def test_iso_without_boot_record_has_no_boot_images() -> None:
    assert read(build_iso({"a": b"1"})) == ()
    assert read(b"short") == ()


def test_sections_extensions_and_entries_that_cannot_be_booted_are_read() -> None:
    image = iso_with_catalog(
        validation(BIOS),
        entry(20, 4),
        struct.pack("<BBH28x", 0x90, 1, 1),
        entry(21, 8, indicator=0),
        struct.pack("<BBH28x", 0x91, EFI, 1),
        entry(22, 0, media=0x20),
        b"\x44".ljust(32, b"\0"),
    )
    assert read(image) == (
        BootImageEntry(BIOS, bootable=True, offset=20 * SECTOR, length=2048, block_at=CATALOG * SECTOR + 40),
        BootImageEntry(1, bootable=False, offset=21 * SECTOR, length=4096, block_at=CATALOG * SECTOR + 104),
        BootImageEntry(
            EFI, bootable=True, offset=22 * SECTOR, length=SIZE - 22 * SECTOR, block_at=CATALOG * SECTOR + 168
        ),
    )


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ((bytes(32), entry(20, 4)), "no valid first entry"),
        ((validation(BIOS)[:28] + b"\1\1\x55\xaa", entry(20, 4)), "no valid first entry"),
        ((validation(BIOS), entry(64, 4)), "a boot image of the ISO of 131072 bytes is at offset 131072"),
    ],
    ids=["zeros", "checksum", "outside"],
)
def test_damaged_catalog_is_refused(entries: tuple[bytes, ...], fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        read(iso_with_catalog(*entries))


@given(st.binary(max_size=SECTOR - 32))
def test_any_catalog_is_read_or_refused_with_two_reads(rest: bytes) -> None:
    image = iso_with_catalog(validation(EFI), rest)
    try:
        found = read_boot_images(MeteredReader(image, 2 * SECTOR), len(image))
    except FormatError:
        return
    assert all(0 <= each.offset < SIZE for each in found)
