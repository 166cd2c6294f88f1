"""cpio archives in the "newc" format, which the kernel unpacks its initial file system from.

    offset  size  content, all numbers as 8 hexadecimal digits
    0       6     070701
    6       8     inode: here the member's index
    14      8     mode
    22      24    uid, gid, number of links: here 0, 0, 1
    46      8     modification time: here 0
    54      8     length of the data
    62      32    device numbers: here 0
    94      8     length of the name with its NUL
    102     8     checksum: 0
    110           name and NUL, zeros up to a multiple of 4, data, zeros up to a multiple of 4

Numbers are counted from the archive's start, and the archive ends with a member called TRAILER!!!. What is
written is, byte for byte, what coreos-installer writes for the same members.
"""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import attrs

from image_service.errors import FormatError
from image_service.formats.iso9660 import IsoFile
from image_service.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.formats.reading import ReadAt

NEWC_MAGIC = b"070701"
_HEADER = re.compile(rb"070701[0-9A-Fa-f]{104}")
_HEADER_LENGTH = 110
_TRAILER = "TRAILER!!!"
_MAX_LOCATED = 64  # members; a real rootfs.img has some dozen
_MAX_NAME = 4096  # bytes, as much as a path may have; dracut pads names up to a page
_DIRECTORY_MODE = stat.S_IFDIR | 0o755


@attrs.frozen
class Member:
    """A file in an archive.

    Args:
        name: path from the root, without a slash in front.
        data: content.
        mode: file type and permissions.
    """

    name: str
    data: bytes = attrs.field(repr=False)
    mode: int = stat.S_IFREG | 0o600


def write_archive(members: Iterable[Member]) -> bytes:
    """Write members in the order of their names' bytes, each after the directories that it needs.

    The kernel silently leaves out a file whose directory is not in the archive.

    Args:
        members: those named twice must be the same.

    Returns:
        an archive that depends on nothing but the members.

    Raises:
        ValueError: two members have one name, or a name is not a plain relative path.
    """
    complete = [*_with_directories(members), Member(_TRAILER, b"", 0)]
    numbers = [*range(len(complete) - 1), 0]
    return b"".join(map(_write_member, complete, numbers))


def read_archive(archive: bytes, start: int = 0) -> tuple[list[Member], int]:
    """Read the members of the archive at ``start``.

    Returns:
        the members, as they come, and the offset behind the archive.

    Raises:
        FormatError: it is damaged or not all there.
    """
    members: list[Member] = []
    position = start
    while True:
        member, position = _read_member(archive, start, position)
        if member.name == _TRAILER:
            return members, position
        members.append(member)


def locate_members(read_at: ReadAt, archive: IsoFile) -> Iterator[IsoFile]:
    """Find the members of an archive that is itself a file of the image, reading only their headers.

    Args:
        read_at: reads the image.
        archive: not compressed.

    Yields:
        the members, as they come, up to the 64th.

    Raises:
        FormatError: the archive is damaged or not all there.
    """
    position = 0
    for _ in range(_MAX_LOCATED):
        where = f"offset {position} of {archive.path}"
        header = read_exactly(read_at, archive.offset + position, _HEADER_LENGTH)
        _, length, name_length = _parse_header(header, where)
        name_end = position + _HEADER_LENGTH + name_length
        data = _aligned(name_end, 0)
        if name_length > _MAX_NAME or data + length > archive.length:
            raise FormatError(f"the cpio member at {where} leaves it, or has a name of {name_length} bytes")
        name = _decode(read_exactly(read_at, archive.offset + position + _HEADER_LENGTH, name_length))
        if name == _TRAILER:
            return
        yield IsoFile(name, archive.offset + data, length)
        position = _aligned(data + length, 0)


def _with_directories(members: Iterable[Member]) -> Iterator[Member]:
    written: dict[str, Member] = {}
    for member in sorted(members, key=lambda member: _encode(member.name)):
        for directory in _parents(member.name):
            if directory not in written:
                written[directory] = Member(directory, b"", _DIRECTORY_MODE)
                yield written[directory]
            elif not stat.S_ISDIR(written[directory].mode):
                raise ValueError(f"{directory!r} is a member and the directory of another")
        if member.name in written:
            raise ValueError(f"two members are called {member.name!r}")
        written[member.name] = member
        yield member


def _parents(name: str) -> Iterator[str]:
    """The directories that lead to ``name``, outermost first."""
    parts = name.split("/")
    if not {"", ".", "..", _TRAILER}.isdisjoint(parts) or "\0" in name:
        raise ValueError(f"{name!r} is not a plain relative path")
    return ("/".join(parts[:depth]) for depth in range(1, len(parts)))


def _write_member(member: Member, number: int) -> bytes:
    name = _encode(member.name) + b"\0"
    fields = (number, member.mode, 0, 0, 1, 0, len(member.data), 0, 0, 0, 0, len(name), 0)
    header = NEWC_MAGIC + b"".join(b"%08x" % field for field in fields)
    return _padded(header + name) + _padded(member.data)


def _read_member(archive: bytes, start: int, position: int) -> tuple[Member, int]:
    """The member at ``position`` of the archive at ``start``, and the offset behind it."""
    header = archive[position : position + _HEADER_LENGTH]
    mode, length, name_length = _parse_header(header, f"offset {position} of the initrd")
    name_end = position + _HEADER_LENGTH + name_length
    data = _aligned(name_end, start)
    if data + length > len(archive):
        raise FormatError(f"the initrd ends within the cpio member at offset {position}")
    name = _decode(archive[position + _HEADER_LENGTH : name_end])
    return Member(name, archive[data : data + length], mode), min(
        _aligned(data + length, start), len(archive)
    )


def _parse_header(header: bytes, where: str) -> tuple[int, int, int]:
    """The mode, the length of the data and the length of the name."""
    if not _HEADER.fullmatch(header):
        raise FormatError(f"no cpio header at {where}")
    mode, length, name_length = (int(header[at : at + 8], 16) for at in (14, 54, 94))
    return mode, length, name_length


def _decode(name: bytes) -> str:
    return name.rstrip(b"\0").decode("utf-8", "surrogateescape")


def _encode(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _aligned(position: int, start: int) -> int:
    return position + (start - position) % 4
