"""The interface of object stores. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

_KEY = re.compile(r"(?!\.)[A-Za-z0-9._-]+(/(?!\.)[A-Za-z0-9._-]+)*")


@attrs.frozen
class StoredObject:
    """An object that is complete.

    Args:
        key: path-like: parts of ``[A-Za-z0-9._-]+``, none with a leading dot, joined by ``/``.
        size: bytes.
        sha256: of the content, lower-case hex.
        kept_bytes: that it takes in the store; fewer than `size` if it has holes there.
    """

    key: str
    size: int
    sha256: str
    kept_bytes: int


class ObjectWriter(Protocol):
    """An object that is being stored; each call may be in another thread, one at a time.

    Either ``complete`` or ``abort`` is the last call, also after an error. Raises as ``ObjectStorage``.
    """

    def write(self, chunk: bytes, /) -> None:
        """Append bytes."""

    def complete(self) -> StoredObject:
        """Return the object, which is found from now on, and replaces one with this key."""

    def abort(self) -> None:
        """Remove the bytes that were written; raises nothing."""


class ObjectStorage(Protocol):
    """Stores objects whole: one that is not complete is never found.

    Raises:
        StoreFailed: of each method: the store cannot be reached, read or written.
        StoreDenied: the credentials do not permit it.
        StoreFull: of writers: there is no space, or only that which stays free for rows.
        ValueError: of each method with a key: it is none.
    """

    def begin(self, key: str, size: int | None = None) -> ObjectWriter:
        """Begin to store an object of so many bytes; None: not known."""

    def link_file(self, key: str, path: Path, sha256: str) -> StoredObject | None:
        """Make a file of this machine an object without copying it; None: the store cannot do that for it.

        The file gets the mode of an object. Nobody may write it afterwards; its path may be removed.

        Args:
            sha256: of the file, in lower-case hex; it is not checked.

        Raises:
            InvalidRequest: there is no such file, or it is not a regular one.
        """

    def read_at(self, key: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; fewer at its end. NotFound: there is no such object."""

    def delete(self, key: str) -> None:
        """Delete an object; do nothing if there is none. A download in progress may fail."""

    def remove_unfinished(self, before: datetime) -> None:
        """Remove incomplete objects of killed processes that were begun before that time."""


def check_key(key: str) -> str:
    """Return a key.

    Raises:
        ValueError: it is none.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} is not a key: its parts are of A-Z a-z 0-9 . _ - and begin with no dot")
    return key
