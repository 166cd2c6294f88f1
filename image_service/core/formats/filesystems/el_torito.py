"""El Torito (Phoenix and IBM, version 1.0): the boot images of a CD, and how firmware finds them.

34816         boot record in sector 17: 0 (1), CD001 (5), 1 (1)
  +7      32  EL TORITO SPECIFICATION
  +71      4  sector of the boot catalog

catalog       entries of 32 bytes; the first two are the validation entry and the default entry
  validation  1 (1), platform: 1 (1); 55 AA: 30 (2); the sum of all 16-bit words is 0
  header      of a section: 0x90, or 0x91 for the last one (1), platform: 1 (1), number of entries: 2 (2)
  entry       0x88 if it can be booted, else 0 (1); 0, or 1 to 4: a disk that BIOS emulates (1); 512-byte
              sectors: 6 (2); first sector of the boot image: 8 (4)
  extension   0x44, after an entry whose byte 1 has 0x20
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.reading import ReadAt

BIOS: Final = 0x00
EFI: Final = 0xEF
"""Platforms; 1 is PowerPC and 2 is Mac."""

_BOOT_RECORD = 17 * SECTOR
_SIGNATURE = b"\0CD001\x01EL TORITO SPECIFICATION"
_CATALOG_AT = 71
_ENTRY_BYTES = 32
_VALIDATION = struct.Struct("<BB28xH")
_VALIDATION_ID, _VALIDATION_KEY = 1, 0xAA55
_ENTRY = struct.Struct("<BB4xHI")
_EMULATION = 0x0F  # the bits of the medium; 0: none
_HEADER = struct.Struct("<BBH")
_MORE_HEADERS, _LAST_HEADER, _EXTENSION = 0x90, 0x91, 0x44
_BOOTABLE = 0x88
_SECTOR_BYTES = 512  # of a boot image's length
_MIN_SECTORS = 2  # fewer mean: to the end of the CD (UEFI 2.10 section 13.3.2.1)


@attrs.frozen
class BootImageEntry:
    """A boot image of a CD.

    Args:
        platform: `BIOS`, `EFI` or another number.
        bootable: False: firmware must not boot it.
        offset: bytes from the start of the image.
        length: bytes that firmware loads; for EFI, of the whole FAT file system.
        is_emulated: BIOS takes it for a floppy or hard disk, and reads nothing else.
        block_at: where the image has its first block (4 bytes), in bytes.
    """

    platform: int
    bootable: bool
    offset: int
    length: int
    block_at: int
    is_emulated: bool = False


def read_boot_images(read_at: ReadAt, size: int) -> tuple[BootImageEntry, ...]:
    """Return the boot images of an ISO of `size` bytes; none if it has no boot record.

    Raises:
        FormatError: the catalog is damaged, or a boot image begins after the end of the ISO.
    """
    record = read_at(_BOOT_RECORD, SECTOR)
    if len(record) < SECTOR or not record.startswith(_SIGNATURE):
        return ()
    at = int.from_bytes(record[_CATALOG_AT : _CATALOG_AT + 4], "little") * SECTOR
    catalog = read_exactly(read_at, at, SECTOR)
    identifier, platform, key = _VALIDATION.unpack_from(catalog)
    words = struct.unpack_from(f"<{_ENTRY_BYTES // 2}H", catalog)
    if identifier != _VALIDATION_ID or key != _VALIDATION_KEY or sum(words) & 0xFFFF:
        raise FormatError(f"the boot catalog at offset {at} has no valid first entry")
    found = tuple(_read_entries(catalog, at, platform, size))
    for image in found:
        if image.offset >= size:
            raise FormatError(f"a boot image of the ISO of {size} bytes is at offset {image.offset}")
    return found


def _read_entries(catalog: bytes, at: int, platform: int, size: int) -> Iterator[BootImageEntry]:
    yield _parse_entry(catalog, at, _ENTRY_BYTES, platform, size)
    position, more = 2 * _ENTRY_BYTES, True
    while more and position < len(catalog):
        header, platform, count = _HEADER.unpack_from(catalog, position)
        if header not in {_MORE_HEADERS, _LAST_HEADER}:
            return
        more = header == _MORE_HEADERS
        position += _ENTRY_BYTES
        while count and position < len(catalog):
            if catalog[position] != _EXTENSION:
                count -= 1
                yield _parse_entry(catalog, at, position, platform, size)
            position += _ENTRY_BYTES


def _parse_entry(catalog: bytes, at: int, position: int, platform: int, size: int) -> BootImageEntry:
    indicator, medium, sectors, first = _ENTRY.unpack_from(catalog, position)
    offset = first * SECTOR
    to_end = platform == EFI and sectors < _MIN_SECTORS
    return BootImageEntry(
        platform=platform,
        bootable=indicator == _BOOTABLE,
        is_emulated=bool(medium & _EMULATION),
        offset=offset,
        length=max(0, size - offset) if to_end else sectors * _SECTOR_BYTES,
        block_at=at + position + 8,
    )
