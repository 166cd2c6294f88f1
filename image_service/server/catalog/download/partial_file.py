"""A file that is being downloaded, and the state that lets a download resume after a break or a crash.

Beside ``.rhcos-….part`` lies ``.rhcos-….part.json``::

    source         SHA-256 of the URL, whose query may hold a credential
    etag, last_modified
                   validators that the origin sent; null: no strong one
    total          bytes of the whole; null: the origin did not say
    length         bytes that are synced to the disk; bytes after them are discarded
    complete       true: these are all bytes
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from contextlib import nullcontext, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import attrs

from image_service.common.files.atomic import atomic_write
from image_service.common.files.private_files import open_no_follow
from image_service.server.http.dates import parse_http_date

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SYNC_SECONDS = 2.0  # of work that a crash of the machine, or of this process, may cost
SYNC_BYTES = 128 * 1024 * 1024  # or gigabytes would have to be synced at the end
_BUFFER_BYTES = 1024 * 1024
# opaque-tag of RFC 9110 section 8.8.3 in ASCII; a weak tag (W/) is not a validator for parts
_STRONG_ETAG = re.compile(r'"[!#-~]*"')
_STRONG_DATE = timedelta(seconds=1)  # RFC 9110 section 8.8.2.2


@attrs.frozen
class OriginFile:
    """The strong validators and the size that the origin sent (RFC 9110 section 8)."""

    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None

    @classmethod
    def from_fields(cls, field: Callable[[str], str], total: int | None) -> OriginFile:
        """Return `total` and those validators of a response that are strong."""
        tag, modified = field("ETag"), field("Last-Modified")
        then, now = parse_http_date(modified), parse_http_date(field("Date"))
        # The file cannot have changed twice within the second of its date.
        is_strong = then is not None and now is not None and now - then >= _STRONG_DATE
        return cls(tag if _STRONG_ETAG.fullmatch(tag) else None, modified if is_strong else None, total)


class PartialFile:
    """The bytes of one file so far; open for as long as the block lasts, and synced when it ends.

    Args:
        url: where the file comes from; the bytes of another URL are discarded.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._state_path = state_path(path)
        self._source = hashlib.sha256(url.encode()).hexdigest()
        size = path.lstat().st_size if path.exists() else -1
        state = _load_state(self._state_path, self._source, size) or (OriginFile(), 0, False)
        self.origin_file, self.length, self.complete = state

    def __enter__(self) -> Self:
        descriptor = open_no_follow(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        self._file = os.fdopen(descriptor, "r+b", buffering=_BUFFER_BYTES)
        self._file.truncate(self.length)
        self._file.seek(self.length)
        self._synced, self._synced_at = self.length, time.monotonic()
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        try:
            with suppress(OSError) if error else nullcontext():  # the disk is full: then less is kept
                self._sync()
        finally:
            with suppress(OSError) if error else nullcontext():  # closing flushes the buffer
                self._file.close()
            if not self.length:
                self._path.unlink(missing_ok=True)
                self._state_path.unlink(missing_ok=True)

    def restart(self, origin_file: OriginFile) -> None:
        """Discard all bytes; those of `origin_file` follow."""
        self._file.seek(0)
        self._file.truncate()
        self.origin_file, self.length, self.complete = origin_file, 0, False
        self._sync()

    def append(self, block: bytes) -> None:
        """Write the next bytes."""
        self._file.write(block)
        self.length += len(block)
        late = time.monotonic() - self._synced_at >= SYNC_SECONDS
        if late or self.length - self._synced >= SYNC_BYTES:
            self._sync()

    def mark_complete(self) -> None:
        """Record that these are all bytes."""
        self.complete = True
        self.origin_file = attrs.evolve(self.origin_file, total=self.length)
        self._sync()

    def _sync(self) -> None:
        """Sync the bytes first, then the state that relies on them."""
        self._file.flush()
        os.fsync(self._file.fileno())
        members = {
            **attrs.asdict(self.origin_file),
            "source": self._source,
            "length": self.length,
            "complete": self.complete,
        }
        with atomic_write(self._state_path) as file:
            file.write(json.dumps(members).encode())
        self._synced, self._synced_at = self.length, time.monotonic()


def state_path(partial: Path) -> Path:
    """Return the path of a partial file's state."""
    return partial.with_name(f"{partial.name}.json")


def _load_state(path: Path, source: str, size: int) -> tuple[OriginFile, int, bool] | None:
    """Return the state of a file of `size` bytes from this source; None if there is no valid one."""
    try:
        members = json.loads(path.read_bytes())
        stored_source, length, complete = (members.pop(name) for name in ("source", "length", "complete"))
        origin_file = OriginFile(**members)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    total = origin_file.total
    conditions = (
        stored_source == source,
        all(isinstance(text, str | None) for text in (origin_file.etag, origin_file.last_modified)),
        total is None or type(total) is int,
        type(length) is int and 0 <= length <= size,
        type(complete) is bool,
    )
    valid = all(conditions) and (total is None or length <= total)
    return (origin_file, length, complete) if valid else None
