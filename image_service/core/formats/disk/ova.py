"""OVA (DSP0243 section 5.4): a tar of an OVF descriptor, one disk and perhaps an `ova_manifest`.

    offset  size  header of a member; numbers are octal text, or big-endian behind a byte of 0x80
    0       100   name
    124     12    bytes of the content
    148     8     sum of the header's bytes, of these 8 as if they were spaces
    156     1     type: 0 or NUL a file, x attributes (pax) of the next member, g of all that follow, L the
                  name of the next one (GNU)
    257     5     ustar; tars from before have no such field
    345     155   directory of the name, of ustar

The content follows, and zeros up to a multiple of 512 bytes. Two headers of zeros end the tar, or the end of
the file. An attribute of pax is its own length in decimal, a space, name=value and a line end; size and path
take the place of the header's. A name may begin with ./.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.reading import Span, check_inside, read_exactly

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt

_BLOCK = 512
_MAX_MEMBERS = 64
_MAX_ATTRIBUTES = 64 << 10  # bytes
_MAX_NAME = 255  # bytes
_OCTAL = re.compile(rb" *([0-7]+)[ \0]*")
_ATTRIBUTE = re.compile(rb"(\d{1,6}) ([^=]+)=")
_FILE_TYPES = b"0\0"
_TYPE_NAMES = {"1": "a hard link", "2": "a symlink", "5": "a directory", "S": "a sparse file of GNU tar"}
_COMPRESSED = {b"\x1f\x8b\x08": "gzip", b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}


@attrs.frozen
class OvaLayout:
    """The places of the parts of an OVA.

    Args:
        members: all files in order; both of the above, and all others (manifest, certificate, texts).
    """

    ovf: Span
    disk: Span
    members: tuple[Span, ...]


def read_ova(read_at: ReadAt, size: int) -> OvaLayout:
    """Return the layout of an OVA of ``size`` bytes.

    Raises:
        FormatError: the tar is damaged, has other members than files, or a name with a path or twice; its
            first file is not an OVF descriptor, or not exactly one is a VMDK image.
    """
    members = _read_tar(read_at, size)
    names = [member.path.lower() for member in members]
    if not names or not names[0].endswith(".ovf"):
        raise FormatError(f"the first file of the OVA is {names[0] if names else 'missing'}; an OVF is right")
    if len(set(names)) != len(names):
        raise FormatError("two files of the OVA have the same name")
    for member in members[1:]:
        if name := _compression(read_at, member):
            raise FormatError(
                f"{member.path} in the OVA is compressed with {name} (ovf:compression), which is not"
                " supported: unpack the OVA and decompress the disk"
            )
    disks = [member for member in members if member.path.lower().endswith(".vmdk")]
    descriptors = sum(name.endswith(".ovf") for name in names)
    if len(disks) != 1 or descriptors != 1:
        raise FormatError(
            f"of the {len(names)} files of the OVA {len(disks)} are VMDK images, and {descriptors} are OVF"
            " descriptors; one of each is right"
        )
    return OvaLayout(members[0], disks[0], tuple(members))


def _compression(read_at: ReadAt, member: Span) -> str | None:
    """Return the name of the compression of a file that may be a disk; None: it is not compressed."""
    head = read_at(member.offset, min(member.length, 6))
    return next((name for magic, name in _COMPRESSED.items() if head.startswith(magic)), None)


def is_old_tar(read_at: ReadAt) -> bool:
    """Return True for a tar without the word ustar: its header has a name and the right checksum."""
    header = read_at(0, _BLOCK)
    stored = _OCTAL.fullmatch(header[148:156])
    return bool(header[:1].strip(b"\0") and stored and int(stored[1], 8) == _checksum(header))


def _read_tar(read_at: ReadAt, size: int) -> list[Span]:
    members: list[Span] = []
    attributes: dict[bytes, bytes] = {}
    offset = 0
    while offset < size and any(header := read_exactly(read_at, offset, _BLOCK)):
        name, length, kind = _parse_header(header, offset)
        if kind in _FILE_TYPES:
            if b"size" in attributes:
                length = _parse_decimal(attributes[b"size"], offset)
            name = attributes.get(b"path", name)
            attributes = {}
        offset += _BLOCK
        check_inside("the file", offset, length, size)
        if kind in _FILE_TYPES:
            members.append(Span(_check_name(name, offset), offset, length))
        elif kind in b"xgL" and length <= _MAX_ATTRIBUTES and not attributes:
            content = read_exactly(read_at, offset, length)
            attributes = _read_extension(chr(kind), content, offset)
        elif chr(kind) == "5" and name in {b".", b"./"}:
            attributes = {}
        else:
            told = _TYPE_NAMES.get(chr(kind), "not a file")
            raise FormatError(
                f"the member of the OVA before offset {offset} has the type {chr(kind)!r} ({told}) and"
                f" {length} bytes; files, and attributes of up to {_MAX_ATTRIBUTES} bytes, are supported"
            )
        if len(members) > _MAX_MEMBERS:
            raise FormatError(f"the OVA has more than {_MAX_MEMBERS} files")
        offset += -(-length // _BLOCK) * _BLOCK
    return members


def _read_extension(kind: str, content: bytes, offset: int) -> dict[bytes, bytes]:
    """Return the attributes of the next member: of pax, or the name of GNU tar."""
    if kind == "L":
        return {b"path": content.rstrip(b"\0")}
    attributes = _parse_attributes(content, offset)
    if kind == "x":
        return attributes
    if attributes.keys() & {b"size", b"path"}:
        raise FormatError(f"the attributes at offset {offset} of the OVA give all its files one name or size")
    return {}


def _parse_header(header: bytes, offset: int) -> tuple[bytes, int, int]:
    """Return name, bytes of the content, and type."""
    actual = _checksum(header)
    if _parse_number(header[148:156], offset) != actual:
        raise FormatError(
            f"no header of a tar member at offset {offset}, or its checksum is not {actual:o} (octal)"
        )
    name, directory = (field.split(b"\0", 1)[0] for field in (header[:100], header[345:500]))
    if directory and header[257:263] == b"ustar\0":  # in GNU's form, other fields are there
        name = directory + b"/" + name
    return name, _parse_number(header[124:136], offset), header[156]


def _checksum(header: bytes) -> int:
    return sum(header[:148]) + sum(header[156:]) + 8 * ord(" ")


def _parse_number(field: bytes, offset: int) -> int:
    if field[0] == 0x80:  # noqa: PLR2004 - as above
        return int.from_bytes(field[1:], "big")
    match = _OCTAL.fullmatch(field)
    if not match:
        raise FormatError(
            f"the header of the tar member at offset {offset} has no octal number: {field.hex()}"
        )
    return int(match[1], 8)


def _parse_attributes(data: bytes, offset: int) -> dict[bytes, bytes]:
    attributes = {}
    position = 0
    while position < len(data):
        match = _ATTRIBUTE.match(data, position)
        end = position + int(match[1]) if match else 0
        if not match or not match.end() < end <= len(data) or data[end - 1 : end] != b"\n":
            raise FormatError(
                f"the attributes of a tar member at offset {offset} are damaged at byte {position}"
            )
        attributes[match[2]] = data[match.end() : end - 1]
        position = end
    return attributes


def _parse_decimal(value: bytes, offset: int) -> int:
    if not value.isdigit() or len(value) > 18:  # noqa: PLR2004 - more than any file has
        raise FormatError(
            f"the size of the tar member at offset {offset} is not a decimal number of up to 18 digits"
        )
    return int(value)


def _check_name(name: bytes, offset: int) -> str:
    text = name.removeprefix(b"./").decode("utf-8", "surrogateescape")  # surrogates are not printable
    if not text.isprintable() or text in {"", ".", ".."} or len(name) > _MAX_NAME or set(text) & set("/\\:"):
        raise FormatError(
            f"the file at offset {offset} of the OVA is named {text!r:.80}; a name without a path is right"
        )
    return text
