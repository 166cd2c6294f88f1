"""A file that is being fetched, with what must be known to go on with it after a break or a crash.

Beside ``.rhcos-….part`` lies ``.rhcos-….part.json``::

    source         SHA-256 of the URL, whose query may hold a credential
    etag, last_modified
                   validators that the origin sent; null: none that could be relied on
    total          bytes of the whole; null: the origin did not say
    length         bytes that are on the disk for sure: what follows them is not trusted
    complete       whether that is all
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Self

import attrs

from image_service.files.atomic import atomic_write

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

_SYNC_SECONDS = 2.0  # of work that a crash of the machine, or of this process, may cost
_SYNC_BYTES = 128 * 1024 * 1024  # or there would be gigabytes to wait for at the end
_BUFFER_BYTES = 1024 * 1024


@attrs.frozen
class Representation:
    """What an origin said of what it sends (RFC 9110 section 8).

    Args:
        etag: strong entity tag; None: it sent none.
        last_modified: date, where it is a strong validator; None: it is none.
        total: bytes; None: it did not say.
    """

    etag: str | None = None
    last_modified: str | None = None
    total: int | None = None


@attrs.frozen
class _State:
    """What is remembered."""

    source: str
    representation: Representation
    length: int
    complete: bool


class PartialFile:
    """What there is of one file; open while the block lasts, and on the disk when it ends.

    Args:
        path: of the partial file.
        url: where the file comes from; parts of another one are not gone on with.
    """

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._memory = state_path(path)
        self._source = hashlib.sha256(url.encode()).hexdigest()
        state = _read(self._memory)
        known = state if state and state.source == self._source else None
        if known is None or not path.exists() or path.stat().st_size < known.length:
            known = _State(self._source, Representation(), 0, complete=False)
        self.representation = known.representation
        self.length = known.length
        self.complete = known.complete

    def __enter__(self) -> Self:
        mode = "r+b" if self.length else "wb"
        self._file = self._path.open(mode, buffering=_BUFFER_BYTES)
        self._file.truncate(self.length)
        self._file.seek(self.length)
        self._synced, self._synced_at = self.length, time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with suppress(OSError) if error else nullcontext():  # the disk is full: then less is kept
                self._sync()
        finally:
            with suppress(OSError) if error else nullcontext():  # it writes what is left in its buffer
                self._file.close()
            if not self.length:
                remove(self._path)

    def begin(self, representation: Representation) -> None:
        """Forget what there is, and be that of another."""
        self._file.seek(0)
        self._file.truncate()
        self.representation, self.length, self.complete = representation, 0, False
        self._sync()

    def append(self, block: bytes) -> None:
        """Write more of it.

        Raises:
            OSError: the disk is full, or broken.
        """
        self._file.write(block)
        self.length += len(block)
        late = time.monotonic() - self._synced_at >= _SYNC_SECONDS
        if late or self.length - self._synced >= _SYNC_BYTES:
            self._sync()

    def end(self) -> None:
        """Remember that this was all."""
        self.complete = True
        self.representation = attrs.evolve(self.representation, total=self.length)
        self._sync()

    def _sync(self) -> None:
        """Wait until what was written is on the disk, before it is said to be."""
        self._file.flush()
        os.fsync(self._file.fileno())
        state = _State(self._source, self.representation, self.length, self.complete)
        with atomic_write(self._memory) as memory:
            memory.write(json.dumps(_members(state)).encode())
        self._synced, self._synced_at = self.length, time.monotonic()


def state_path(partial: Path) -> Path:
    """Where it is told what a partial file is part of."""
    return partial.with_name(f"{partial.name}.json")


def remove(partial: Path) -> None:
    """Remove a partial file, and what is remembered of it."""
    partial.unlink(missing_ok=True)
    state_path(partial).unlink(missing_ok=True)


def _members(state: _State) -> dict[str, object]:
    members = attrs.asdict(state)
    return {**members.pop("representation"), **members}


def _read(memory: Path) -> _State | None:
    """Give what is remembered; None when there is nothing, or something else."""
    try:
        members = json.loads(memory.read_bytes())
        names = [field.name for field in attrs.fields(Representation)]
        representation = Representation(**{name: members.pop(name) for name in names})
        state = _State(representation=representation, **members)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return state if _is_sound(state) else None


def _is_sound(state: _State) -> bool:
    texts = (state.representation.etag, state.representation.last_modified)
    total = state.representation.total
    right = (
        isinstance(state.source, str),
        all(text is None or isinstance(text, str) for text in texts),
        total is None or type(total) is int,
        type(state.length) is int and state.length >= 0,
        type(state.complete) is bool,
    )
    return all(right) and (total is None or state.length <= total)
