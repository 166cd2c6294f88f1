"""squashfs 4.0: the nodes of a compressed file system, each read on demand.

    offset  size  superblock, all numbers little-endian
    0       4     hsqs
    12      4     block size, a power of two from 4 KiB to 1 MiB
    16      4     number of fragments
    20      2     compression: 1 gzip, 2 lzma, 3 lzo, 4 xz, 5 lz4, 6 zstd
    28      4     version: 4, 0
    32      8     the root's reference
    64      8     offset of the inode table
    72      8     offset of the directory table
    80      8     offset of the fragment table

    metadata block   2 bytes: stored length, 0x8000 if it is not compressed; then 8192 bytes,
                     compressed, or fewer at the end of a table
    reference        offset of a metadata block in its table << 16 | offset in its content
    inode            type (2), permissions (2), owner (4), time (4), number (4), the fields in `_BODIES`; then
                     the words of a file's blocks, or a symlink's target
    directory        runs: entries less one (4), their inodes' block (4), number (4); for each entry: offset
                     in that block (2), number (2), type (2), length of the name less one (2), name
    word             of a block: stored length, 1 << 24 if it is not compressed; 0 for a block of zeros
    fragment         the end of a file, in a block that it shares with others
    fragment table   offsets (8) of metadata blocks with 512 entries each: offset (8), word (4), unused (4)

The index of large directories, the lookup table, owners and extended attributes are not read.
"""

from __future__ import annotations

import stat
import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import decompress, decompress_xz, decompress_zlib, decompress_zstd
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.decompress import Decompressor
    from image_service.core.formats.reading import ReadAt

SQUASHFS_MAGIC = b"hsqs"

_SUPERBLOCK = struct.Struct("<12xIIH6xHHQ24xQQQ8x")
_VERSION = (4, 0)
_BLOCK_SIZES = [1 << bits for bits in range(12, 20 + 1)]
_COMPRESSIONS: Final[Mapping[int, Decompressor]] = {1: decompress_zlib, 4: decompress_xz, 6: decompress_zstd}
_REFUSED: Final[Mapping[int, str]] = {2: "lzma", 3: "lzo", 5: "lz4"}
_METADATA = 8192
_METADATA_PLAIN, _BLOCK_PLAIN = 1 << 15, 1 << 24
_INODE = struct.Struct("<HH12x")
_SYMLINK = struct.Struct("<4xI")
# By an inode's type: the file's type, and the fields.
_BODIES: Final[Mapping[int, tuple[int, struct.Struct, tuple[str, ...]]]] = {
    1: (stat.S_IFDIR, struct.Struct("<I4xHH4x"), ("start", "size", "offset")),
    2: (stat.S_IFREG, struct.Struct("<IIII"), ("start", "fragment", "offset", "size")),
    3: (stat.S_IFLNK, _SYMLINK, ("size",)),
    8: (stat.S_IFDIR, struct.Struct("<4xII4x2xH4x"), ("size", "start", "offset")),
    9: (stat.S_IFREG, struct.Struct("<QQ12xII4x"), ("start", "size", "fragment", "offset")),
    10: (stat.S_IFLNK, _SYMLINK, ("size",)),
}
_DOTS = 3  # bytes in a directory's size for . and .., which are not stored
_RUN, _ENTRY = struct.Struct("<II4x"), struct.Struct("<H4xH")
_FRAGMENT = struct.Struct("<QI4x")
_NO_FRAGMENT = 0xFFFFFFFF


def read_squashfs(read_at: ReadAt) -> SquashfsNode:
    """Return the root of the file system that ``read_at`` reads, which raises FormatError outside it."""
    block_size, fragments, compression, major, minor, root, *tables = _SUPERBLOCK.unpack(
        read_at(0, _SUPERBLOCK.size)
    )
    if (major, minor) != _VERSION:
        raise FormatError(f"the squashfs has version {major}.{minor}; 4.0 is supported")
    if block_size not in _BLOCK_SIZES:
        raise FormatError(f"the squashfs is damaged: it has blocks of {block_size} bytes")
    if compression not in _COMPRESSIONS:
        name = _REFUSED.get(compression, f"method {compression}")
        raise FormatError(f"the squashfs is compressed by {name}; gzip, xz and zstd are supported")
    volume = _SquashfsVolume(read_at, block_size, fragments, _COMPRESSIONS[compression], *tables)
    return volume.read_node(root)


@attrs.frozen(eq=False)
class SquashfsNode:
    """A file, a directory or a symlink; see `TreeNode`."""

    _volume: _SquashfsVolume
    _open_rest: Callable[[], _MetadataReader]  # reads on behind the inode's fields
    mode: int
    size: int
    _start: int = 0  # offset of a file's blocks, or in its table of a listing's first metadata block
    _offset: int = 0  # in the fragment, or in that metadata block
    _fragment: int = _NO_FRAGMENT

    def read(self) -> bytes:
        """Return the content, or a symlink's target."""
        if stat.S_ISLNK(self.mode):
            return self._open_rest().read(self.size)
        return b"".join(self._read_pieces())

    def entries(self) -> dict[str, Callable[[], SquashfsNode]]:
        """Return a directory's entries: by name, a function that reads the node."""
        length = max(self.size - _DOTS, 0)
        if length > MAX_DIRECTORY:
            raise FormatError(f"a directory of the squashfs has {length} bytes, more than {MAX_DIRECTORY}")
        volume = self._volume
        listing = volume.open_metadata(volume.directories + self._start, self._offset).read(length)
        return {name: partial(volume.read_node, reference) for name, reference in _parse_listing(listing)}

    def _read_pieces(self) -> Iterator[bytes]:
        whole, rest = divmod(self.size, self._volume.block_size)
        lengths = [self._volume.block_size] * whole
        in_fragment = rest and self._fragment != _NO_FRAGMENT
        if rest and not in_fragment:
            lengths.append(rest)
        words = struct.unpack(f"<{len(lengths)}I", self._open_rest().read(4 * len(lengths)))
        position = self._start
        for word, length in zip(words, lengths, strict=True):
            yield self._volume.read_block(position, word, length)
            position += word & ~_BLOCK_PLAIN
        if in_fragment:
            yield self._volume.read_fragment(self._fragment, self._offset, rest)


@attrs.frozen(eq=False)
class _SquashfsVolume:
    """The parts of the file system, by the offsets in its superblock."""

    read_at: ReadAt
    block_size: int
    fragments: int
    method: Decompressor
    inodes: int
    directories: int
    fragment_table: int

    def read_node(self, reference: int) -> SquashfsNode:
        """Read the node at a reference."""
        block, offset = self.inodes + (reference >> 16), reference & 0xFFFF
        inode = self.open_metadata(block, offset)
        kind, permissions = _INODE.unpack(inode.read(_INODE.size))
        if kind not in _BODIES:
            raise FormatError(f"the squashfs has an inode of type {kind} on a path, which is not supported")
        file_type, body, names = _BODIES[kind]
        fields = dict(zip(names, body.unpack(inode.read(body.size)), strict=True))
        open_rest = partial(self.open_metadata, block, offset + _INODE.size + body.size)
        return SquashfsNode(self, open_rest, file_type | stat.S_IMODE(permissions), **fields)

    def open_metadata(self, block: int, offset: int) -> _MetadataReader:
        """Return a reader at an offset of the content of the metadata blocks from ``block`` on."""
        metadata = _MetadataReader(self, block)
        metadata.read(offset)
        return metadata

    def read_block(self, position: int, word: int, length: int) -> bytes:
        """Return a file's block of exactly ``length`` bytes."""
        content = self.read_content(position, word, _BLOCK_PLAIN, length) if word else bytes(length)
        if len(content) != length:
            raise FormatError(
                f"the squashfs at offset {position} is damaged: a block has {len(content)} bytes of {length}"
            )
        return content

    def read_fragment(self, number: int, offset: int, length: int) -> bytes:
        """Return a file's part of a fragment."""
        if number >= self.fragments:
            raise FormatError(f"the squashfs is damaged: fragment {number} of {self.fragments}")
        block, entry = divmod(number, _METADATA // _FRAGMENT.size)
        table = int.from_bytes(self.read_at(self.fragment_table + 8 * block, 8), "little")
        entries = self.open_metadata(table, entry * _FRAGMENT.size)
        position, word = _FRAGMENT.unpack(entries.read(_FRAGMENT.size))
        content = self.read_content(position, word, _BLOCK_PLAIN, self.block_size)[offset : offset + length]
        if len(content) != length:
            raise FormatError(f"the squashfs is damaged: fragment {number} ends too soon")
        return content

    def read_content(self, position: int, word: int, plain: int, limit: int) -> bytes:
        """Return the content, at most ``limit`` bytes, of a stored block; ``plain`` is the word's flag."""
        where, length = f"the squashfs at offset {position}", word & ~plain
        if length > limit:
            raise FormatError(f"{where} is damaged: {length} bytes, more than {limit}")
        stored = self.read_at(position, length)
        return stored if word & plain else decompress(self.method, stored, limit, where)


@attrs.define
class _MetadataReader:
    """Reads the content of metadata blocks in order."""

    _volume: _SquashfsVolume
    _next: int  # offset of the next block
    _rest: bytes = b""
    _is_last: bool = False

    def read(self, length: int) -> bytes:
        while len(self._rest) < length:
            if self._is_last:
                raise FormatError(
                    f"the squashfs is damaged: its metadata ends too soon, at offset {self._next}"
                )
            word = int.from_bytes(self._volume.read_at(self._next, 2), "little")
            block = self._volume.read_content(self._next + 2, word, _METADATA_PLAIN, _METADATA)
            self._next += 2 + (word & ~_METADATA_PLAIN)
            self._is_last = len(block) < _METADATA  # bounds the number of tiny blocks
            self._rest += block
        content, self._rest = self._rest[:length], self._rest[length:]
        return content


def _parse_listing(listing: bytes) -> Iterator[tuple[str, int]]:
    """Yield the names in a directory with the references of their inodes."""
    position = 0
    while position < len(listing):
        entries, block = _RUN.unpack(_slice(listing, position, _RUN.size))
        position += _RUN.size
        for _ in range(entries + 1):
            offset, last = _ENTRY.unpack(_slice(listing, position, _ENTRY.size))
            position += _ENTRY.size
            name = _slice(listing, position, last + 1)
            position += len(name)
            yield name.decode("utf-8", "surrogateescape"), block << 16 | offset


def _slice(listing: bytes, position: int, length: int) -> bytes:
    if position + length > len(listing):
        raise FormatError(f"the squashfs is damaged: a directory ends too soon, at its offset {position}")
    return listing[position : position + length]
