"""ISO 9660 (ECMA-119): where a file lies in an image. Only the directories on its path are read.

    offset        content
    32768         volume descriptors, 2048 bytes each, up to the one of type 255; in the primary (type 1):
      +40    32   volume identifier
      +80     8   volume space size in sectors, both byte orders
      +128    4   logical block size, both byte orders
      +156   34   directory record of the root
      +813   17   creation date: YYYYMMDDHHMMSScc and the zone in quarters of an hour east of UTC, signed

Rock Ridge and Joliet are not read: CoreOS ISOs are made for the names of level 1.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.iso9660.records import (
    MULTI_EXTENT,
    PARENT,
    SECTOR,
    SELF,
    Record,
    parse_records,
)
from image_service.core.formats.reading import ReadAt, Span, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FIRST_DESCRIPTOR = 16
_MAX_DESCRIPTORS = 64  # real images have three or four
_PRIMARY, _TERMINATOR = b"\x01CD001\x01", b"\xffCD001\x01"
_MAX_DEPTH = 8  # ECMA-119 section 6.8.2.1; also bounds a cycle
_MAX_LISTED = 16 * 1024 * 1024  # bytes of directories that are listed at once
_MAX_DIRECTORY = 256 * 1024  # bytes, some thousands of files; real ones on our paths have one sector
_ZONES = range(-48, 52 + 1)  # quarters of an hour; ECMA-119 section 8.4.26.1


@attrs.frozen
class Iso9660:
    """An image's primary volume."""

    volume_id: str  # without padding
    created: datetime | None  # when the volume was made, UTC, whole seconds
    size: int  # volume space size in bytes; a hybrid image's file is longer
    _root: Span = attrs.field(repr=False)
    _read_at: ReadAt = attrs.field(repr=False, eq=False)
    _file_size: int = attrs.field(repr=False)

    def find_file(self, path: str) -> Span:
        """Return where a file lies in the image; FileNotInImage if there is none.

        Args:
            path: from the root, in any case; each name in full (``igninfo.json``) or truncated to 8.3 by
                level 1 (``IGNINFO.JSO``), the full one preferred.
        """
        place, is_directory = self._root, True
        names = [name for name in path.split("/") if name]
        if len(names) > _MAX_DEPTH:
            raise FileNotInImage(f"no file {path!r} in the ISO: ISO 9660 has {_MAX_DEPTH} levels")
        for name in names:
            if not is_directory:
                raise FileNotInImage(f"no file {path!r} in the ISO: a parent is not a directory")
            sections = _find_sections(list(_read_directory(self._read_at, place)), name, path)
            place, is_directory = _locate(path, sections, self._file_size), sections[0].is_directory
        if is_directory:
            raise FormatError(f"{path!r} in the ISO is a directory")
        return place

    def list_files(self, path: str) -> Iterator[Span]:
        """Yield the files below a directory, with their paths as the ISO spells them; none if it is absent.

        The sections of a file of 4 GiB or more come one by one.
        """
        place = self._root
        for name in filter(None, path.split("/")):
            records = [record for record in _read_directory(self._read_at, place) if record.is_directory]
            matching = [record for record in records if _name(record) == name.upper().encode()]
            if not matching:
                return
            place = _locate(path, matching[:1], self._file_size)
        yield from self._list_below(place, path.strip("/"), {})

    def _list_below(self, directory: Span, path: str, listed: dict[int, int]) -> Iterator[Span]:
        """Yield the files below a directory that is not among those listed so far, offsets with sizes."""
        listed[directory.offset] = directory.length
        if sum(listed.values()) > _MAX_LISTED:
            raise FormatError(f"the directories of the ISO have more than {_MAX_LISTED} bytes at {path!r}")
        for record in _read_directory(self._read_at, directory):
            if record.identifier in {SELF, PARENT}:
                continue
            name = f"{path}/{_name(record).decode('ascii', 'replace')}"
            place = _locate(name, [record], self._file_size)
            if not record.is_directory:
                yield place
            elif place.offset not in listed and name.count("/") < _MAX_DEPTH:
                yield from self._list_below(place, name, listed)


def read_iso9660(read_at: ReadAt, size: int) -> Iso9660:
    """Read the primary volume descriptor of a file of ``size`` bytes; FormatError unless the ISO is whole."""
    primary = _read_primary_descriptor(read_at)
    if int.from_bytes(primary[128:130], "little") != SECTOR:
        raise FormatError(f"the ISO's logical blocks are not of {SECTOR} bytes")
    volume_size = int.from_bytes(primary[80:84], "little") * SECTOR
    if volume_size > size:
        raise FormatError(f"the ISO is incomplete: the file has {size} bytes of {volume_size}")
    return Iso9660(
        volume_id=primary[40:72].decode("ascii", "replace").rstrip(" \0"),
        created=_parse_date(primary[813:830]),
        size=volume_size,
        root=_locate("/", [Record(primary[156:190])], size),
        read_at=read_at,
        file_size=size,
    )


def _read_primary_descriptor(read_at: ReadAt) -> bytes:
    for sector in range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + _MAX_DESCRIPTORS):
        descriptor = read_at(sector * SECTOR, SECTOR)
        if len(descriptor) != SECTOR or descriptor[1:6] != b"CD001":
            raise FormatError(f"not an ISO 9660 image: no volume descriptor at offset {sector * SECTOR}")
        if descriptor.startswith(_PRIMARY):
            return descriptor
        if descriptor.startswith(_TERMINATOR):
            break
    raise FormatError("not an ISO 9660 image: no primary volume descriptor")


def _parse_date(field: bytes) -> datetime | None:
    """Parse a date (ECMA-119 section 8.4.26.1) to whole seconds; None if it is absent or impossible."""
    digits = field[:14]
    quarters = int.from_bytes(field[16:17], signed=True)
    if not digits.isdigit() or quarters not in _ZONES:
        return None
    try:
        zone = timezone(timedelta(minutes=15 * quarters))
        return datetime.strptime(digits.decode(), "%Y%m%d%H%M%S").replace(tzinfo=zone).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _read_directory(read_at: ReadAt, directory: Span) -> Iterator[Record]:
    offset, size = directory.offset, directory.length
    if size > _MAX_DIRECTORY:
        raise FormatError(
            f"the ISO's directory at offset {offset} has {size} bytes, more than {_MAX_DIRECTORY}"
        )
    yield from parse_records(read_exactly(read_at, offset, size), offset)


def _name(record: Record) -> bytes:
    return record.identifier.partition(b";")[0].removesuffix(b".").upper()


def _locate(path: str, sections: Sequence[Record], file_size: int) -> Span:
    """Return where a file is whose sections follow each other."""
    offset, length = sections[0].block * SECTOR, sum(section.length for section in sections)
    if offset + length > file_size:
        raise FormatError(
            f"{path!r} in the ISO extends beyond the file of {file_size} bytes:"
            f" {length} bytes at offset {offset}"
        )
    if not all(section.is_plain for section in sections):
        raise FormatError(f"{path!r} in the ISO is interleaved or has extended attributes")
    return Span(path, offset, length)


def _find_sections(records: Sequence[Record], name: str, path: str) -> Sequence[Record]:
    """Return the records of a file; one of 4 GiB or more has several."""
    full = name.upper().encode("utf-8", "replace")
    # Level 1 (ECMA-119 section 10.1): eight characters, a dot, three characters.
    stem, dot, extension = full.rpartition(b".")
    level_1 = stem[:8] + dot + extension[:3] if dot else full[:8]
    sections = [record for record in records if _name(record) == full]
    sections = sections or [record for record in records if _name(record) == level_1]
    if not sections:
        raise FileNotInImage(f"no file {path!r} in the ISO")
    end = sections[0].block * SECTOR
    for number, section in enumerate(sections, 1):
        if section.block * SECTOR != end:
            raise FormatError(
                f"{path!r} in the ISO is fragmented: a section is at offset {section.block * SECTOR}"
                f" instead of {end}"
            )
        end += section.length
        if not section.flags & MULTI_EXTENT:
            return sections[:number]
    raise FormatError(f"{path!r} in the ISO lacks its last piece")
