"""Stores content at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from image_service.common.objects.store import ObjectStorage, StoredObject

_CHUNK_BYTES = 1024 * 1024


class Readable(Protocol):
    """Content to store."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end."""


def put(store: ObjectStorage, key: str, content: Readable, size: int | None = None) -> StoredObject:
    """Store content, or nothing of it if it cannot be read to its end."""
    writer = store.begin(key, size)
    try:
        while chunk := content.read(_CHUNK_BYTES):
            writer.write(chunk)
        return writer.complete()
    except BaseException:
        writer.abort()
        raise
