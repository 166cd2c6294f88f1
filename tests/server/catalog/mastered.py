"""What a boot loader, a partitioner or a clock left in an ISO, read without any of our code."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

SECTOR = 2048
_BLOCK = 512
_PRIMARY = 16 * SECTOR


@attrs.frozen
class File:
    """A file's extent, by the name of level 1.

    Args:
        sector: its first one.
        length: bytes.
    """

    sector: int
    length: int

    def read(self, image: bytes) -> bytes:
        """Give the content."""
        return image[self.sector * SECTOR :][: self.length]


def files(image: bytes) -> dict[str, File]:
    """Every file, by its path in capitals."""
    return {
        path: File(*struct.unpack("<I4xI", record[2:14]))
        for path, record in _records(image)
        if not record[25] & 2
    }


def dates(image: bytes) -> set[bytes]:
    """All dates, of the volume and of the files by ISO 9660 and by Rock Ridge, each YYYYMMDDhhmmss.

    The two of the volume that are not set are left out.
    """
    volume = {image[_PRIMARY + at :][:14] for at in (813, 830, 847, 864)} - {b"0" * 14}
    short = {record[18:25] for _, record in _records(image)}
    for _, record in _records(image):
        short |= set(_rock_ridge_dates(record))
    return volume | {b"%d%02d%02d%02d%02d%02d" % (1900 + date[0], *date[1:6]) for date in short}


def check_boot_info_table(image: bytes, path: str) -> None:
    """Check the boot info table of isolinux."""
    file = files(image)[path]
    loader = file.read(image)
    volume, own, length, checksum = struct.unpack("<4I", loader[8:24])
    words = struct.unpack(f"<{len(loader[64:]) // 4}I", loader[64 : len(loader) // 4 * 4])
    assert (volume, own, length) == (16, file.sector, file.length)
    assert checksum == sum(words) % 2**32


def check_hybrid_mbr(image: bytes, loader: str, esp: str) -> None:
    """Check that BIOS finds isolinux on a USB stick, and UEFI the EFI system partition."""
    found = files(image)
    assert image[510:512] == b"\x55\xaa"
    assert struct.unpack("<Q", image[432:440]) == (found[loader].sector * 4,)
    (start, length), (esp_start, esp_length) = (struct.unpack("<II", image[at : at + 8]) for at in (454, 470))
    assert (image[446], start, length * _BLOCK) == (0x80, 0, len(image))
    assert (image[466], esp_start) == (0xEF, found[esp].sector * 4)
    assert esp_length * _BLOCK >= found[esp].length


def check_gpt(image: bytes) -> None:
    """Check both GUID partition tables (UEFI section 5.3)."""
    last = len(image) // _BLOCK - 1
    entries = {_check_gpt_header(image, *places) for places in ((1, last), (last, 1))}
    assert len(entries) == 1


def _check_gpt_header(image: bytes, block: int, other: int) -> bytes:
    header = image[block * _BLOCK :][:92]
    crc, own, alternate, array, number, size, array_crc = struct.unpack("<16xI4xQQ32xQIII", header)
    assert header[:8] == b"EFI PART"
    assert (own, alternate) == (block, other)
    assert crc == zlib.crc32(header[:16] + bytes(4) + header[20:])
    entries = image[array * _BLOCK :][: number * size]
    assert array_crc == zlib.crc32(entries)
    return entries


def _records(image: bytes) -> Iterator[tuple[str, bytes]]:
    """Every directory record below the root, with its path."""
    pending = [("", image[_PRIMARY + 156 : _PRIMARY + 190])]
    while pending:
        path, directory = pending.pop()
        for record in _records_in(image, directory):
            name = record[33 : 33 + record[32]]
            below = f"{path}/{name.decode().removesuffix(';1')}".lstrip("/")
            yield below, record
            if record[25] & 2 and name not in {b"\0", b"\1"}:  # itself and its parent
                pending.append((below, record))


def _records_in(image: bytes, directory: bytes) -> Iterator[bytes]:
    start, length = struct.unpack("<I4xI", directory[2:14])
    position, end = start * SECTOR, start * SECTOR + length
    while position < end:
        size = image[position]
        if size:
            yield image[position : position + size]
        position += size or SECTOR - position % SECTOR


def _rock_ridge_dates(record: bytes) -> Iterator[bytes]:
    """The dates of the TF entry (RRIP section 4.1.6), in its short form."""
    position = 33 + record[32] + (record[32] + 1) % 2
    while position + 4 <= len(record) and record[position + 2]:
        length = record[position + 2]
        if record[position : position + 2] == b"TF":
            assert not record[position + 4] & 0x80
            yield from (record[at : at + 7] for at in range(position + 5, position + length, 7))
        position += length
