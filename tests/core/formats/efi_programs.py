"""Small PE32+ files, which no firmware would run."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_OPTIONAL_BYTES = 112 + 16 * 8
_HEADER_AT = 64


def build_efi_program(
    *, machine: int = 0x8664, sbat: bytes | None = None, signature: bytes | None = None
) -> bytes:
    """Return a program.

    Args:
        machine: its number in the header.
        sbat: content of the section ``.sbat``; None: there is none.
        signature: put at the end; None: it is not signed.
    """
    sections_at = _HEADER_AT + 24 + _OPTIONAL_BYTES
    content_at = sections_at + 40
    end = content_at + len(sbat or b"")
    optional = bytearray(_OPTIONAL_BYTES)
    optional[:2] = struct.pack("<H", 0x20B)
    optional[108:112] = struct.pack("<I", 16)
    if signature is not None:
        optional[112 + 32 : 112 + 40] = struct.pack("<II", end, len(signature))
    name = b".text" if sbat is None else b".sbat"
    return b"".join(
        [
            b"MZ".ljust(60, b"\0"),
            struct.pack("<I", _HEADER_AT),
            struct.pack("<4sHH12xHH", b"PE\0\0", machine, 1, _OPTIONAL_BYTES, 0),
            optional,
            struct.pack("<8s8xII16x", name, len(sbat or b""), content_at),
            sbat or b"",
            signature or b"",
        ]
    )


def build_unified_kernel(sections: Mapping[str, bytes], padding: int = 0) -> bytes:
    """Return a program with sections, each with `padding` zeros that do not count."""
    table_at = _HEADER_AT + 24 + _OPTIONAL_BYTES
    at = table_at + 40 * len(sections)
    table, contents = b"", b""
    for number, (name, content) in enumerate(sections.items(), start=1):
        stored = content + bytes(padding)
        fields = (len(content), number << 16, len(stored), at + len(contents))
        table += struct.pack("<8sIIII16x", name.encode(), *fields)
        contents += stored
    return b"".join(
        [
            b"MZ".ljust(60, b"\0"),
            struct.pack("<I", _HEADER_AT),
            struct.pack("<4sHH12xHH", b"PE\0\0", 0x8664, len(sections), _OPTIONAL_BYTES, 0),
            struct.pack("<H", 0x20B).ljust(_OPTIONAL_BYTES, b"\0"),
            table,
            contents,
        ]
    )
