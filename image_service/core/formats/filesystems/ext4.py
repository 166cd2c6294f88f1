"""ext2, ext3 and ext4, read-only: the nodes of a file system, each read on demand.

    group descriptor   of each group, in a table after the superblock's block; block of the inodes: 8 (4),
                       upper half 40 (4); checksum: 30 (2)
    inode              type and permissions: 0 (2); size: 4 (4), upper half 108 (4); flags: 32 (4); the map
                       of its blocks, a symlink's target or content: 40 (60); generation: 100 (4); bytes
                       beyond the first 128 that have fields: 128 (2), attributes follow; checksum: 124 (2)
                       and 130 (2)
    attribute          length of the name (1), its prefix (1), offset of the value from the first
                       attribute (2), unused (4), length of the value (4), hash (4), name; zeros end the list

With metadata_csum the checksum of each structure that is read is checked. The journal is not replayed; see
`Ext4.needs_recovery`.
"""

from __future__ import annotations

import stat
import struct
from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.crc32c import update_crc32c
from image_service.core.formats.filesystems.ext4_blocks import find_extents, find_mapped_blocks
from image_service.core.formats.filesystems.ext4_directory import parse_directory, parse_inline_directory
from image_service.core.formats.filesystems.ext4_superblock import Ext4Superblock, read_ext4_superblock
from image_service.core.formats.filesystems.file_tree import MAX_DIRECTORY, MAX_READ
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.core.formats.filesystems.ext4_blocks import BlockRun
    from image_service.core.formats.reading import ReadAt

_ROOT = 2
_INODE = struct.Struct("<H2xI24xI4x60s4xI4xI")
_ENCRYPTED, _INDEXED, _EXTENTS, _INLINE = 0x800, 0x1000, 0x80000, 0x10000000
_MAP_BYTES = 60
_BASE_INODE = 128
_ATTRIBUTES_MAGIC = b"\x00\x00\x02\xea"
_ATTRIBUTE = struct.Struct("<BBH4xI4x")
_SYSTEM_DATA = (7, b"data")


@attrs.frozen(eq=False)
class Ext4:
    """A file system of the family."""

    superblock: Ext4Superblock = attrs.field(repr=False)
    root: Ext4Node

    @property
    def label(self) -> str:
        """Return the label, "" if it has none."""
        return self.superblock.label

    @property
    def uuid(self) -> str:
        """Return the UUID in lower case."""
        return self.superblock.uuid

    @property
    def features(self) -> frozenset[str]:
        """Return the features, as dumpe2fs names them."""
        return self.superblock.features

    @property
    def block_size(self) -> int:
        """Return the bytes of a block."""
        return self.superblock.block_size

    @property
    def needs_recovery(self) -> bool:
        """Return True if the journal needs replay: files may lack the latest writes."""
        return "needs_recovery" in self.features


def read_ext4(read_at: ReadAt, size: int) -> Ext4:
    """Return the file system in `size` bytes; FormatError if it is damaged, or not supported."""
    superblock = read_ext4_superblock(read_at, size)
    if unreadable := superblock.unreadable_features:
        raise FormatError(f"the {superblock.kind} file system has features without support: {unreadable}")
    return Ext4(superblock, Ext4Volume(read_at, superblock).read_node(_ROOT))


@attrs.frozen(eq=False)
class Ext4Node:
    """A file, a directory or a symlink; see `TreeNode`."""

    _volume: Ext4Volume
    number: int  # of the inode
    mode: int
    size: int
    _flags: int
    _map: bytes
    _seed: int
    _attributes: bytes  # after the inode's fields

    @property
    def is_inline(self) -> bool:
        """Return True if the content is in the inode (``inline_data``), and the node has no blocks."""
        return bool(self._flags & _INLINE)

    def read(self) -> bytes:
        """Return the content, at most `MAX_READ` bytes, or a symlink's target."""
        if self.size > MAX_READ:
            raise FormatError(f"inode {self.number} has {self.size} bytes, more than {MAX_READ} at once")
        return self.read_part(0, self.size)

    def read_part(self, offset: int, length: int) -> bytes:
        """Return `length` bytes of the content at `offset`; FormatError where there are fewer."""
        if not (stat.S_ISREG(self.mode) or stat.S_ISLNK(self.mode)):
            raise FormatError(f"inode {self.number} is neither a file nor a symlink")
        return self._read_part(offset, length)

    def entries(self) -> dict[str, Callable[[], Ext4Node]]:
        """Return a directory's entries: by name, a function that reads the node."""
        if not stat.S_ISDIR(self.mode):
            raise FormatError(f"inode {self.number} is not a directory")
        if self.size > MAX_DIRECTORY:
            raise FormatError(
                f"a directory has {self.size} bytes (inode {self.number}), more than {MAX_DIRECTORY}"
            )
        content = self._read_part(0, self.size)
        if self.is_inline:
            listing = parse_inline_directory(content)
        else:
            superblock = self._volume.superblock
            seed = self._seed if superblock.has_checksums else None
            is_indexed = bool(self._flags & _INDEXED)
            listing = parse_directory(content, superblock.block_size, seed, is_indexed=is_indexed)
        return {
            name.decode("utf-8", "surrogateescape"): partial(self._volume.read_node, number)
            for name, number in listing
            if name not in {b".", b".."}
        }

    def _read_part(self, offset: int, length: int) -> bytes:
        stop = offset + length
        if stop > self.size:
            raise self._damaged(f"it has {self.size} bytes, and none at {stop}")
        if self._flags & _ENCRYPTED:
            raise FormatError(f"inode {self.number} is encrypted")
        if self.is_inline:
            stored = self._map + self._find_inline_rest()
            if len(stored) < self.size:
                raise self._damaged(f"{len(stored)} of {self.size} bytes are stored")
            return stored[offset:stop]
        if stat.S_ISLNK(self.mode) and self.size < _MAP_BYTES and not self._flags & _EXTENTS:
            return self._map[offset:stop]
        block_size, content = self._volume.superblock.block_size, bytearray(length)
        for run in self._find_runs(offset // block_size, -(-stop // block_size)):
            start = run.first * block_size
            low, high = max(start, offset), min(start + run.count * block_size, stop)
            position = run.stored * block_size + low - start
            content[low - offset : high - offset] = self._volume.read(position, high - low)
        return bytes(content)

    def _find_runs(self, first: int, last: int) -> Iterator[BlockRun]:
        volume = self._volume
        if self._flags & _EXTENTS:
            return find_extents(self._map, first, last, partial(volume.read_extent_block, self._seed))
        return find_mapped_blocks(self._map, first, last, volume.superblock.block_size, volume.read_block)

    def _find_inline_rest(self) -> bytes:
        """Return the content after the bytes in the place of the map: the attribute ``system.data``."""
        if not self._attributes.startswith(_ATTRIBUTES_MAGIC):
            return b""
        attributes = self._attributes[len(_ATTRIBUTES_MAGIC) :]
        position = 0
        while position + _ATTRIBUTE.size <= len(attributes) and any(attributes[position : position + 4]):
            length, prefix, offset, size = _ATTRIBUTE.unpack_from(attributes, position)
            position += _ATTRIBUTE.size
            if (prefix, attributes[position : position + length]) == _SYSTEM_DATA:
                return attributes[offset : offset + size]
            position += length + -length % 4
        return b""

    def _damaged(self, fault: str) -> FormatError:
        return FormatError(f"the file system is damaged: inode {self.number}: {fault}")


@attrs.frozen(eq=False)
class Ext4Volume:
    """Reads blocks and inodes, and checks their checksums."""

    _read_at: ReadAt
    superblock: Ext4Superblock

    def read_node(self, number: int) -> Ext4Node:
        """Read the node with a number."""
        superblock = self.superblock
        if not 1 <= number <= superblock.inodes:
            raise FormatError(f"the file system is damaged: inode {number} of {superblock.inodes}")
        group, index = divmod(number - 1, superblock.inodes_per_group)
        position = self._find_inodes(group) * superblock.block_size + index * superblock.inode_size
        inode = self.read(position, superblock.inode_size)
        mode, size, flags, block_map, generation, size_high = _INODE.unpack_from(inode)
        extra = int.from_bytes(inode[_BASE_INODE : _BASE_INODE + 2], "little")  # 0 in an inode without
        seed = update_crc32c(superblock.seed, struct.pack("<II", number, generation))
        if superblock.has_checksums:
            _check_inode(inode, number, extra, seed)
        if stat.S_ISREG(mode) or "large_dir" in superblock.features:
            size |= size_high << 32
        if not stat.S_IFMT(mode):
            raise FormatError(f"the file system is damaged: inode {number} is not in use")
        attributes = inode[_BASE_INODE + extra :]
        return Ext4Node(self, number, mode, size, flags, block_map, seed, attributes)

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes of the file system; FormatError if they are outside of it."""
        limit = self.superblock.blocks * self.superblock.block_size
        if offset + length > limit:
            raise FormatError(
                f"the file system of {limit} bytes is damaged: it refers to {length} bytes at offset {offset}"
            )
        return read_exactly(self._read_at, offset, length)

    def read_block(self, number: int) -> bytes:
        """Return a block of the file system, by its number."""
        return self.read(number * self.superblock.block_size, self.superblock.block_size)

    def read_extent_block(self, seed: int, number: int) -> bytes:
        """Read a block of a file's extents; `seed` is that of the inode."""
        block = self.read_block(number)
        if self.superblock.has_checksums:
            end = 12 + 12 * int.from_bytes(block[4:6], "little")  # after all entries for which there is room
            if update_crc32c(seed, block[:end]) != int.from_bytes(block[end : end + 4], "little"):
                raise FormatError(f"the file system is damaged: the checksum of block {number} is wrong")
        return block

    def _find_inodes(self, group: int) -> int:
        """Return the block in which the inodes of a group start."""
        superblock = self.superblock
        size = superblock.descriptor_size
        block, index = divmod(group, superblock.block_size // size)
        start = 1024 // superblock.block_size + 1 + block
        if superblock.first_meta_group is not None and block >= superblock.first_meta_group:
            home = block * (superblock.block_size // size)
            start = superblock.first_block + home * superblock.blocks_per_group + superblock.has_backup(home)
        descriptor = self.read(start * superblock.block_size + index * size, size)
        if superblock.has_checksums:
            counted = struct.pack("<I", group) + descriptor[:30] + bytes(2) + descriptor[32:]
            if update_crc32c(superblock.seed, counted) & 0xFFFF != int.from_bytes(
                descriptor[30:32], "little"
            ):
                raise FormatError(f"the file system is damaged: the checksum of group {group} is wrong")
        return int.from_bytes(descriptor[8:12] + descriptor[40:44], "little")


def _check_inode(inode: bytes, number: int, extra: int, seed: int) -> None:
    has_high = len(inode) > _BASE_INODE and extra >= 4  # noqa: PLR2004 - bytes up to the end of the upper half
    counted = inode[:124] + bytes(2) + inode[126:]
    stored = inode[124:126]
    if has_high:
        counted = counted[:130] + bytes(2) + counted[132:]
        stored += inode[130:132]
    mask = (1 << 8 * len(stored)) - 1
    if update_crc32c(seed, counted) & mask != int.from_bytes(stored, "little"):
        raise FormatError(f"the file system is damaged: the checksum of inode {number} is wrong")
