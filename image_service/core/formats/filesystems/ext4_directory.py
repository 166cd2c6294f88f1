"""Directories of ext2, ext3 and ext4: lists of names with the numbers of their inodes.

entry         inode, 0: unused (4); length of the entry (2), length of the name (1), type (1), name
checksum      with metadata_csum the last entry of a block has inode 0, type 0xDE, and a CRC-32C as its name
index         looks like blocks with a single unused entry; its own checksum is not read, since its blocks
              hold no names
inline        the number of the parent (4), the entries in the place of the inode's map, and those in its
              attributes
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.crc32c import update_crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

_ENTRY = struct.Struct("<IHBB")
_TAIL = struct.Struct("<IHBBI")
_TAIL_MARK = (0, 12, 0, 0xDE)
_PARENT = 4
_MAP_BYTES = 60
_MAX_LENGTH = 65536  # stored as 0 or 65535


def parse_directory(
    content: bytes, block_size: int, seed: int | None, *, is_indexed: bool
) -> Iterator[tuple[bytes, int]]:
    """Yield the names in a directory's blocks, ``.`` and ``..`` among them, with the numbers of their inodes.

    Args:
        block_size: bytes.
        seed: of the checksums, that of the inode; None: there are none.

    Raises:
        FormatError: an entry is damaged, or a checksum is wrong.
    """
    if len(content) % block_size:
        raise FormatError(
            f"a directory is damaged: its {len(content)} bytes are not a multiple of its blocks"
        )
    for start in range(0, len(content), block_size):
        block = content[start : start + block_size]
        if is_indexed and _is_index(block, start):
            continue
        if seed is not None:
            *mark, checksum = _TAIL.unpack_from(block, block_size - _TAIL.size)
            if tuple(mark) != _TAIL_MARK or update_crc32c(seed, block[: -_TAIL.size]) != checksum:
                raise FormatError(f"a directory is damaged: the checksum of its block at {start} is wrong")
        yield from _parse_entries(block)


def parse_inline_directory(content: bytes) -> Iterator[tuple[bytes, int]]:
    """Yield the names in a directory that is stored in its inode, with the numbers of their inodes."""
    yield from _parse_entries(content[_PARENT:_MAP_BYTES])
    yield from _parse_entries(content[_MAP_BYTES:])


def _is_index(block: bytes, start: int) -> bool:
    """Return True for the root of the index, which also has . and .., and for its other nodes."""
    number, length, _, _ = _ENTRY.unpack_from(block)
    return start == 0 or (number == 0 and _entry_length(block, length) == len(block))


def _entry_length(block: bytes, stored: int) -> int:
    return _MAX_LENGTH if len(block) == _MAX_LENGTH and stored in {0, _MAX_LENGTH - 1} else stored


def _parse_entries(block: bytes) -> Iterator[tuple[bytes, int]]:
    position = 0
    while position < len(block):
        if position + _ENTRY.size > len(block):
            raise FormatError(f"a directory is damaged: its block ends in an entry, at {position}")
        number, stored, name_length, _ = _ENTRY.unpack_from(block, position)
        length = _entry_length(block, stored)
        start = position + _ENTRY.size
        if length < _ENTRY.size + name_length or position + length > len(block):
            raise FormatError(f"a directory is damaged: its entry at {position} has {length} bytes")
        if number:
            yield block[start : start + name_length], number
        position += length
