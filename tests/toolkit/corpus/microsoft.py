"""Hostile VHD and VHDX images."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from image_service.core.formats.crc32c import crc32c
from tests.toolkit.corpus.images import DISK_BYTES, MIB, Hostile, file_of, image, number_at, patched

if TYPE_CHECKING:
    from tests.toolkit.corpus.images import Build, Change

_FIXED, _DYNAMIC = "subformat=fixed,force_size=on", "subformat=dynamic,force_size=on"
_FAR = 1 << 50


def _sealed(structure: bytes, position: int) -> bytes:
    """Return a structure of a VHD with its checksum."""
    zeroed = patched(structure, (position, ">I", 0))
    return patched(zeroed, (position, ">I", ~sum(zeroed) & 0xFFFFFFFF))


def _fixed(*changes: Change) -> Build:
    def make() -> bytes:
        data = image("vpc", _FIXED)
        return data[:-512] + _sealed(patched(data[-512:], *changes), 64)

    return file_of(make)


def _footers(*changes: Change) -> Build:
    """Change both copies of the footer of a dynamic disk."""

    def make() -> bytes:
        data = image("vpc", _DYNAMIC)
        footer = _sealed(patched(data[-512:], *changes), 64)
        return footer + data[512:-512] + footer

    return file_of(make)


def _header(*changes: Change) -> Build:
    """Change the header of a dynamic disk."""

    def make() -> bytes:
        data = image("vpc", _DYNAMIC)
        return data[:512] + _sealed(patched(data[512:1536], *changes), 36) + data[1536:]

    return file_of(make)


def _block(number: int | None) -> Build:
    """Change the second block's entry; None: as the first one."""

    def make() -> bytes:
        data = image("vpc", _DYNAMIC)
        table = number_at(data, 512 + 16, ">Q")
        return patched(data, (table + 4, ">I", number_at(data, table, ">I") if number is None else number))

    return file_of(make)


# VHDX: the structures are where qemu-img writes them.

_HEADERS = (64 << 10, 128 << 10)
_REGION_TABLES = (192 << 10, 256 << 10)
_METADATA = "metadata"


def _sums(data: bytes, offset: int, length: int) -> bytes:
    """Return an image with the right checksum in one of its structures."""
    zeroed = patched(data, (offset + 4, "<I", 0))
    return patched(zeroed, (offset + 4, "<I", crc32c(zeroed[offset : offset + length])))


def _both(offsets: tuple[int, ...], length: int, *changes: Change) -> Build:
    """Change both copies of a structure."""

    def make() -> bytes:
        data = image("vhdx")
        for start in offsets:
            data = patched(data, *((start + offset, code, number) for offset, code, number in changes))
            data = _sums(data, start, length)
        return data

    return file_of(make)


def _headers(*changes: Change) -> Build:
    return _both(_HEADERS, 4096, *changes)


def _regions(*changes: Change) -> Build:
    return _both(_REGION_TABLES, 65536, *changes)


def _region(data: bytes, guid_start: int) -> int:
    """Return the offset of the region whose GUID begins with a number."""
    table = _REGION_TABLES[0]
    entries = [table + 16 + 32 * index for index in range(number_at(data, table + 8, "<I"))]
    return next(
        number_at(data, entry + 16, "<Q") for entry in entries if number_at(data, entry, "<I") == guid_start
    )


def _block_table(data: bytes) -> int:
    return _region(data, 0x2DC27766)


def _item(data: bytes, guid_start: int) -> int:
    """Return the offset of a metadata item's value."""
    table = _region(data, 0x8B7CA206)
    entries = [table + 32 + 32 * index for index in range(number_at(data, table + 10, "<H"))]
    return table + next(
        number_at(data, entry + 16, "<I") for entry in entries if number_at(data, entry, "<I") == guid_start
    )


def _metadata_item(guid_start: int, code: str, number: int, offset: int = 0) -> Build:
    return file_of(lambda: patched(image("vhdx"), (_item(image("vhdx"), guid_start) + offset, code, number)))


def _payload(number: int | None) -> Build:
    """Change the entry of the second block; None: as the first one."""

    def make() -> bytes:
        data = image("vhdx", "block_size=1M")
        table = _block_table(data)
        return patched(data, (table + 24, "<Q", number_at(data, table, "<Q") if number is None else number))

    return file_of(make)


HOSTILE = (
    Hostile("vhd-fixed-declared-raw", "declared .* raw.* vhd", file_of(lambda: image("vpc", _FIXED)), "raw"),
    Hostile("vhd-fixed-larger-than-file", "claims|footer", _fixed((48, ">Q", 1 << 40))),
    Hostile("vhd-fixed-size-2-63", "claims|footer", _fixed((48, ">Q", 1 << 63))),
    Hostile("vhd-fixed-smaller-than-file", "claims|footer", _fixed((48, ">Q", 512))),
    Hostile("vhd-fixed-type-9", "type", _fixed((60, ">I", 9))),
    Hostile(
        "vhd-fixed-bad-checksum",
        "checksum",
        file_of(lambda: patched(image("vpc", _FIXED), (DISK_BYTES + 64, ">I", 1))),
    ),
    Hostile(
        "vhd-fixed-of-qcow2",
        "any of qcow2, vhd",
        file_of(lambda: image("qcow2").ljust(DISK_BYTES, b"\0")[:DISK_BYTES] + image("vpc", _FIXED)[-512:]),
    ),
    Hostile("vhd-differencing", "differencing", _footers((60, ">I", 4))),
    Hostile("vhd-size-2-63", "claims", _footers((48, ">Q", 1 << 63))),
    Hostile("vhd-size-beyond-table", "table|blocks", _footers((48, ">Q", 1 << 40))),
    Hostile("vhd-header-outside", "outside|leaves|ends too soon", _footers((16, ">Q", _FAR))),
    Hostile("vhd-table-outside", "outside|leaves", _header((16, ">Q", _FAR))),
    Hostile("vhd-table-of-2-32", "table|blocks", _header((28, ">I", 0xFFFFFFFF))),
    Hostile("vhd-blocks-of-0", "block", _header((32, ">I", 0))),
    Hostile("vhd-blocks-of-1000", "block", _header((32, ">I", 1000))),
    Hostile("vhd-block-outside", "outside|leaves", _block(0xFFFFFF00)),
    Hostile("vhd-block-twice", "overlap|twice", _block(None)),
    Hostile("vhd-block-is-header", "overlap|twice", _block(1)),
    Hostile("vhd-cut", "footer|VHD", file_of(lambda: image("vpc", _DYNAMIC)[:-1024])),
    Hostile("vhdx-no-header", "header", file_of(lambda: image("vhdx")[: 64 << 10].ljust(4 * MIB, b"\0"))),
    Hostile("vhdx-log", "log", _headers((48, "<Q", 1))),
    Hostile("vhdx-version-2", "version", _headers((66, "<H", 2))),
    Hostile("vhdx-region-outside", "outside|leaves|overlap", _regions((32, "<Q", _FAR), (64, "<Q", _FAR))),
    Hostile("vhdx-regions-2-32", "region", _regions((8, "<I", 0xFFFFFFFF))),
    Hostile(
        "vhdx-regions-bad-checksum",
        "region|checksum",
        file_of(lambda: patched(image("vhdx"), *((start + 4, "<I", 1) for start in _REGION_TABLES))),
    ),
    Hostile("vhdx-size-2-63", "claims|size", _metadata_item(0x2FA54224, "<Q", 1 << 63)),
    Hostile("vhdx-parent", "parent|differencing", _metadata_item(0xCAA16737, "<I", 2, 4)),
    Hostile("vhdx-blocks-of-3", "block", _metadata_item(0xCAA16737, "<Q", 3)),
    Hostile("vhdx-sectors-of-7", "sector", _metadata_item(0x8141BF1D, "<I", 7)),
    Hostile("vhdx-block-outside", "outside|leaves", _payload(1 << 62 | 6)),
    Hostile("vhdx-block-twice", "overlap|twice", _payload(None)),
    Hostile("vhdx-block-partly-present", "block|state", _payload(struct.unpack("<Q", b"\x07" + bytes(7))[0])),
    Hostile("vhdx-cut", "outside|leaves|ends too soon", file_of(lambda: image("vhdx")[: 3 << 20])),
)
