"""The superblock of ext2, ext3 and ext4, its features, and the checksums of their metadata.

offset  size  from the start of the superblock, at 1024; all numbers little-endian
0       4     number of inodes
4       4     number of blocks; its upper half is at 336
20      4     first block of the first group
24      4     block size: 1024 << n
32, 40  4     blocks and inodes of a group
56      2     0xEF53
76      4     revision: 0 has no features, and inodes of 128 bytes
88      2     bytes of an inode
92      12    features: those that nobody need know, those for readers, those for writers
104     16    UUID
120     16    label
254     2     bytes of a group descriptor, with feature 64bit
260     4     with meta_bg: first block of descriptors that lies in its own group
588     8     with sparse_super2: the groups with a backup of the superblock
624     4     with metadata_csum_seed: the seed of checksums; else CRC-32C of the UUID
1020    4     with metadata_csum: CRC-32C of the bytes before
"""

from __future__ import annotations

import struct
import uuid
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.crc32c import update_crc32c
from image_service.core.formats.reading import read_exactly

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.core.formats.reading import ReadAt

EXT4_OFFSET = 1024
"""Of the superblock."""

EXT4_MAGIC = b"\x53\xef"
EXT4_MAGIC_OFFSET = EXT4_OFFSET + 56

_LENGTH = 1024
_FIELDS = struct.Struct("<II12xII4xI4xI32xI8xH2xIII16s16s")
_ALL_BITS = 0xFFFFFFFF
_SHORT_INODE = 128
_SHORT_DESCRIPTOR = 32
_MAX_BLOCK_BITS = 6
_BLOCK_BITS = 10

_COMPATIBLE: Final[Mapping[int, str]] = {
    0x01: "dir_prealloc", 0x02: "imagic_inodes", 0x04: "has_journal", 0x08: "ext_attr", 0x10: "resize_inode",
    0x20: "dir_index", 0x200: "sparse_super2", 0x400: "fast_commit", 0x800: "stable_inodes",
    0x1000: "orphan_file",
}  # fmt: skip
_READERS: Final[Mapping[int, str]] = {
    0x01: "compression", 0x02: "filetype", 0x04: "needs_recovery", 0x08: "journal_dev", 0x10: "meta_bg",
    0x40: "extent", 0x80: "64bit", 0x100: "mmp", 0x200: "flex_bg", 0x400: "ea_inode", 0x1000: "dirdata",
    0x2000: "metadata_csum_seed", 0x4000: "large_dir", 0x8000: "inline_data", 0x10000: "encrypt",
    0x20000: "casefold",
}  # fmt: skip
_WRITERS: Final[Mapping[int, str]] = {
    0x01: "sparse_super", 0x02: "large_file", 0x08: "huge_file", 0x10: "uninit_bg", 0x20: "dir_nlink",
    0x40: "extra_isize", 0x100: "quota", 0x200: "bigalloc", 0x400: "metadata_csum", 0x800: "replica",
    0x1000: "read-only", 0x2000: "project", 0x4000: "shared_blocks", 0x8000: "verity",
    0x10000: "orphan_present",
}  # fmt: skip
_NOT_READABLE = {"compression", "journal_dev", "dirdata"}
_OF_EXT3 = {"filetype", "needs_recovery", "meta_bg", "sparse_super", "large_file", *_COMPATIBLE.values()}


@attrs.frozen
class Ext4Superblock:
    """The superblock.

    Args:
        inodes: their number; the first is 1.
        blocks: their number.
        block_size: bytes.
        first_block: of the first group.
        blocks_per_group: of all groups but the last.
        inode_size: bytes.
        descriptor_size: bytes of a group descriptor.
        first_meta_group: first block of descriptors that lies in its own group; None: none does.
        backup_groups: with sparse_super2: those with a backup of the superblock.
        features: as dumpe2fs names them; ``FEATURE_`` and a letter and number for unknown ones.
        label: of the volume; may be empty.
        uuid: in lower case.
        seed: of the checksums of metadata.
    """

    inodes: int
    blocks: int
    block_size: int
    first_block: int
    blocks_per_group: int
    inodes_per_group: int
    inode_size: int
    descriptor_size: int
    first_meta_group: int | None
    backup_groups: tuple[int, ...]
    features: frozenset[str]
    label: str
    uuid: str
    seed: int

    @property
    def kind(self) -> str:
        """Return ``ext2``, ``ext3`` or ``ext4``, as blkid tells them apart."""
        if self.features - _OF_EXT3:
            return "ext4"
        return "ext3" if "has_journal" in self.features else "ext2"

    @property
    def has_checksums(self) -> bool:
        """Return True if all metadata have CRC-32C checksums."""
        return "metadata_csum" in self.features

    @property
    def unreadable_features(self) -> list[str]:
        """Return the features for which this reader has no support."""
        return sorted(each for each in self.features if each in _NOT_READABLE or each.startswith("FEATURE_I"))

    def has_backup(self, group: int) -> bool:
        """Return True if a group starts with a backup of the superblock."""
        if group == 0:
            return True
        if "sparse_super2" in self.features:
            return group in self.backup_groups
        if "sparse_super" not in self.features or group == 1:
            return True
        return any(_is_power(group, base) for base in (3, 5, 7))


def read_ext4_superblock(read_at: ReadAt, size: int) -> Ext4Superblock:
    """Read the superblock of a file system in `size` bytes; FormatError if it is damaged."""
    block = read_exactly(read_at, EXT4_OFFSET, _LENGTH)
    inodes, blocks, first, bits, per_group, inodes_per_group, revision, inode_size, *rest = (
        _FIELDS.unpack_from(block)
    )
    compatible, readers, writers, identifier, label = rest
    features = frozenset[str]()
    if revision:
        words = (("C", compatible, _COMPATIBLE), ("I", readers, _READERS), ("R", writers, _WRITERS))
        features = frozenset(name for word in words for name in _names(*word))
    checksum = int.from_bytes(block[1020:], "little")
    if "metadata_csum" in features and update_crc32c(_ALL_BITS, block[:1020]) != checksum:
        raise FormatError("the ext4 file system is damaged: the checksum of its superblock is wrong")
    if "64bit" in features:
        blocks |= int.from_bytes(block[336:340], "little") << 32
    has_seed = "metadata_csum_seed" in features
    superblock = Ext4Superblock(
        inodes=inodes,
        blocks=blocks,
        block_size=1 << _BLOCK_BITS + min(bits, _MAX_BLOCK_BITS),
        first_block=first,
        blocks_per_group=per_group,
        inodes_per_group=inodes_per_group,
        inode_size=inode_size if revision else _SHORT_INODE,
        descriptor_size=int.from_bytes(block[254:256], "little")
        if "64bit" in features
        else _SHORT_DESCRIPTOR,
        first_meta_group=int.from_bytes(block[260:264], "little") if "meta_bg" in features else None,
        backup_groups=struct.unpack_from("<II", block, 588),
        features=features,
        label=label.partition(b"\0")[0].decode("utf-8", "replace"),
        uuid=str(uuid.UUID(bytes=identifier)),
        seed=int.from_bytes(block[624:628], "little") if has_seed else update_crc32c(_ALL_BITS, identifier),
    )
    _check(superblock, bits, size)
    return superblock


def _check(superblock: Ext4Superblock, bits: int, size: int) -> None:
    where = f"the {superblock.kind} file system"
    if bits > _MAX_BLOCK_BITS or not superblock.blocks_per_group or not superblock.inodes_per_group:
        raise FormatError(f"{where} is damaged: its superblock has impossible sizes of blocks or groups")
    sizes = [1 << power for power in range(7, 17)]
    if (
        superblock.inode_size not in sizes
        or superblock.inode_size > superblock.block_size
        or not _SHORT_DESCRIPTOR <= superblock.descriptor_size <= superblock.block_size
        or superblock.descriptor_size & superblock.descriptor_size - 1
    ):
        raise FormatError(
            f"{where} is damaged: it has inodes of {superblock.inode_size} bytes and group descriptors"
            f" of {superblock.descriptor_size}"
        )
    if superblock.blocks * superblock.block_size > size:
        raise FormatError(
            f"{where} is incomplete: {size} of {superblock.blocks * superblock.block_size} bytes are there"
        )


def _names(letter: str, bits: int, names: Mapping[int, str]) -> list[str]:
    flags = (1 << position for position in range(32))
    return [names.get(flag, f"FEATURE_{letter}{flag.bit_length() - 1}") for flag in flags if bits & flag]


def _is_power(number: int, base: int) -> bool:
    while number % base == 0:
        number //= base
    return number == 1
