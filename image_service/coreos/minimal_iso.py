"""Minimal ISOs: a live ISO without its root file system, which it fetches from a URL when it boots.

A full ISO tells in coreos/miniso.dat how to make its minimal one: which files both have, and the rest of the
minimal one literally (its boot records, directories and fill). So a minimal ISO is served without being made.

    coreos/miniso.dat    fields of bincode, in the first MiB:
      8 bytes            MINISO and two zero bytes
      number             version of the format, 1
      bytes              the writer's version, which nothing depends on
      number             of files, then for each, by ascending place in the minimal ISO:
        number           first sector in the minimal ISO
        number           first sector in the full ISO
        number           length in bytes
      32 bytes           SHA-256 of the minimal ISO
      bytes              one xz stream: all that is before, between and behind the files
      anything           what is left of the room that the builder reserved

The kernel arguments of both ISOs name the full one (`LIVEISO`). Whoever serves a minimal ISO takes that out,
and says so in coreos/kargs.json, in place.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.coreos.json_file import read_json_object
from image_service.errors import FormatError
from image_service.formats.bincode import BincodeReader
from image_service.formats.iso9660 import SECTOR, IsoFile
from image_service.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.coreos.json_file import JsonObject
    from image_service.formats.reading import ReadAt

LIVEISO = "coreos.liveiso="
"""What the kernel argument begins with that makes a boot look for the full ISO's volume."""

_MAGIC, _VERSION = b"MINISO\0\0", 1
_DIGEST_LENGTH = 32
_MAX_LENGTH = 1024 * 1024  # bytes; coreos-installer's limit, real ones use some thousand
_MAX_FILES = 1024  # real ones have some dozen
_MAX_LITERAL = 16 * 1024 * 1024  # bytes; real ones have less than one MiB
_MAX_DECODER_MEMORY = 80 * 1024 * 1024  # preset 9, which writers use, wants 65 MiB
_MAX_KARGS_FILES = 16  # real images have one or two
_ZERO_RUN = bytes(4096)  # shorter ones cost less as bytes than as pieces of their own
_NOT_ZERO = re.compile(rb"[^\0]")
_CHUNK = 1024 * 1024


@attrs.frozen
class CopiedFile:
    """A file that both ISOs have.

    Args:
        minimal: bytes from the start of the minimal ISO.
        full: bytes from the start of the full ISO.
        length: bytes.
    """

    minimal: int
    full: int
    length: int


Piece: TypeAlias = CopiedFile | bytes | int


@attrs.frozen
class MinimalIso:
    """How a full ISO's minimal one is made of it.

    Args:
        pieces: what it consists of, in order and none empty: files of the full ISO, bytes, and numbers of
            zero bytes.
        size: bytes of the minimal ISO.
        sha256: of the minimal ISO before any customization, lower-case hex.
    """

    pieces: tuple[Piece, ...] = attrs.field(repr=False)
    size: int
    sha256: str

    def translate(self, offset: int, length: int) -> int:
        """Find bytes of the full ISO in the minimal one.

        Args:
            offset: of the first of them in the full ISO.
            length: how many.

        Returns:
            the offset of the first in the minimal ISO.

        Raises:
            FormatError: no file that both have holds all of them.
        """
        for piece in self.pieces:
            if isinstance(piece, CopiedFile) and (
                piece.full <= offset and offset + length <= piece.full + piece.length
            ):
                return piece.minimal + offset - piece.full
        raise FormatError(f"the minimal ISO does not have the full one's {length} bytes at offset {offset}")


def read_minimal_iso(read_at: ReadAt, file: IsoFile, image_size: int) -> MinimalIso:
    """Read how the minimal ISO is made. Whether that makes the right one, only `verify` can tell.

    Args:
        read_at: reads the full ISO.
        file: coreos/miniso.dat.
        image_size: bytes of the full ISO's file.

    Returns:
        the recipe, no file of which leaves the full ISO.

    Raises:
        FormatError: the file is damaged, or asks for more than a minimal ISO can be.
    """
    fields = BincodeReader(file.path, read_exactly(read_at, file.offset, min(file.length, _MAX_LENGTH)))
    _check_header(fields)
    files = _read_files(fields, image_size)
    digest = fields.read(_DIGEST_LENGTH)
    literal = _unpack(fields.path, fields.read_bytes(), _gaps(files))
    copied = sum(each.length for each in files)
    return MinimalIso(tuple(_pieces(files, literal)), copied + len(literal), digest.hex())


def check_minimal_iso(minimal: MinimalIso, read_at: ReadAt, check: Callable[[], None]) -> None:
    """Make the minimal ISO once, to see that it is the one that its builder made.

    Args:
        minimal: the recipe.
        read_at: reads the full ISO.
        check: called before each MiB; what it raises ends this.

    Raises:
        FormatError: it is another one; or the full ISO ends too soon.
    """
    digest = hashlib.sha256()
    for piece in minimal.pieces:
        length = _length(piece)
        for start in range(0, length, _CHUNK):
            check()
            digest.update(_cut(piece, start, min(_CHUNK, length - start), read_at))
    if digest.hexdigest() != minimal.sha256:
        raise FormatError(
            f"the minimal ISO of {minimal.size} bytes has the SHA-256 {digest.hexdigest()},"
            f" not the {minimal.sha256} that its builder noted"
        )


def rewrite_kargs_json(original: bytes, default: str) -> bytes:
    """Rewrite coreos/kargs.json for other default arguments, byte for byte as coreos-installer does.

    Args:
        original: the file's content.
        default: the new default arguments.

    Returns:
        as many bytes: the fields that are known, and blanks.

    Raises:
        FormatError: the original is not what a builder writes, or the new one does not fit in its place.
    """
    file = IsoFile("coreos/kargs.json", 0, len(original))
    info = read_json_object(lambda start, length: original[start : start + length], file)
    areas = [_area(area) for area in info.objects("files", _MAX_KARGS_FILES)]
    content = {"default": default, "files": areas, "size": info.count("size")}
    rendered = json.dumps(content, indent=2, ensure_ascii=False).encode()
    if len(rendered) > len(original):
        raise FormatError(
            f"{file.path} would take {len(rendered)} bytes in a minimal ISO, and has {len(original)}"
        )
    return rendered.ljust(len(original))


def _check_header(fields: BincodeReader) -> None:
    if fields.read(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"{fields.path} does not begin with MINISO: the minimal ISO was never packed")
    version = fields.read_number()
    if version != _VERSION:
        raise FormatError(f"{fields.path} is of version {version}, and only {_VERSION} is known")
    fields.read_bytes()


def _read_files(fields: BincodeReader, image_size: int) -> list[CopiedFile]:
    count = fields.read_number()
    if not 0 < count <= _MAX_FILES:
        raise FormatError(f"{fields.path} must list 1 to {_MAX_FILES} files, not {count}")
    files: list[CopiedFile] = []
    end = copied = 0
    for index in range(count):
        file = CopiedFile(fields.read_number() * SECTOR, fields.read_number() * SECTOR, fields.read_number())
        copied += file.length
        if not file.length or file.minimal < end:
            raise FormatError(f"{fields.path}: file {index} is empty, or overlaps the one before: {file}")
        if file.full + file.length > image_size or copied > image_size:
            raise FormatError(f"{fields.path}: file {index} leaves the ISO of {image_size} bytes: {file}")
        files.append(file)
        end = file.minimal + file.length
    return files


def _gaps(files: Sequence[CopiedFile]) -> int:
    """Bytes before and between the files."""
    return files[-1].minimal + files[-1].length - sum(file.length for file in files)


def _unpack(path: str, packed: bytes, least: int) -> bytes:
    """The literal bytes, of which there must be at least so many."""
    if least > _MAX_LITERAL:
        raise FormatError(f"{path} leaves {least} bytes between its files, more than {_MAX_LITERAL}")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DECODER_MEMORY)
    try:
        literal = decompressor.decompress(packed, _MAX_LITERAL + 1)
    except lzma.LZMAError as error:
        raise FormatError(f"the xz stream in {path} is damaged, or not one to be read: {error}") from None
    if len(literal) > _MAX_LITERAL:
        raise FormatError(f"the xz stream in {path} unpacks to more than {_MAX_LITERAL} bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise FormatError(f"the xz stream in {path} does not end where its {len(packed)} bytes do")
    if len(literal) < least:
        raise FormatError(f"the xz stream in {path} unpacks to {len(literal)} bytes, and {least} are due")
    return literal


def _pieces(files: Sequence[CopiedFile], literal: bytes) -> Iterator[Piece]:
    """The files, with the literal bytes before, between and behind them."""
    taken = end = 0
    for file in files:
        gap = file.minimal - end
        yield from _split(literal[taken : taken + gap])
        yield file
        taken += gap
        end = file.minimal + file.length
    yield from _split(literal[taken:])


def _split(literal: bytes) -> Iterator[bytes | int]:
    """The bytes, with long runs of zeros as their number."""
    position = 0
    while (zeros := literal.find(_ZERO_RUN, position)) >= 0:
        if position < zeros:
            yield literal[position:zeros]
        other = _NOT_ZERO.search(literal, zeros)
        position = other.start() if other else len(literal)
        yield position - zeros
    if position < len(literal):
        yield literal[position:]


def _length(piece: Piece) -> int:
    match piece:
        case int():
            return piece
        case bytes():
            return len(piece)
        case CopiedFile():
            return piece.length


def _cut(piece: Piece, start: int, length: int, read_at: ReadAt) -> bytes:
    match piece:
        case int():
            return bytes(length)
        case bytes():
            return piece[start : start + length]
        case CopiedFile():
            return read_exactly(read_at, piece.full + start, length)


def _area(area: JsonObject) -> dict[str, str | int]:
    """An area of kargs.json, whose pad and end are left out where they are the usual ones."""
    single = {name: area.character(name, b"").decode() for name in ("pad", "end")}
    given = {name: character for name, character in single.items() if character}
    return {"path": area.text("path"), "offset": area.count("offset"), **given}
