"""Digest lists: the SHA-256 of each MiB of a file, so that each can be checked on its own.

    sha256 SIZE 1048576     size of the file in bytes, and of a block
    DIGEST                  of each block in order, 64 hexadecimal digits in lower case; the last block may be
    …                       shorter

Lines end with a line feed.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BLOCK_BYTES = 1024 * 1024
_LINE_BYTES = 65
_MAX_HEAD_BYTES = 64
_HEAD = re.compile(rb"sha256 (0|[1-9][0-9]{0,15}) 1048576")
_DIGESTS = re.compile(rb"(?:[0-9a-f]{64}\n)*")


@attrs.frozen
class DigestList:
    """The digests of a file of ``size`` bytes: 32 bytes for each MiB, one behind the other."""

    size: int
    digests: bytes = attrs.field(repr=False)


def max_list_bytes(size: int) -> int:
    """Return how many bytes the list of a file of ``size`` bytes has at most."""
    return _MAX_HEAD_BYTES + -(-size // BLOCK_BYTES) * _LINE_BYTES


def parse_digest_list(content: bytes) -> DigestList:
    """Parse a digest list; FormatError if it is not one."""
    head, _, body = content.partition(b"\n")
    match = _HEAD.fullmatch(head)
    if match is None:
        raise FormatError("the digest list does not begin with the line: sha256 SIZE 1048576")
    size = int(match[1])
    blocks = -(-size // BLOCK_BYTES)
    if len(body) != blocks * _LINE_BYTES:
        raise FormatError(
            f"the digest list must have {blocks} digests for {size} bytes, which are {blocks * _LINE_BYTES}"
            f" bytes after its first line, not {len(body)}"
        )
    if not _DIGESTS.fullmatch(body):
        raise FormatError("the digest list has a line that is not 64 hexadecimal digits in lower case")
    return DigestList(size, bytes.fromhex(body.decode()))


def render_digest_list(
    read_block: Callable[[int], bytes], size: int, *, on_block: Callable[[int], object] = lambda _: None
) -> Iterator[str]:
    """Yield the lines of the list, with their line feeds.

    Args:
        read_block: returns the next block, of the length that it is called with.
        size: bytes of the file.
        on_block: called with the length of each block that was hashed.
    """
    yield f"sha256 {size} {BLOCK_BYTES}\n"
    for offset in range(0, size, BLOCK_BYTES):
        length = min(BLOCK_BYTES, size - offset)
        block = read_block(length)
        if len(block) != length:
            raise FormatError(f"the file ends at or before offset {offset + len(block)}; it had {size} bytes")
        on_block(length)
        yield f"{sha256(block).hexdigest()}\n"
