"""An open base image, or a file derived from one: the only way to its bytes.

Some bytes of a remote file may be absent from the local disk. The kernel reads them as zeros (a hole), so
`BaseFile` makes bytes resident before it reads them. Senders must not block: they ask its `Residency` first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Self

import attrs

from image_service.core.errors import BaseImageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.core.base_file import Residency

BLOCK_BYTES = 1024 * 1024


class ShortReadError(OSError):
    """A file ends before the bytes that were to be read."""

    def __init__(self, offset: int, size: int) -> None:
        super().__init__(errno.EIO, f"the file ends at or before offset {offset}; it had {size} bytes")


@attrs.frozen(eq=False)
class LocalFile:
    """A file on the local disk, whose bytes may be fetched on demand; see `BaseFile`."""

    descriptor: int
    size: int
    path: str
    residency: Residency | None = None

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open a local file, which the caller closes; raise BaseImageError if it is not a regular file."""
        # O_NONBLOCK: opening a FIFO does not wait for a writer; regular files ignore the flag.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(descriptor)
            raise BaseImageError("is not a regular file")
        return cls(descriptor, status.st_size, str(path))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.descriptor)

    def duplicate(self) -> LocalFile:
        """Return the same file with a descriptor of its own, which the caller closes."""
        return attrs.evolve(self, descriptor=os.dup(self.descriptor))

    def identity(self) -> dict[str, object]:
        """Return a value that differs for another file, and after a write to this one."""
        if self.residency is not None:  # the local file's times change with each fetch
            return {"path": self.path, "size": self.size, "validator": self.residency.validator(self)}
        status = os.fstat(self.descriptor)
        return {
            "path": self.path,
            "size": status.st_size,
            "mtime_ns": status.st_mtime_ns,
            "inode": status.st_ino,
        }

    def hold(self, offset: int = 0, length: int | None = None) -> AbstractContextManager[None]:
        """Keep bytes (by default all) resident within the context, for readers of the descriptor. Blocks."""
        if self.residency is None:
            return nullcontext()
        rest = max(0, self.size - offset)
        count = rest if length is None else min(length, rest)
        return self.residency.hold(self, offset, count) if count else nullcontext()

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` only at the end of the file. Blocks until they are resident."""
        if self.residency is None:
            return os.pread(self.descriptor, length, offset)
        with self.hold(offset, length):
            return os.pread(self.descriptor, length, offset)

    def sha256(
        self,
        offset: int = 0,
        length: int | None = None,
        *,
        on_block: Callable[[int], object] = lambda _: None,
    ) -> str:
        """Return the SHA-256 of bytes (by default all) in lower-case hex. Blocks.

        Args:
            length: bytes; None: up to the end of the file.
            on_block: called with the length of each block read, at most `BLOCK_BYTES`; may raise to stop.

        Raises:
            ShortReadError: the file is shorter than it was.
        """
        digest = hashlib.sha256()
        stop = self.size if length is None else offset + length
        while offset < stop:
            block = self.read_at(offset, min(BLOCK_BYTES, stop - offset))
            if not block:
                raise ShortReadError(offset, self.size)
            on_block(len(block))
            digest.update(block)
            offset += len(block)
        return digest.hexdigest()
