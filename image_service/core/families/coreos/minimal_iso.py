"""Minimal ISOs: a live ISO without its root file system, which it fetches from a URL when it boots.

A full ISO describes its minimal one in coreos/miniso.dat: the files that both have, and the other bytes of
the minimal one (boot records, directories, fill) literally. So a minimal ISO is served without being stored.

    coreos/miniso.dat    fields of bincode, in the first MiB:
      8 bytes            MINISO and two zero bytes
      number             version of the format, 1
      bytes              the writer's version, which is ignored
      number             of files, then for each, by ascending offset in the minimal ISO:
        number           first sector in the minimal ISO
        number           first sector in the full ISO
        number           length in bytes
      32 bytes           SHA-256 of the minimal ISO
      bytes              one xz stream: all bytes before, between and after the files
      anything           the rest of the bytes that the builder reserved

bincode 1.3 with variable-length integers has fields without names or types, one after another:

    number    up to 250: one byte; else 251, 252 or 253 and 2, 4 or 8 bytes, little-endian
    bytes     their length as a number; then the bytes

The kernel arguments of both ISOs name the full one (`family.LIVEISO`); that argument is removed from a served
minimal ISO, and from its coreos/kargs.json.
"""

from __future__ import annotations

import hashlib
import lzma
import re
from typing import TYPE_CHECKING, TypeAlias

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.iso9660.records import SECTOR
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from image_service.core.formats.reading import ReadAt, Span

_ONE_BYTE = range(251)
_NUMBER_LENGTHS = {251: 2, 252: 4, 253: 8}
_MAGIC, _VERSION = b"MINISO\0\0", 1
_DIGEST_LENGTH = 32
_MAX_LENGTH = 1024 * 1024  # bytes; coreos-installer's limit, real ones use some thousand
_MAX_FILES = 1024  # real ones have some dozen
_MAX_LITERAL = 16 * 1024 * 1024  # bytes; real ones have less than one MiB
_MAX_DECODER_MEMORY = 80 * 1024 * 1024  # preset 9, which writers use, needs 65 MiB
_ZERO_RUN = bytes(4096)  # shorter ones cost less as bytes than as pieces of their own
_NOT_ZERO = re.compile(rb"[^\0]")
_CHUNK = 1024 * 1024


@attrs.frozen
class CopiedFile:
    """A file that both ISOs have: its offset in each, and its length."""

    minimal: int
    full: int
    length: int


Piece: TypeAlias = CopiedFile | bytes | int
"""A file of the full ISO, literal bytes, or a number of zero bytes."""


@attrs.frozen
class MinimalIso:
    """The recipe by which a minimal ISO is made of its full one."""

    pieces: tuple[Piece, ...] = attrs.field(repr=False)  # in order, none empty
    size: int  # bytes of the minimal ISO
    sha256: str  # of the minimal ISO before any customization, lower-case hex

    def translate(self, offset: int, length: int) -> int:
        """Return the offset in the minimal ISO of ``length`` bytes at ``offset`` of the full one."""
        for piece in self.pieces:
            if isinstance(piece, CopiedFile) and (
                piece.full <= offset and offset + length <= piece.full + piece.length
            ):
                return piece.minimal + offset - piece.full
        raise FormatError(f"the minimal ISO lacks the full one's {length} bytes at offset {offset}")


def read_minimal_iso(read_at: ReadAt, file: Span, image_size: int) -> MinimalIso:
    """Read the recipe in ``file``, coreos/miniso.dat; only `check_minimal_iso` shows if its result is right.

    No file of the recipe leaves the ``image_size`` bytes of the full ISO.
    """
    fields = BincodeReader(file.path, read_exactly(read_at, file.offset, min(file.length, _MAX_LENGTH)))
    if fields.read(len(_MAGIC)) != _MAGIC:
        raise FormatError(f"{fields.path} does not begin with MINISO: the build did not pack a minimal ISO")
    version = fields.read_number()
    if version != _VERSION:
        raise FormatError(f"{fields.path} has version {version}; only {_VERSION} is supported")
    fields.read_bytes()
    files = _read_files(fields, image_size)
    digest = fields.read(_DIGEST_LENGTH)
    copied = sum(file.length for file in files)
    gaps = files[-1].minimal + files[-1].length - copied
    literal = _decompress(fields.path, fields.read_bytes(), gaps)
    return MinimalIso(tuple(_split_pieces(files, literal)), copied + len(literal), digest.hex())


def check_minimal_iso(minimal: MinimalIso, read_at: ReadAt, check_canceled: Callable[[], None]) -> None:
    """Raise FormatError if the minimal ISO's SHA-256 is not its builder's.

    Args:
        check_canceled: called before each MiB; may raise to stop.
    """
    digest = hashlib.sha256()
    for piece in minimal.pieces:
        length = piece if isinstance(piece, int) else len(piece) if isinstance(piece, bytes) else piece.length
        for start in range(0, length, _CHUNK):
            count = min(_CHUNK, length - start)
            check_canceled()
            match piece:
                case int():
                    digest.update(bytes(count))
                case bytes():
                    digest.update(piece[start : start + count])
                case CopiedFile():
                    digest.update(read_exactly(read_at, piece.full + start, count))
    if digest.hexdigest() != minimal.sha256:
        raise FormatError(
            f"the minimal ISO of {minimal.size} bytes has the SHA-256 {digest.hexdigest()},"
            f" not its builder's {minimal.sha256}"
        )


@attrs.define
class BincodeReader:
    """Reads the fields of a file in order; raises FormatError where the data ends or is invalid."""

    path: str
    _data: bytes = attrs.field(repr=False)
    _position: int = 0

    def read(self, length: int) -> bytes:
        """Read ``length`` bytes."""
        start, end = self._position, self._position + length
        if end > len(self._data):
            raise FormatError(f"{self.path} ends too soon: {length} bytes are expected at its offset {start}")
        self._position = end
        return self._data[start:end]

    def read_number(self) -> int:
        """Read a number of at most 64 bits."""
        first = self.read(1)[0]
        if first in _ONE_BYTE:
            return first
        if first not in _NUMBER_LENGTHS:
            raise FormatError(f"{self.path} has an invalid number at its offset {self._position - 1}")
        return int.from_bytes(self.read(_NUMBER_LENGTHS[first]), "little")

    def read_bytes(self) -> bytes:
        """Read bytes that follow their length."""
        return self.read(self.read_number())


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
            raise FormatError(
                f"{fields.path}: file {index} extends beyond the ISO of {image_size} bytes: {file}"
            )
        files.append(file)
        end = file.minimal + file.length
    return files


def _decompress(path: str, packed: bytes, gaps: int) -> bytes:
    """Return the literal bytes, at least the ``gaps`` before and between the files."""
    if gaps > _MAX_LITERAL:
        raise FormatError(f"{path} leaves {gaps} bytes between its files, more than {_MAX_LITERAL}")
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DECODER_MEMORY)
    try:
        literal = decompressor.decompress(packed, _MAX_LITERAL + 1)
    except lzma.LZMAError as error:
        raise FormatError(f"the xz stream in {path} is damaged or unsupported: {error}") from None
    if len(literal) > _MAX_LITERAL:
        raise FormatError(f"the xz stream in {path} exceeds {_MAX_LITERAL} decompressed bytes")
    if not decompressor.eof or decompressor.unused_data:
        raise FormatError(f"the xz stream in {path} does not end at the end of its {len(packed)} bytes")
    if len(literal) < gaps:
        raise FormatError(
            f"the xz stream in {path} has {len(literal)} decompressed bytes; {gaps} are expected"
        )
    return literal


def _split_pieces(files: Sequence[CopiedFile], literal: bytes) -> Iterator[Piece]:
    """Yield the files, with the literal bytes before, between and after them."""
    position = end = 0
    for file in files:
        gap = file.minimal - end
        yield from _split_literal(literal[position : position + gap])
        yield file
        position += gap
        end = file.minimal + file.length
    yield from _split_literal(literal[position:])


def _split_literal(literal: bytes) -> Iterator[bytes | int]:
    """Yield the bytes, with long runs of zeros as their number."""
    position = 0
    while (zeros := literal.find(_ZERO_RUN, position)) >= 0:
        if position < zeros:
            yield literal[position:zeros]
        other = _NOT_ZERO.search(literal, zeros)
        position = other.start() if other else len(literal)
        yield position - zeros
    if position < len(literal):
        yield literal[position:]
