"""Programs for UEFI firmware: the PE32+ format, as far as it shows machine, signature and sections.

    60    4  offset of the PE header: PE and two zero bytes (4), machine (2), number of sections (2), length
             of the optional header: 20 (2); then the optional header, then the sections
    optional header
      +0     2  0x20B
      +108   4  number of data directories, each with offset and length (4, 4); the fifth: signatures
    section, 40 bytes
      +0     8  name
      +8     4  length in memory, without padding
      +16    8  length and offset in the file
    .sbat    lines of comma-separated values, which begin with the component's name: ``shim,4,UEFI shim,…``
             (https://github.com/rhboot/shim/blob/main/SBAT.md)

All numbers are little-endian.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.reading import Span, check_inside, read_exactly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.reading import ReadAt

_DOS, _PE = b"MZ", b"PE\0\0"
_DOS_HEADER_BYTES, _PE_OFFSET_AT = 64, 60
_HEADER = struct.Struct("<4sHH12xH2x")
_PE32_PLUS = 0x20B
_DIRECTORIES_AT, _DIRECTORY_BYTES, _SIGNATURES = 108, 8, 4
_SECTION = struct.Struct("<8sI4xII16x")
_SBAT_NAME = b".sbat"
_MAX_SECTIONS = 96  # the specification's limit
_MAX_SBAT_BYTES = 64 * 1024
_ARCHITECTURES = {0x8664: "x86_64", 0xAA64: "aarch64"}


@attrs.frozen
class EfiProgram:
    """A program.

    Args:
        architecture: RPM architecture name; None: another one.
        is_signed: it has a signature, which nobody has verified here.
        components: the names in its ``.sbat``; that of shim begins with ``shim``.
    """

    architecture: str | None
    is_signed: bool
    components: tuple[str, ...]


def read_efi_program(read_at: ReadAt, size: int) -> EfiProgram:
    """Return a program of `size` bytes by its headers; FormatError if it is not one for 64 bits."""
    headers = _read_headers(read_at)
    return EfiProgram(
        architecture=_ARCHITECTURES.get(headers.machine),
        is_signed=_has_signatures(headers.optional, size),
        components=_read_components(read_at, headers.sections),
    )


def read_efi_sections(read_at: ReadAt, size: int) -> Mapping[str, Span]:
    """Return the sections of a program of `size` bytes by name, without padding; the first of each name.

    Raises:
        FormatError: it is not a program for 64 bits, or a section is not in the file.
    """
    found: dict[str, Span] = {}
    for raw_name, memory, length, offset in _SECTION.iter_unpack(_read_headers(read_at).sections):
        name = raw_name.rstrip(b"\0").decode("ascii", "backslashreplace")
        section = Span(name, offset, min(memory, length) if memory else length)
        check_inside("the EFI program", section.offset, section.length, size)
        found.setdefault(name, section)
    return found


@attrs.frozen
class _Headers:
    machine: int
    optional: bytes
    sections: bytes


def _read_headers(read_at: ReadAt) -> _Headers:
    dos = read_at(0, _DOS_HEADER_BYTES)
    if len(dos) < _DOS_HEADER_BYTES or not dos.startswith(_DOS):
        raise FormatError("not an EFI program: it does not begin with MZ")
    header_at = int.from_bytes(dos[_PE_OFFSET_AT:], "little")
    signature, machine, sections, optional_bytes = _HEADER.unpack(
        read_exactly(read_at, header_at, _HEADER.size)
    )
    optional_at = header_at + _HEADER.size
    optional = read_exactly(read_at, optional_at, optional_bytes)
    if signature != _PE or int.from_bytes(optional[:2], "little") != _PE32_PLUS or sections > _MAX_SECTIONS:
        raise FormatError(f"not an EFI program for 64 bits: its header at offset {header_at} is another one")
    table = read_exactly(read_at, optional_at + optional_bytes, sections * _SECTION.size)
    return _Headers(machine, optional, table)


def _has_signatures(optional: bytes, size: int) -> bool:
    count = int.from_bytes(optional[_DIRECTORIES_AT : _DIRECTORIES_AT + 4], "little")
    at = _DIRECTORIES_AT + 4 + _SIGNATURES * _DIRECTORY_BYTES
    if count <= _SIGNATURES or len(optional) < at + _DIRECTORY_BYTES:
        return False
    offset = int.from_bytes(optional[at : at + 4], "little")
    length = int.from_bytes(optional[at + 4 : at + 8], "little")
    return 0 < length <= size - offset


def _read_components(read_at: ReadAt, sections: bytes) -> tuple[str, ...]:
    for name, _, length, offset in _SECTION.iter_unpack(sections):
        if name.rstrip(b"\0") == _SBAT_NAME:
            text = read_exactly(read_at, offset, min(length, _MAX_SBAT_BYTES)).decode("ascii", "replace")
            lines = text.rstrip("\0").splitlines()
            return tuple(line.partition(",")[0] for line in lines if line)
    return ()
