"""The interface of object stores. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator


@attrs.frozen
class StoredObject:
    """An object that is complete.

    Args:
        key: path-like: parts of ``[A-Za-z0-9._-]+``, none with a leading dot, joined by ``/``.
        size: bytes.
        sha256: of the content, lower-case hex.
    """

    key: str
    size: int
    sha256: str


class ObjectStorage(Protocol):
    """Stores objects whole: one that is not complete is never found.

    Raises:
        StoreFailed: of each method: the store cannot be reached, read or written. Nothing partial is left.
        StoreFull: of ``put``: there is no room.
    """

    def put(self, key: str, content: BinaryIO) -> StoredObject:
        """Store the content of a file, from its position on; replaces an object with this key."""

    def read_at(self, key: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; fewer at its end. NotFound: there is no such object."""

    def delete(self, key: str) -> None:
        """Delete an object; do nothing if there is none. A download in progress may fail."""

    def find_keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix."""
