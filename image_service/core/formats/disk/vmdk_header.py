"""The header, the footer and the descriptor of VMDK images in one file.

    offset  size  header, the first sector; numbers are little-endian, areas in sectors of 512 bytes
    0       4     KDMV
    4       4     version: 1 to 3
    8       4     flags: 4 a grain's entry may be 1, 1 << 16 grains are compressed, 1 << 17 and have markers
    12      8     capacity
    20      8     sectors of a grain
    28      16    the descriptor: where, how many
    44      4     entries of a grain table: 512
    56      8     the grain directory; all ones: the footer, which repeats the header, has it
    64      8     sectors of metadata, before the first grain
    73      4     line ends: no transfer as text changed the file
    77      2     compression: 0 none, 1 deflate with zlib's header

The footer is before the last sector of the file, between a marker and a sector of zeros. The descriptor is
text with the type of the image, its parent and its extents; extents in other files are refused. It names its
encoding; a byte beyond ASCII is part of a name or of a comment.
"""

from __future__ import annotations

import codecs
import re
import struct
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.block_map import check_virtual_size
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.core.formats.reading import check_inside, read_exactly

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt

VMDK_MAGIC = b"KDMV"
DESCRIPTOR_MAGIC = b"# Disk DescriptorFile"

_HEADER = struct.Struct("<4sIIQQQQI8xQQ1x4sH")
_VERSIONS = range(1, 3 + 1)
_COMPRESSED, _MARKERS = 1 << 16, 1 << 17
_ZERO_GRAINS = 1 << 2
_LINE_ENDS = b"\n \r\n"
_AT_END = (1 << 64) - 1
_FOOTER_MARKER, _END_MARKER = struct.pack("<QII496x", 1, 0, 3), bytes(SECTOR_BYTES)
_GRAIN_SECTORS = [1 << bits for bits in range(3, 12 + 1)]  # 4 KiB to 2 MiB
TABLE_ENTRIES = 512
_MAX_DIRECTORY_BYTES = 8 << 20  # 64 TiB with the usual grains of 64 KiB
_MAX_DESCRIPTOR_BYTES = 64 << 10

_ENCODING = re.compile(rb'^\s*encoding\s*=\s*"([A-Za-z0-9._-]{1,32})"', re.MULTILINE | re.IGNORECASE)
_ASCII_SUPERSET = re.compile(
    r"utf-8|cp125\d|cp437|cp8[56]\d|cp874|cp93\d|cp9[45]\d|gbk|gb2312|gb18030|big5|shift_jis|euc_\w\w|iso8859-\d+|koi8-\w"
)
"""Encodings, as Python names them, in which a slash, a quote or a line end is not part of another letter."""

_ACCESS = ("RW", "RDONLY", "NOACCESS")  # the first word of an extent's line
_NO_PARENT = "ffffffff"


@attrs.frozen
class VmdkHeader:
    """The fields of a header; all in bytes."""

    virtual_size: int
    grain: int
    descriptor: int
    descriptor_bytes: int
    directory: int
    metadata_bytes: int
    compressed: bool
    zero_grains: bool

    @property
    def subformat(self) -> str:
        """The type that the descriptor has to state."""
        return "streamOptimized" if self.compressed else "monolithicSparse"

    @property
    def directory_bytes(self) -> int:
        """Bytes of the grain directory."""
        return 4 * -(-self.virtual_size // (self.grain * TABLE_ENTRIES))


def read_vmdk_header(read_at: ReadAt, size: int) -> VmdkHeader:
    """Read header, footer and descriptor of an image of ``size`` bytes.

    Raises:
        FormatError: one is damaged, or the image has a parent or refers to other files.
    """
    first = read_at(0, SECTOR_BYTES)
    if first.startswith(DESCRIPTOR_MAGIC):
        raise FormatError(
            "the VMDK image is only a descriptor: its extents are other files, which are not read"
        )
    header = _parse_header(first, 0)
    if header.directory == _AT_END * SECTOR_BYTES:
        end = read_exactly(read_at, max(0, size - 3 * SECTOR_BYTES), 3 * SECTOR_BYTES)
        if end[:SECTOR_BYTES] != _FOOTER_MARKER or end[2 * SECTOR_BYTES :] != _END_MARKER:
            raise FormatError(f"no footer is in the last 1536 of {size} bytes; the header refers to one")
        footer = _parse_header(end[SECTOR_BYTES : 2 * SECTOR_BYTES], size - 2 * SECTOR_BYTES)
        if attrs.evolve(header, directory=footer.directory) != footer:
            raise FormatError(f"the footer at offset {size - 2 * SECTOR_BYTES} differs from the header")
        header = footer
    _check_descriptor(read_at, size, header)
    check_inside("the file", header.directory, header.directory_bytes, size)
    return header


def _parse_header(data: bytes, offset: int) -> VmdkHeader:
    if len(data) < SECTOR_BYTES:
        raise FormatError(f"the VMDK header at offset {offset} has {len(data)} bytes, not {SECTOR_BYTES}")
    (
        magic,
        version,
        flags,
        capacity,
        grain,
        descriptor,
        descriptor_sectors,
        entries,
        directory,
        metadata,
        line_ends,
        compression,
    ) = _HEADER.unpack_from(data)
    if magic != VMDK_MAGIC or version not in _VERSIONS:
        raise FormatError(
            f"no VMDK header at offset {offset}: it begins with {magic.hex()}, version {version}"
        )
    if line_ends != _LINE_ENDS:
        raise FormatError("the VMDK image was transferred as text, which changed its line ends")
    if not capacity:
        raise FormatError(
            "the VMDK image has a capacity of 0 sectors: its descriptor would refer to other files"
        )
    check_virtual_size(capacity * SECTOR_BYTES)
    compressed = bool(flags & _COMPRESSED)
    if compressed != bool(flags & _MARKERS) or compression != compressed:
        raise FormatError(
            f"the VMDK image has the flags {flags:#x} and compression {compression}, which differ"
        )
    if grain not in _GRAIN_SECTORS or entries != TABLE_ENTRIES:
        raise FormatError(
            f"the VMDK image has grains of {grain} sectors and tables of {entries} entries;"
            f" powers of two from 8 to 4096, and {TABLE_ENTRIES}, are supported"
        )
    header = VmdkHeader(
        capacity * SECTOR_BYTES,
        grain * SECTOR_BYTES,
        descriptor * SECTOR_BYTES,
        descriptor_sectors * SECTOR_BYTES,
        directory * SECTOR_BYTES,
        metadata * SECTOR_BYTES,
        compressed,
        bool(flags & _ZERO_GRAINS),
    )
    if header.directory_bytes > _MAX_DIRECTORY_BYTES:
        raise FormatError(
            f"the grain directory has {header.directory_bytes} bytes; {_MAX_DIRECTORY_BYTES} are supported"
        )
    return header


def _check_descriptor(read_at: ReadAt, size: int, header: VmdkHeader) -> None:
    """Raise FormatError if the embedded descriptor is not of one file without a parent."""
    if not header.descriptor or not header.descriptor_bytes:
        raise FormatError(
            "the VMDK is one extent of a split image: its descriptor, another file, names all extents;"
            " convert them to one file by the program that wrote them"
        )
    if header.descriptor_bytes > _MAX_DESCRIPTOR_BYTES:
        raise FormatError(
            f"the descriptor at offset {header.descriptor} has {header.descriptor_bytes} bytes;"
            f" {_MAX_DESCRIPTOR_BYTES} are supported"
        )
    check_inside("the file", header.descriptor, header.descriptor_bytes, size)
    data = read_exactly(read_at, header.descriptor, header.descriptor_bytes)
    text = data.split(b"\0", 1)[0]
    lines = _decode_descriptor(text).replace("\r", "\n").split("\n")
    settings = {
        name.strip(): value.strip().strip('"') for name, _, value in (line.partition("=") for line in lines)
    }
    kind = settings.get("createType", "")
    if kind != header.subformat:
        raise FormatError(
            f"the descriptor is of a VMDK of type {kind!r:.40}, the header of {header.subformat}"
        )
    if settings.get("parentCID", _NO_PARENT).lower() != _NO_PARENT or b"parentFileNameHint" in data:
        raise FormatError("the VMDK image has a parent, another file, which is not read")
    extents = [words for words in (line.split(maxsplit=3) for line in lines) if words and words[0] in _ACCESS]
    right = [str(header.virtual_size // SECTOR_BYTES), "SPARSE"]
    if len(extents) != 1 or extents[0][1:3] != right:
        raise FormatError(
            f"the descriptor has {len(extents)} extents; one, {' '.join(right)}, is the file itself"
        )
    if any(separator in "".join(extents[0][3:]) for separator in "/\\"):
        raise FormatError("the descriptor's extent has a path in its name; it should be the file itself")


def with_ascii_descriptor(head: bytes) -> bytes:
    """Return the first bytes of an image with ``?`` for each other letter of its descriptor."""
    if not head.startswith(VMDK_MAGIC) or len(head) < SECTOR_BYTES:
        return head
    start, length = (SECTOR_BYTES * number for number in struct.unpack_from("<QQ", head, 28))
    area = head[start : start + length]
    text = area.split(b"\0", 1)[0]
    if text.isascii() or length > _MAX_DESCRIPTOR_BYTES:
        return head
    plain = _decode_descriptor(text).encode("ascii", "replace").ljust(len(area), b"\0")
    return head[:start] + plain + head[start + len(area) :]


def _decode_descriptor(text: bytes) -> str:
    """Return a descriptor's text by the encoding that it names; an unknown one has a letter for each byte."""
    named = _ENCODING.search(text)
    try:
        encoding = codecs.lookup(named[1].decode()).name if named else "utf-8"
    except LookupError:
        encoding = "latin-1"
    if not _ASCII_SUPERSET.fullmatch(encoding):
        encoding = "latin-1"
    return text.decode(encoding, "replace")
