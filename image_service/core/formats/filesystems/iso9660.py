"""ISO 9660 (ECMA-119): where a file lies in an image. Only the directories on its path are read.

    offset        content
    32768         volume descriptors, 2048 bytes each, up to the one of type 255; in the primary (type 1):
      +40    32   volume identifier
      +80     8   volume space size in sectors, both byte orders
      +128    4   logical block size, both byte orders
      +156   34   directory record of the root
      +813   17   creation date: YYYYMMDDHHMMSScc and the zone in quarters of an hour east of UTC, signed

    directory     records, none crossing a sector's end; a zero byte skips to the next sector
      +0      1   length of the record
      +1      1   sectors of extended attributes
      +2      8   first sector, both byte orders
      +10     8   length in bytes, both byte orders
      +25     1   flags: 0x02 directory, 0x80 more sections of this file follow
      +26     2   interleaving
      +32     1   length of the name, which follows: ``NAME.EXT;1``

Sectors are 2048 bytes. The little-endian halves are read, as coreos-installer does. Rock Ridge and Joliet are
not read: CoreOS ISOs are made for the names of level 1.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FileNotInImage, FormatError
from image_service.core.formats.reading import ReadAt, Span, read_exactly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SECTOR = 2048
_FIRST_DESCRIPTOR = 16
_MAX_DESCRIPTORS = 64  # real images have three or four
_PRIMARY, _TERMINATOR = b"\x01CD001\x01", b"\xffCD001\x01"
_DIRECTORY, _MULTI_EXTENT = 0x02, 0x80
_MAX_DEPTH = 8  # ECMA-119 section 6.8.2.1; also bounds a cycle
_MAX_DIRECTORY = 256 * 1024  # bytes, some thousands of files; real ones on our paths have one sector
_ZONES = range(-48, 52 + 1)  # quarters of an hour; ECMA-119 section 8.4.26.1
_RECORD_HEAD = 33
_SPECIAL_NAMES = {b"\0", b"\1"}  # the directory itself, and its parent


@attrs.frozen
class Iso9660:
    """An image's primary volume."""

    volume_id: str  # without padding
    created: datetime | None  # when the volume was made, UTC, whole seconds
    size: int  # volume space size in bytes; a hybrid image's file is longer
    _root: _Record = attrs.field(repr=False)
    _read_at: ReadAt = attrs.field(repr=False, eq=False)
    _file_size: int = attrs.field(repr=False)

    def find_file(self, path: str) -> Span:
        """Return where a file lies in the image; FileNotInImage if there is none.

        Args:
            path: from the root, in any case; each name in full (``igninfo.json``) or truncated to 8.3 by
                level 1 (``IGNINFO.JSO``), the full one preferred.
        """
        found = self._root
        names = [name for name in path.split("/") if name]
        if len(names) > _MAX_DEPTH:
            raise FileNotInImage(f"no file {path!r} in the ISO: ISO 9660 has {_MAX_DEPTH} levels")
        for name in names:
            if not found.is_directory:
                raise FileNotInImage(f"no file {path!r} in the ISO: a parent is not a directory")
            found = _find_record(list(_read_records(self._read_at, found)), name, path)
            _check_extent(found, path, self._file_size)
        if found.is_directory:
            raise FormatError(f"{path!r} in the ISO is a directory")
        return Span(path, found.offset, found.length)

    def list_files(self, path: str) -> Iterator[Span]:
        """Yield the files below a directory, with their paths as the ISO spells them; none if it is absent.

        The sections of a file of 4 GiB or more come one by one.
        """
        found = self._root
        for name in filter(None, path.split("/")):
            records = [record for record in _read_records(self._read_at, found) if record.is_directory]
            matching = [record for record in records if record.name == name.upper().encode()]
            if not matching:
                return
            (found, *_) = matching
            _check_extent(found, path, self._file_size)
        yield from self._list_below(found, path.strip("/"), _MAX_DEPTH)

    def _list_below(self, directory: _Record, path: str, levels: int) -> Iterator[Span]:
        for record in _read_records(self._read_at, directory):
            if record.name in _SPECIAL_NAMES:
                continue
            name = f"{path}/{record.name.decode('ascii', 'replace')}"
            _check_extent(record, name, self._file_size)
            if not record.is_directory:
                yield Span(name, record.offset, record.length)
            elif levels:
                yield from self._list_below(record, name, levels - 1)


def read_iso9660(read_at: ReadAt, size: int) -> Iso9660:
    """Read the primary volume descriptor of a file of ``size`` bytes; FormatError unless the ISO is whole."""
    primary = _read_primary_descriptor(read_at)
    if int.from_bytes(primary[128:130], "little") != SECTOR:
        raise FormatError(f"the ISO's logical blocks are not of {SECTOR} bytes")
    volume_size = int.from_bytes(primary[80:84], "little") * SECTOR
    if volume_size > size:
        raise FormatError(f"the ISO is incomplete: the file has {size} bytes of {volume_size}")
    root = _parse_record(primary[156:190])
    _check_extent(root, "/", size)
    return Iso9660(
        volume_id=primary[40:72].decode("ascii", "replace").rstrip(" \0"),
        created=_parse_date(primary[813:830]),
        size=volume_size,
        root=root,
        read_at=read_at,
        file_size=size,
    )


@attrs.frozen
class _Record:  # or the sections of a file joined into one
    name: bytes
    offset: int
    length: int
    flags: int
    plain: bool  # neither extended attributes nor interleaving: the extent is the content

    @property
    def is_directory(self) -> bool:
        return bool(self.flags & _DIRECTORY)


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


def _read_records(read_at: ReadAt, directory: _Record) -> Iterator[_Record]:
    offset, size = directory.offset, directory.length
    if size > _MAX_DIRECTORY:
        raise FormatError(
            f"the ISO's directory at offset {offset} has {size} bytes, more than {_MAX_DIRECTORY}"
        )
    content = read_exactly(read_at, offset, size)
    position = 0
    while position < size:
        length = content[position]
        end = min(position - position % SECTOR + SECTOR, size)
        if not length:
            position = end
            continue
        record = content[position : min(position + length, end)]
        if len(record) < length or length <= _RECORD_HEAD or length < _RECORD_HEAD + record[32]:
            raise FormatError(f"the ISO has a damaged directory record at offset {offset + position}")
        yield _parse_record(record)
        position += length


def _parse_record(record: bytes) -> _Record:
    return _Record(
        name=record[_RECORD_HEAD : _RECORD_HEAD + record[32]].partition(b";")[0].removesuffix(b".").upper(),
        offset=int.from_bytes(record[2:6], "little") * SECTOR,
        length=int.from_bytes(record[10:14], "little"),
        flags=record[25],
        plain=not (record[1] or record[26] or record[27]),
    )


def _check_extent(record: _Record, path: str, file_size: int) -> None:
    if record.offset + record.length > file_size:
        raise FormatError(
            f"{path!r} in the ISO extends beyond the file of {file_size} bytes:"
            f" {record.length} bytes at offset {record.offset}"
        )
    if not record.plain:
        raise FormatError(f"{path!r} in the ISO is interleaved or has extended attributes")


def _find_record(records: Sequence[_Record], name: str, path: str) -> _Record:
    full = name.upper().encode("utf-8", "replace")
    # Level 1 (ECMA-119 section 10.1): eight characters, a dot, three characters.
    stem, dot, extension = full.rpartition(b".")
    level_1 = stem[:8] + dot + extension[:3] if dot else full[:8]
    sections = [record for record in records if record.name == full]
    sections = sections or [record for record in records if record.name == level_1]
    if not sections:
        raise FileNotInImage(f"no file {path!r} in the ISO")
    first, length = sections[0], 0  # files of 4 GiB and more have several sections, which are joined
    for section in sections:
        if section.offset != first.offset + length:
            raise FormatError(
                f"{path!r} in the ISO is fragmented: a section is at offset {section.offset}"
                f" instead of {first.offset + length}"
            )
        length += section.length
        if not section.flags & _MULTI_EXTENT:
            return attrs.evolve(first, length=length, plain=first.plain and section.plain)
    raise FormatError(f"{path!r} in the ISO lacks its last piece")
