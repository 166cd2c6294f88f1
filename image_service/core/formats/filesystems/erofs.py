"""erofs: the nodes of a read-only file system, each read on demand.

    offset  size  superblock, all numbers little-endian
    1024    4     0xE0F5E1E2
    1036    1     block size as a power of two
    1037    1     extensions of 16 bytes between the superblock's 128 and the settings
    1038    2     number of the root
    1064    4     block in which the inodes start: number n is 32 * n from there
    1104    4     features that a reader must support: `_FEATURES`, `_REFUSED`
    1108    2     with feature 2: the compressions that have settings, a bit for each
    1120    8     number of the packed node, which contains the ends of other files, or all of them
            …     for each compression a length (2) and settings; LZMA's start with its dictionary's bytes (4)

    inode         format (2): 1 if it has 64 bytes and not 32, layout << 1; words of extended attributes (2);
                  file type and permissions (2); then
      of 32       links (2), size (4), unused (4), first block (4), …
      of 64       unused (2), size (8), first block (4), …
                  then the extended attributes: 12 bytes, and 4 for each word but the first
    layout        0 the content is in blocks; 2 the content after the last whole block follows the inode;
                  1 and 3 it is compressed, see `erofs_index`
    directory     blocks, each of which starts with entries: number (8), offset of the name in the block (2),
                  type (2). The first name follows the last entry, each ends where the next starts, the last
                  at a zero byte or the block's end

An extent is at the end of its blocks, with zero bytes before it. CoreOS has used LZMA with extents of up to
1 MiB and a packed node. The superblock's checksum, owners and extended attributes are not read.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.decompress import decompress, decompress_lz4, microlzma_decompressor
from image_service.core.formats.filesystems.erofs_index import PLAIN, read_index
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from image_service.core.formats.decompress import Decompressor
    from image_service.core.formats.filesystems.erofs_index import ErofsExtent, ErofsIndex
    from image_service.core.formats.reading import ReadAt

EROFS_MAGIC = b"\xe2\xe1\xf5\xe0"
EROFS_OFFSET = 1024
"""Of the superblock, and of the magic number."""

_SUPERBLOCK = struct.Struct("<12xBBH24xI36xIH10xQ24x")
_BLOCK_BITS = range(9, 16 + 1)
_FRONT_PADDING, _SETTINGS, _PACKED_NODE, _NAME_PREFIXES = 0x01, 0x02, 0x20, 0x40
_FEATURES = _FRONT_PADDING | _SETTINGS | _PACKED_NODE | _NAME_PREFIXES
_REFUSED: Final[Mapping[int, str]] = {
    0x04: "files in chunks",
    0x08: "several devices or a second compression",
    0x10: "ends after the index (ztailpacking)",
    0x80: "48-bit addresses",
    0x100: "a node of inodes (metabox)",
}
_LZ4, _LZMA = 0, 1
_COMPRESSIONS: Final[Mapping[int, str]] = {_LZ4: "LZ4", _LZMA: "LZMA", 2: "deflate", 3: "zstd"}
_MAX_DICTIONARY = 8 * 1024 * 1024  # bytes; the kernel's own limit
_EXTENSION = 16
_LENGTH = 2
_FORM, _INODE, _LONG_INODE = struct.Struct("<HHH"), struct.Struct("<8xI4xI12x"), struct.Struct("<8xQI44x")
_ATTRIBUTES = 12
_COMPRESSED, _END_AFTER_INODE, _COMPRESSED_COMPACT = 1, 2, 3  # 0: in whole blocks
_ENTRY = struct.Struct("<QHxx")
_DOTS = {b".", b".."}  # entries like others, but no names on a path


def read_erofs(read_at: ReadAt) -> ErofsNode:
    """Return the root of the file system that ``read_at`` reads, which raises FormatError outside it."""
    superblock = read_at(EROFS_OFFSET, _SUPERBLOCK.size)
    block_bits, extensions, root, inodes, features, compressions, packed = _SUPERBLOCK.unpack(superblock)
    if block_bits not in _BLOCK_BITS:
        raise FormatError(f"the erofs is damaged: its blocks have 2^{block_bits} bytes")
    unknown = features & ~_FEATURES
    if unknown:
        feature = unknown & -unknown
        name = _REFUSED.get(feature, "an unknown feature")
        raise FormatError(f"the erofs uses {name} (feature {feature:#x}), which is not supported")
    methods: dict[int, Decompressor] = {_LZ4: decompress_lz4}
    if features & _SETTINGS and compressions & 1 << _LZMA:
        position = EROFS_OFFSET + _SUPERBLOCK.size + _EXTENSION * extensions
        if compressions & 1 << _LZ4:
            position += _LENGTH + int.from_bytes(read_at(position, _LENGTH), "little")
        dictionary = int.from_bytes(read_at(position + _LENGTH, 4), "little")
        if dictionary > _MAX_DICTIONARY:
            raise FormatError(
                f"the erofs has an LZMA dictionary of {dictionary} bytes, more than {_MAX_DICTIONARY}"
            )
        methods[_LZMA] = microlzma_decompressor(dictionary)
    return _ErofsVolume(
        read_at=read_at,
        block_bits=block_bits,
        inodes=inodes << block_bits,
        methods=methods,
        is_padded=bool(features & _FRONT_PADDING),
        packed=packed if features & _PACKED_NODE else None,
    ).read_node(root)


@attrs.frozen(eq=False)
class ErofsNode:
    """A file, a directory or a symlink; see `TreeNode`."""

    _volume: _ErofsVolume
    mode: int
    size: int
    _layout: int
    _block: int
    _inode_end: int  # offset after the inode and its extended attributes

    def read(self) -> bytes:
        """Return the content, or a symlink's target."""
        return self.read_part(0, self.size)

    def entries(self) -> dict[str, Callable[[], ErofsNode]]:
        """Return a directory's entries: by name, a function that reads the node."""
        if self.size > MAX_DIRECTORY:
            raise FormatError(f"a directory of the erofs has {self.size} bytes, more than {MAX_DIRECTORY}")
        listing, length = self.read(), 1 << self._volume.block_bits
        blocks = (listing[at : at + length] for at in range(0, len(listing), length))
        return {
            name.decode("utf-8", "surrogateescape"): partial(self._volume.read_node, number)
            for block in blocks
            for name, number in _parse_block(block)
            if name not in _DOTS
        }

    def read_part(self, start: int, length: int) -> bytes:
        """Return ``length`` bytes of the content at ``start``; FormatError where there are fewer."""
        stop = start + length
        if stop > self.size:
            raise FormatError(f"the erofs is damaged: a file of {self.size} bytes has none at {stop}")
        if self._layout > _COMPRESSED_COMPACT:
            raise FormatError(f"the erofs has a file of layout {self._layout}, which is not supported")
        return b"".join(self._read_pieces(start, stop)) if start < stop else b""

    def _read_pieces(self, start: int, stop: int) -> Iterator[bytes]:
        volume, bits, end = self._volume, self._volume.block_bits, self.size
        if self._layout in {_COMPRESSED, _COMPRESSED_COMPACT}:
            is_compact = self._layout == _COMPRESSED_COMPACT
            index = read_index(volume.read_at, self._inode_end, self.size, bits, is_compact=is_compact)
            for extent in index.find_extents(start, stop):
                first, last = max(start - extent.start, 0), min(stop - extent.start, extent.length)
                yield volume.read_extent(index, extent, first, last)
            return
        if self._layout == _END_AFTER_INODE:
            end = self.size >> bits << bits
        if start < end:
            yield volume.read_at((self._block << bits) + start, min(stop, end) - start)
        if stop > end:
            start = max(start, end)
            yield volume.read_at(self._inode_end + start - end, stop - start)


@attrs.frozen(eq=False)
class _ErofsVolume:
    """The file system as its superblock describes it."""

    read_at: ReadAt
    block_bits: int
    inodes: int
    methods: Mapping[int, Decompressor]
    is_padded: bool
    packed: int | None

    def read_node(self, number: int) -> ErofsNode:
        """Read the node of a number."""
        position = self.inodes + _INODE.size * number
        form, words, mode = _FORM.unpack(self.read_at(position, _FORM.size))
        fields = _LONG_INODE if form & 1 else _INODE
        size, block = fields.unpack(self.read_at(position, fields.size))
        attributes = _ATTRIBUTES + 4 * (words - 1) if words else 0
        return ErofsNode(self, mode, size, form >> 1, block, position + fields.size + attributes)

    def read_extent(self, index: ErofsIndex, extent: ErofsExtent, first: int, last: int) -> bytes:
        """Return the bytes of an extent from ``first`` to ``last``."""
        if extent.packed is not None:
            if self.packed is None:
                raise FormatError("the erofs is damaged: a file refers to a packed inode, which is missing")
            # Without a packed node of its own, this one cannot refer to itself.
            node = attrs.evolve(self, packed=None).read_node(self.packed)
            return node.read_part(extent.packed + first, last - first)
        where = f"the erofs at block {extent.block}"
        # An extent that does not save a block is stored plain: no more is read than comes out.
        if extent.blocks > -(-extent.length >> self.block_bits):
            raise FormatError(f"{where} is damaged: {extent.length} bytes are in {extent.blocks} blocks")
        content = self.read_at(extent.block << self.block_bits, extent.blocks << self.block_bits)
        if extent.type != PLAIN:
            if index.compression not in self.methods:
                name = _COMPRESSIONS.get(index.compression, f"method {index.compression}")
                raise FormatError(f"the erofs has a file compressed by {name}, which is not supported")
            if not self.is_padded:
                raise FormatError("the erofs has extents with padding after them, which is not supported")
            content = decompress(self.methods[index.compression], content.lstrip(b"\0"), last, where)
        elif index.is_rotated:
            shift = extent.start % (1 << self.block_bits)
            content = content[shift:] + content[:shift]
        if len(content) < last:
            raise FormatError(f"{where} is damaged: {last} bytes are expected, it has {len(content)}")
        return content[first:last]


def _parse_block(block: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the names in a block of a directory with the numbers of their nodes."""
    end = int.from_bytes(block[8:10], "little")
    if not 0 < end <= len(block) or end % _ENTRY.size:
        raise FormatError(f"the erofs is damaged: a directory's first name is at offset {end}")
    entries = list(_ENTRY.iter_unpack(block[:end]))
    stops = [start for _, start in entries[1:]] + [len(block)]
    for (number, start), stop in zip(entries, stops, strict=True):
        yield block[start:stop].partition(b"\0")[0], number
