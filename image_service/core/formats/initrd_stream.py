"""The files of an initrd that is too large for memory, as the kernel reads it, one after the other.

An initrd is a series of cpio archives, each plain or compressed, with zero bytes around them: one of the
CPU's microcode first, then that with drivers and programs. At most some chunks of it are in memory, whatever
it contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import FormatError
from image_service.core.formats.byte_stream import ByteStream
from image_service.core.formats.decompress import DecompressedStream
from image_service.core.formats.newc import NEWC_MAGIC, stream_members

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.core.formats.newc import StreamedMember
    from image_service.core.formats.reading import ReadAt

MAX_STREAMED = 1024 * 1024 * 1024
"""The limit in bytes of the decompressed archives of one initrd; those of CoreOS have some 300 MiB."""
MAX_MEMBERS = 100_000
"""The limit of the files of one initrd; those of CoreOS have some 5,000."""

_MAX_ARCHIVES = 64
_CHUNK = 64 * 1024


def stream_initrd(read_at: ReadAt, name: str) -> Iterator[StreamedMember]:
    """Yield the files, directories and links of an initrd in order.

    Args:
        name: of the initrd, for messages.

    Raises:
        FormatError: it is damaged, exceeds `MAX_STREAMED` or `MAX_MEMBERS`, or is in no supported form.
    """
    members = 0
    for number, archive in enumerate(_find_archives(read_at, name), 1):
        if number > _MAX_ARCHIVES:
            raise FormatError(f"{name} has more than {_MAX_ARCHIVES} archives")
        for member in stream_members(archive, name):
            members += 1
            if members > MAX_MEMBERS:
                raise FormatError(f"{name} has more than {MAX_MEMBERS} files")
            yield member


def _find_archives(read_at: ReadAt, name: str) -> Iterator[ByteStream]:
    """Yield a stream at the start of each archive, which is read to the archive's end before the next."""
    position, limit = 0, MAX_STREAMED
    while True:
        gap = ByteStream(_read_chunks(read_at, position))
        if not gap.skip_zeros():
            return
        position += gap.position
        if read_at(position, len(NEWC_MAGIC)) == NEWC_MAGIC:
            plain = ByteStream(_read_chunks(read_at, position))
            yield plain
            position += plain.position
        else:
            content = DecompressedStream(read_at, position, limit, name)
            archives = ByteStream(iter(content))
            while archives.skip_zeros():
                yield archives
            position, limit = content.position, limit - content.length


def _read_chunks(read_at: ReadAt, position: int) -> Iterator[bytes]:
    while chunk := read_at(position, _CHUNK):
        yield chunk
        position += len(chunk)
