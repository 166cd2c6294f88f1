"""cpio archives in the "newc" format, which the kernel unpacks its initial file system from.

    offset  size  content, all numbers as 8 hexadecimal digits
    0       6     070701; 070702 if the checksum is set, which Linux reads from 5.19 on
    6       8     inode: here the member's index
    14      8     mode
    22      24    uid, gid, number of links: here 0, 0, 1
    46      8     modification time: here 0
    54      8     length of the data
    62      32    device numbers: here 0
    94      8     length of the name with its NUL
    102     8     checksum, the sum of the data's bytes: here 0
    110           name and NUL, zeros up to a multiple of 4, data, zeros up to a multiple of 4

Multiples count from the archive's start; a member called TRAILER!!! ends the archive. Written archives equal,
byte for byte, those that coreos-installer writes for the same members.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.reading import Span, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.core.formats.byte_stream import ByteStream
    from image_service.core.formats.reading import ReadAt

NEWC_MAGIC = b"070701"
NEWC_MAGICS = NEWC_MAGIC, b"070702"
"""The beginnings of archives: without and with checksums."""
_HEADER = re.compile(rb"07070[12][0-9A-Fa-f]{104}")
_HEADER_LENGTH = 110
_TRAILER = "TRAILER!!!"
MAX_MEMBER = 0xFFFF_FFFF
"""The size of the largest file in an archive."""
_MAX_LOCATED = 64  # members; a real rootfs.img has some dozen
_MAX_NAME = 4096  # bytes, the limit of a path; dracut pads names up to a page
_DIRECTORY_MODE = stat.S_IFDIR | 0o755


@attrs.frozen
class Member:
    """A file in an archive: its path without a leading slash, its content, its type and permissions."""

    name: str
    data: bytes = attrs.field(repr=False)
    mode: int = stat.S_IFREG | 0o600


@attrs.frozen(eq=False)
class StreamedMember:
    """A file in an archive that is read as a stream; its content must be read before the next member."""

    name: str
    mode: int
    size: int
    _archive: ByteStream

    def read(self, limit: int) -> bytes:
        """Return the content; FormatError if it has more than ``limit`` bytes."""
        if self.size > limit:
            raise FormatError(f"the cpio member {self.name!r} has {self.size} bytes, more than {limit}")
        return self._archive.read(self.size)


def write_archive(members: Iterable[Member]) -> bytes:
    """Render members in the order of their names' bytes, each after its parent directories.

    The kernel silently skips a file whose directory is not in the archive. The archive depends on nothing but
    the members.

    Raises:
        ValueError: two members have one name, or a name is not a plain relative path.
    """
    archive = []
    for number, member in enumerate(_with_directories(members)):
        archive += [_head(member, len(member.data), number), _pad(member.data)]
    return b"".join((*archive, _END))


def frame_member(name: str, size: int) -> tuple[bytes, bytes]:
    """Return what precedes and what follows the content in an archive with one file.

    Args:
        name: without directories.
        size: of the content, at most `MAX_MEMBER`.
    """
    return _head(Member(name, b""), size), bytes(-size % 4) + _END


def _head(member: Member, size: int, number: int = 0) -> bytes:
    name = _encode(member.name) + b"\0"
    fields = (number, member.mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name), 0)
    return _pad(NEWC_MAGIC + b"".join(b"%08x" % field for field in fields) + name)


def _with_directories(members: Iterable[Member]) -> Iterator[Member]:
    written: dict[str, Member] = {}
    for member in sorted(members, key=lambda member: _encode(member.name)):
        parts = member.name.split("/")
        if not {"", ".", "..", _TRAILER}.isdisjoint(parts) or "\0" in member.name:
            raise ValueError(f"{member.name!r} is not a plain relative path")
        for depth in range(1, len(parts)):
            directory = "/".join(parts[:depth])
            if directory not in written:
                written[directory] = Member(directory, b"", _DIRECTORY_MODE)
                yield written[directory]
            elif not stat.S_ISDIR(written[directory].mode):
                raise ValueError(f"{directory!r} is both a file and a directory")
        if member.name in written:
            raise ValueError(f"two members are called {member.name!r}")
        written[member.name] = member
        yield member


def read_archive(archive: bytes, start: int = 0) -> tuple[list[Member], int]:
    """Return the members of the archive at offset ``start``, and the offset after it."""
    members: list[Member] = []
    position = start
    while True:
        header = archive[position : position + _HEADER_LENGTH]
        mode, length, name_length = _parse_header(header, f"offset {position} of the initrd")
        name_end = position + _HEADER_LENGTH + name_length
        data = _align(name_end, start)
        if data + length > len(archive):
            raise FormatError(f"the initrd ends within the cpio member at offset {position}")
        name = _decode(archive[position + _HEADER_LENGTH : name_end])
        position = min(_align(data + length, start), len(archive))
        if name == _TRAILER:
            return members, position
        members.append(Member(name, archive[data : data + length], mode))


def locate_members(read_at: ReadAt, archive: Span) -> Iterator[Span]:
    """Yield where in an image the first 64 members of an uncompressed archive are, reading only headers."""
    position = 0
    for _ in range(_MAX_LOCATED):
        where = f"offset {position} of {archive.path}"
        header = read_exactly(read_at, archive.offset + position, _HEADER_LENGTH)
        _, length, name_length = _parse_header(header, where)
        data = _align(position + _HEADER_LENGTH + name_length, 0)
        if name_length > _MAX_NAME or data + length > archive.length:
            raise FormatError(f"the cpio member at {where} leaves it, or has a name of {name_length} bytes")
        name = _decode(read_exactly(read_at, archive.offset + position + _HEADER_LENGTH, name_length))
        if name == _TRAILER:
            return
        yield Span(name, archive.offset + data, length)
        position = _align(data + length, 0)


def stream_members(archive: ByteStream, where: str) -> Iterator[StreamedMember]:
    """Yield the members of the archive that starts where the stream is; the stream is then after the trailer.

    Args:
        archive: the stream; a member's content is skipped if it was not read before the next is asked for.
        where: the name of the stream, for messages.
    """
    start = archive.position
    while True:
        place = f"offset {archive.position} of {where}"
        mode, length, name_length = _parse_header(archive.read(_HEADER_LENGTH), place)
        if name_length > _MAX_NAME:
            raise FormatError(
                f"the cpio member at {place} has a name of {name_length} bytes, more than {_MAX_NAME}"
            )
        name = _decode(archive.read(name_length))
        archive.skip(_align(archive.position, start) - archive.position)
        end = archive.position + length
        if name != _TRAILER:
            yield StreamedMember(name, mode, length, archive)
        if not archive.skip(end - archive.position):
            raise FormatError(f"{where} ends within the cpio member {name!r}, which has {length} bytes")
        if name == _TRAILER:
            return
        archive.skip(_align(end, start) - end)


def _parse_header(header: bytes, where: str) -> tuple[int, int, int]:
    if not _HEADER.fullmatch(header):
        raise FormatError(f"no cpio header at {where}")
    mode, length, name_length = (int(header[at : at + 8], 16) for at in (14, 54, 94))
    return mode, length, name_length


def _decode(name: bytes) -> str:
    return name.rstrip(b"\0").decode("utf-8", "surrogateescape")


def _encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _pad(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _align(position: int, start: int) -> int:
    return position + (start - position) % 4


_END = _head(Member(_TRAILER, b"", 0), 0)
