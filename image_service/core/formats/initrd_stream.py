"""The files of an initrd that is too large for memory, as the kernel reads it, one after the other.

An initrd is a series of cpio archives, each plain or compressed, with zero bytes around them: one of the
CPU's microcode first, then that with drivers and programs. At most some chunks of it are in memory, whatever
it contains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import FormatError, FormatUnread
from image_service.core.formats.byte_stream import ByteStream
from image_service.core.formats.decompress import DecompressedStream
from image_service.core.formats.initrd_compression import HEAD_BYTES, find_doubt, is_archive
from image_service.core.formats.newc import NEWC_MAGICS, stream_members

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from image_service.core.formats.newc import StreamedMember
    from image_service.core.formats.reading import ReadAt

MAX_STREAMED = 1024 * 1024 * 1024
"""The limit in bytes of the decompressed archives of one initrd; those of CoreOS have some 300 MiB."""
MAX_MEMBERS = 100_000
"""The limit of the files of one initrd; those of CoreOS have some 5,000."""
MAX_CHECKED = 256 * 1024 * 1024
"""The limit in bytes of the decompressed archives that `check_ramdisk` reads."""
CHECK_SECONDS = 1.0
"""How long it reads: the machine that waits for the image gives up after some seconds."""

_MAX_ARCHIVES = 64
_CHUNK = 64 * 1024


def check_ramdisk(ramdisk: bytes, name: str, clock: Callable[[], float]) -> tuple[str, ...]:
    """Return why some kernels may not unpack all of a ramdisk.

    Args:
        ramdisk: archives, which the kernel unpacks after those of the initrd.
        name: of the ramdisk, for messages.
        clock: returns seconds; if the check takes longer than `CHECK_SECONDS`, that is a doubt.

    Raises:
        FormatError: it has no archive, or one that every kernel skips.
    """
    if not is_archive(ramdisk.lstrip(b"\0")[:HEAD_BYTES]):
        raise FormatError(f"{name} is not an archive of gzip, xz, zstd or cpio")
    doubts: list[str] = []
    end = clock() + CHECK_SECONDS

    def check() -> None:
        if clock() > end:
            raise FormatUnread(f"{name} takes more than {CHECK_SECONDS:g} s to unpack")

    def read_at(offset: int, length: int) -> bytes:
        return ramdisk[offset : offset + length]

    try:
        for _ in stream_initrd(read_at, name, doubt=doubts.append, check=check, limit=MAX_CHECKED):
            pass
    except FormatUnread as error:
        doubts.append(f"{error.detail}; the rest was not checked")
    return tuple(doubts)


def stream_initrd(
    read_at: ReadAt,
    name: str,
    *,
    doubt: Callable[[str], None] = lambda _: None,
    check: Callable[[], None] = lambda: None,
    limit: int | None = None,
) -> Iterator[StreamedMember]:
    """Yield the files, directories and links of an initrd in order.

    Args:
        name: of the initrd, for messages.
        doubt: called for each archive that some kernels skip, with the reason.
        check: called for each file, and each chunk of decompressed content; raises to end the reading.
        limit: bytes of the decompressed archives together; None: `MAX_STREAMED`.

    Raises:
        FormatUnread: it exceeds the limit or `MAX_MEMBERS`, or needs too much memory.
        FormatError: it is damaged, or in no form that the kernel reads.
    """
    members = 0
    archives = _find_archives(read_at, name, doubt, check, MAX_STREAMED if limit is None else limit)
    for number, archive in enumerate(archives, 1):
        if number > _MAX_ARCHIVES:
            raise FormatUnread(f"{name} has more than {_MAX_ARCHIVES} archives")
        for member in stream_members(archive, name):
            check()
            members += 1
            if members > MAX_MEMBERS:
                raise FormatUnread(f"{name} has more than {MAX_MEMBERS} files")
            yield member


def _find_archives(
    read_at: ReadAt,
    name: str,
    doubt: Callable[[str], None],
    check: Callable[[], None],
    limit: int,
) -> Iterator[ByteStream]:
    """Yield a stream at the start of each archive, which is read to the archive's end before the next."""
    position = 0
    while True:
        gap = ByteStream(_read_chunks(read_at, position))
        if not gap.skip_zeros():
            return
        position += gap.position
        where = f"the archive at offset {position} of {name}" if position else name
        head = read_at(position, HEAD_BYTES)
        if (reason := find_doubt(head, position, where)) is not None:
            doubt(reason)
        if head.startswith(NEWC_MAGICS):
            plain = ByteStream(_read_chunks(read_at, position))
            yield plain
            position += plain.position
        else:
            content = DecompressedStream(read_at, position, limit, name)
            archives = ByteStream(_checked(content, check))
            while archives.skip_zeros():
                yield archives
            position, limit = content.position, limit - content.length


def _checked(content: Iterable[bytes], check: Callable[[], None]) -> Iterator[bytes]:
    for chunk in content:
        check()
        yield chunk


def _read_chunks(read_at: ReadAt, position: int) -> Iterator[bytes]:
    while chunk := read_at(position, _CHUNK):
        yield chunk
        position += len(chunk)
