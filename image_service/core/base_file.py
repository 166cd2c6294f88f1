"""The file that a base image is read from, as the core sees it: bytes at an offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager


class Residency(Protocol):
    """Knows which bytes of a file are present locally, and fetches absent ones.

    Offsets and lengths are in bytes; lengths are at least 1.
    """

    def validator(self, file: BaseFile) -> str:
        """Return a value that changes whenever the content of the file does, as a strong ETag."""

    def resident_bytes(self, file: BaseFile, offset: int, length: int) -> int:
        """Return how many of the bytes, counted from `offset`, can be read without waiting.

        Called by senders: the answer holds until the reactor turns, and they send those bytes at once.
        """

    def is_present(self, file: BaseFile, offset: int, length: int) -> bool:
        """Return True if all bytes could be read without waiting now."""

    async def prefetch(self, file: BaseFile, offset: int, length: int) -> None:
        """Make bytes resident for a sender that reads them next.

        Canceling drops work that has not started; the bytes may arrive or not.

        Raises:
            OSError: the bytes cannot be fetched.
        """

    def hold(self, file: BaseFile, offset: int, length: int) -> AbstractContextManager[None]:
        """Make bytes resident and keep them so within the context. Blocks: not for the reactor's thread.

        Raises:
            OSError: on entry, if the bytes cannot be fetched.
        """

    def try_hold(self, file: BaseFile, offset: int, length: int) -> Callable[[], None] | None:
        """Keep bytes resident until the returned function is called, once, in any thread. Does not block.

        Returns:
            None: they are not resident, or cannot be kept so.
        """


class BaseFile(Protocol):
    """An open, read-only file. The code that opened it closes the descriptor; extents borrow it."""

    @property
    def descriptor(self) -> int:
        """For sendfile and fstat; read bytes with `read_at`."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    @property
    def path(self) -> str:
        """For messages."""

    @property
    def residency(self) -> Residency | None:
        """None: all bytes are on a local disk; senders ask the page cache."""

    def close(self) -> None:
        """Close the descriptor."""

    def duplicate(self) -> BaseFile:
        """Return the same file with a descriptor of its own, which the caller closes."""

    def identity(self) -> dict[str, object]:
        """Return a value that differs for another file, and after a write to this one."""

    def hold(self, offset: int = 0, length: int | None = None) -> AbstractContextManager[None]:
        """Keep bytes (by default all) resident within the context, for readers of the descriptor. Blocks."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Read bytes; fewer than `length` only at the end of the file. Blocks until they are resident."""

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
            on_block: called with the length of each block read; may raise to stop.

        Raises:
            OSError: the file is shorter than it was.
        """
