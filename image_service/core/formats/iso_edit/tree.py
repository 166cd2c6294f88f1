"""A tree of directories of an ISO: found and changed; layout.py writes it. Only what is on a path is read."""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError, FormatUnread, Unprocessable
from image_service.core.formats.iso9660.descriptors import Descriptor, Names
from image_service.core.formats.iso9660.records import (
    MULTI_EXTENT,
    PARENT,
    SECTOR,
    SELF,
    Record,
    make_record,
    parse_records,
)
from image_service.core.formats.iso9660.rock_ridge import (
    entries_of_new_file,
    find_name,
    find_skip,
    read_entries,
)
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from image_service.core.formats.reading import ReadAt

_MAX_DIRECTORY = 1 << 20  # bytes
_MAX_BLOCKS = 4096  # of Rock Ridge entries outside of directories
_NO_NAMES = {"", ".", ".."}  # of files
_MAX_DEPTH = 32
_MAX_JOLIET = 103  # characters, which all readers accept; the standard has 64
_MAX_ENHANCED = 207
_MAX_ROCK_RIDGE = 150  # bytes that fit beside the other entries of a record
_STEM, _RELAXED_STEM, _EXTENSION = 8, 27, 3
_STRICT, _RELAXED = re.compile(rb"[^A-Z0-9_]"), re.compile(rb"[^!-~]|[/;.]")
_NOT_ONE_FILE = (b"SL", b"ZF", b"CL", b"PL")


@attrs.define(eq=False)
class Directory:
    """A directory.

    Args:
        at: its offset in the base image; -1: it is new.
        identifier: its name as its tree stores it; of the root `SELF`.
    """

    parent: Directory | None
    identifier: bytes
    at: int
    allocated: int
    records: list[Record]
    was: bytes = attrs.field(repr=False)
    children: dict[bytes, Directory] = attrs.field(factory=dict, repr=False)
    names: dict[str, int] | None = attrs.field(default=None, repr=False)
    is_changed: bool = False
    new_subdirectories: int = 0

    @property
    def depth(self) -> int:
        """Its level; the root has 0."""
        return self.parent.depth + 1 if self.parent else 0


class Tree:
    """The tree of a volume descriptor, or of several that share it.

    Args:
        descriptors: at least one.
        read_at: reads the image.

    Raises:
        FormatError: the root is damaged.
    """

    def __init__(self, descriptors: list[Descriptor], read_at: ReadAt) -> None:
        self.descriptors = descriptors
        self.read_at = read_at
        first = descriptors[0]
        self.start, self.spelling = first.start, first.names
        self._blocks: dict[int, bytes] = {}
        self._loaded: list[tuple[int, int]] = []  # where directories begin and end
        self.root = self._load(first.root, None, SELF)
        self.skip = find_skip(self.root.records[0].system_use)
        files = [record.identifier for record in self.root.records if not record.is_directory]
        self._has_versions = not files or any(name.endswith(b";1") for name in files)
        self._serials = count(0x40000000)  # those of the base are small

    @property
    def has_rock_ridge(self) -> bool:
        """Whether its names are those of Rock Ridge."""
        return self.skip is not None

    def find(self, path: str) -> tuple[Record, ...]:
        """Return the records of a file or directory, one for each section; none if it is absent."""
        *parents, name = path.split("/")
        directory: Directory | None = self.root
        for parent in parents:
            directory = directory and self._enter(directory, parent)
        return self._find(directory, name) if directory else ()

    def entries(self, path: str) -> dict[str, Record] | None:
        """Return what a directory has, by name; None if it is absent. The root is ""."""
        directory: Directory | None = self.root
        for name in filter(None, path.split("/")):
            directory = directory and self._enter(directory, name)
        if directory is None:
            return None
        return {name: directory.records[index] for name, index in self._index(directory).items()}

    def put(self, path: str, offset: int, length: int, like: tuple[Record, ...]) -> None:
        """Add or replace a file.

        Args:
            offset: of its content in the new image; a multiple of 2048 behind `start`.
            like: the records that it has in another tree, by which it is found if names are cut here.

        Raises:
            Unprocessable: the path is of a directory, or passes through a file, or cannot be stored.
        """
        *parents, name = path.split("/")
        directory = self.root
        for number, parent in enumerate(parents):
            below = self._enter(directory, parent)
            if below is None:
                if self._find(directory, parent):
                    raise Unprocessable(f"{'/'.join(parents[: number + 1])!r} in the ISO is not a directory")
                below = self._add_directory(directory, parent)
            directory = below
        found = self._find(directory, name) or self._find_place(directory, like)
        if found and found[0].is_directory:
            raise Unprocessable(f"{path!r} in the ISO is a directory")
        if found and self.spelling is Names.JOLIET and (other := self._name(found[0])) != name:
            raise Unprocessable(f"{path!r} differs from {other!r} in case only, which Joliet cannot store")
        block = (offset - self.start) // SECTOR
        directory.is_changed, directory.names = True, None
        if not found:
            self._insert(
                directory, self._new_record(directory, name, is_directory=False).moved(block, length)
            )
            return
        index = directory.records.index(found[0])
        record = found[0]
        if any(entry.startswith(_NOT_ONE_FILE) for entry in self._entries(record)):
            record = self._new_record(directory, name, is_directory=False, identifier=record.identifier)
        directory.records[index : index + len(found)] = [record.as_only_section().moved(block, length)]

    # Finding

    def _load(self, record: Record, parent: Directory | None, identifier: bytes) -> Directory:
        at, size = self.start + record.block * SECTOR, record.length
        if size > _MAX_DIRECTORY:
            raise FormatUnread(
                f"the ISO's directory at offset {at} has {size} bytes, more than {_MAX_DIRECTORY}"
            )
        if not record.is_plain:
            raise FormatUnread(
                f"the ISO's directory at offset {at} is interleaved or has extended attributes"
            )
        allocated = size + -size % SECTOR
        if any(start < at + allocated and at < stop for start, stop in self._loaded):
            raise FormatError(f"two directories of the ISO, or one under two names, lie at offset {at}")
        self._loaded.append((at, at + allocated))
        was = read_exactly(self.read_at, at, allocated)
        records = list(parse_records(was[:size], at))
        if len(records) < 2 or (records[0].identifier, records[1].identifier) != (SELF, PARENT):  # noqa: PLR2004
            raise FormatError(f"the ISO's directory at offset {at} does not begin with itself and its parent")
        return Directory(parent, identifier, at, allocated, records, was)

    def _enter(self, directory: Directory, name: str) -> Directory | None:
        found = self._find(directory, name)
        if not found or not found[0].is_directory:
            return None
        record = found[0]
        if record.identifier not in directory.children:
            if directory.depth >= _MAX_DEPTH:
                raise FormatUnread(f"the ISO has more than {_MAX_DEPTH} levels of directories")
            directory.children[record.identifier] = self._load(record, directory, record.identifier)
        return directory.children[record.identifier]

    def _find(self, directory: Directory, name: str) -> tuple[Record, ...]:
        names = self._index(directory)
        index = names.get(name if self._is_exact else name.casefold())
        if index is None and self.spelling is Names.ISO and not self.has_rock_ridge:
            index = names.get(_level_1(name.casefold()))
        return () if index is None else self._sections(directory, index)

    def _sections(self, directory: Directory, index: int) -> tuple[Record, ...]:
        stop = index
        while directory.records[stop].flags & MULTI_EXTENT and stop + 1 < len(directory.records):
            stop += 1
        return tuple(directory.records[index : stop + 1])

    def _find_place(self, directory: Directory, like: tuple[Record, ...]) -> tuple[Record, ...]:
        """Find a file whose name is cut by the place of its content, which is that in the other tree."""
        if not like or self.has_rock_ridge or self.spelling is not Names.ISO:
            return ()
        place = like[0].data[2:18]
        for index, record in enumerate(directory.records):
            if record.data[2:18] == place and record.length and not record.is_directory:
                return self._sections(directory, index)
        return ()

    @property
    def _is_exact(self) -> bool:
        """Whether names in upper and lower case differ."""
        return self.has_rock_ridge or self.spelling is Names.ENHANCED

    def _index(self, directory: Directory) -> dict[str, int]:
        if directory.names is None:
            directory.names = {}
            is_section = False
            for index, record in enumerate(directory.records):
                if record.identifier not in {SELF, PARENT} and not is_section:
                    name = self._name(record)
                    if name not in _NO_NAMES and "/" not in name and "\0" not in name:
                        directory.names.setdefault(name if self._is_exact else name.casefold(), index)
                is_section = bool(record.flags & MULTI_EXTENT)
        return directory.names

    def _name(self, record: Record) -> str:
        if self.spelling is Names.JOLIET:
            return record.identifier.decode("utf-16-be", "replace").removesuffix(";1")
        if self.has_rock_ridge and (text := find_name(self._entries(record))) is not None:
            return text.decode("utf-8", "surrogateescape")
        name = record.identifier.decode("utf-8", "surrogateescape").removesuffix(";1")
        return name.removesuffix(".") if self.spelling is Names.ISO else name

    def _entries(self, record: Record) -> list[bytes]:
        if self.skip is None:
            return []
        is_root = record is self.root.records[0]
        area = record.system_use if is_root else record.system_use[self.skip :]
        return list(read_entries(area, self._read_block))

    def _read_block(self, block: int, offset: int, length: int) -> bytes:
        if offset + length > SECTOR:
            raise FormatError(f"Rock Ridge entries leave block {block} of the ISO")
        if block not in self._blocks:
            if len(self._blocks) == _MAX_BLOCKS:
                raise FormatUnread(f"Rock Ridge entries of the ISO are in more than {_MAX_BLOCKS} blocks")
            self._blocks[block] = read_exactly(self.read_at, self.start + block * SECTOR, SECTOR)
        return self._blocks[block][offset : offset + length]

    # Changing

    def _add_directory(self, parent: Directory, name: str) -> Directory:
        record = self._new_record(parent, name, is_directory=True)
        if parent.depth + 1 >= _MAX_DEPTH:
            raise Unprocessable(f"the path of {name!r} has more than {_MAX_DEPTH} levels")
        area = b""
        if self.skip is not None:
            area = bytes(self.skip) + entries_of_new_file(
                self._entries(parent.records[0]), b"", next(self._serials), is_directory=True
            )
        own = [make_record(each, parent.records[0], area, is_directory=True) for each in (SELF, PARENT)]
        directory = Directory(parent, record.identifier, -1, 0, own, b"", is_changed=True)
        parent.is_changed, parent.names = True, None
        parent.new_subdirectories += 1
        parent.children[record.identifier] = directory
        self._insert(parent, record)
        return directory

    def _new_record(
        self, directory: Directory, name: str, *, is_directory: bool, identifier: bytes | None = None
    ) -> Record:
        if identifier is None:
            identifier = self._new_identifier(directory, name, is_directory=is_directory)
        area = b""
        if self.skip is not None:
            text = name.encode("utf-8", "surrogateescape")
            if len(text) > _MAX_ROCK_RIDGE:
                raise Unprocessable(f"the name {name!r} has {len(text)} bytes, more than {_MAX_ROCK_RIDGE}")
            siblings = self._entries(directory.records[0])
            area = bytes(self.skip) + entries_of_new_file(
                siblings, text, next(self._serials), is_directory=is_directory
            )
        try:
            return make_record(identifier, directory.records[0], area, is_directory=is_directory)
        except FormatError as error:
            raise Unprocessable(f"the name {name!r} is too long for the ISO: {error.detail}") from None

    def _new_identifier(self, directory: Directory, name: str, *, is_directory: bool) -> bytes:
        taken = {record.identifier for record in directory.records}
        version = b"" if is_directory or not self._has_versions else b";1"
        if self.spelling is Names.JOLIET:
            if len(name.encode("utf-16-be")) > 2 * _MAX_JOLIET or re.search(r"[*/:;?\\\0-\x1f]", name):
                raise Unprocessable(
                    f"the name {name!r} is not of Joliet: at most {_MAX_JOLIET} characters, no * / : ; ? \\"
                )
            return name.encode("utf-16-be") + version.decode().encode("utf-16-be")
        if self.spelling is Names.ENHANCED:
            if len(name.encode()) > _MAX_ENHANCED:
                raise Unprocessable(f"the name {name!r} has more than {_MAX_ENHANCED} bytes")
            return name.encode()
        pattern, stem_bytes = (_STRICT, _STEM) if self.has_rock_ridge else (_RELAXED, _RELAXED_STEM)
        stem, _, extension = name.upper().encode("ascii", "replace").rpartition(b".")
        if is_directory or not stem:
            stem, extension = name.upper().encode("ascii", "replace"), b""
        stem, extension = pattern.sub(b"_", stem), pattern.sub(b"_", extension)[:_EXTENSION]
        for number in range(len(taken) + 1):
            suffix = str(number).encode() if number else b""
            dot = b"." if extension or version else b""
            found = stem[: stem_bytes - len(suffix)] + suffix + dot + extension + version
            if found not in taken:
                return found
        raise AssertionError("more names are taken than there are")  # pragma: no cover - one is always free

    def _insert(self, directory: Directory, record: Record) -> None:
        key = self._order(record.identifier)
        records = directory.records
        at = next(
            (i for i in range(2, len(records)) if self._order(records[i].identifier) > key), len(records)
        )
        while at < len(records) and at > 2 and records[at - 1].flags & MULTI_EXTENT:  # noqa: PLR2004 - . and ..
            at += 1
        records.insert(at, record)

    def _order(self, identifier: bytes) -> tuple[bytes, bytes]:
        if self.spelling is not Names.ISO:
            return identifier, b""
        stem, _, extension = identifier.partition(b";")[0].partition(b".")
        return stem.ljust(_RELAXED_STEM + _EXTENSION), extension.ljust(_EXTENSION)


def _level_1(name: str) -> str:
    """Return a name of at most eight characters, a dot and three (ECMA-119 section 10.1)."""
    stem, dot, extension = name.rpartition(".")
    return stem[:_STEM] + dot + extension[:_EXTENSION] if dot else name[:_STEM]
