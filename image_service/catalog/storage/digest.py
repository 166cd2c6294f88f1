"""What takes long to find out about a base image: found once, and remembered beside it for the next start.

It is good for one path, size, modification time and inode: a file that was put in the place of
another, or written to, has a new one of these. The time of the status change, which nobody can put back, does
not count by itself: an orchestrator that hands a volume over changes the owner of everything on it. A sample
of the content decides then; and all of it is read again, later, in the background.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING

from image_service.errors import BaseImageError, Unavailable
from image_service.files.atomic import atomic_write
from image_service.files.base_file import ShortReadError

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption
    from image_service.files.base_file import BaseFile

_SAMPLES = 16
_SAMPLE_BYTES = 64 * 1024
_IDLE = 4  # times as long as it reads, a check in the background waits
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Sidecar:
    """What is known of one file, for as long as it stays the same.

    Args:
        path: where it is remembered.
        file: what it is about.
    """

    def __init__(self, path: Path, file: BaseFile) -> None:
        self._path = path
        self._file = file
        self._identity = file.identity()
        remembered = _read(path)
        same = all(remembered.get(name) == value for name, value in self._identity.items())
        self._sample = _sample(file)
        intact = same and remembered.get("sample") == self._sample
        untouched = remembered.get("ctime_ns") == os.fstat(file.descriptor).st_ctime_ns
        self._known: dict[str, object] = remembered if intact else {}
        self.rotten = same and untouched and "sample" in remembered and not intact
        """Whether the content is not what it was, though nobody wrote to the file."""

    def get(self, name: str) -> str | None:
        """Give a digest, lower-case hex, if it is known."""
        value = str(self._known.get(name))
        return value if _SHA256.fullmatch(value) else None

    def put(self, name: str, digest: str) -> None:
        """Remember a digest.

        Raises:
            Unavailable: the file changed since this was made.
        """
        if self._file.identity() != self._identity:
            raise Unavailable("changed while it was read")
        ctime_ns = os.fstat(self._file.descriptor).st_ctime_ns
        self._known |= {**self._identity, "ctime_ns": ctime_ns, "sample": self._sample, name: digest}
        with (
            contextlib.suppress(OSError),
            atomic_write(self._path) as target,
        ):  # the next start takes it again
            target.write(json.dumps(self._known).encode())


def sha256_of(file: BaseFile, sidecar: Sidecar, interruption: Interruption) -> str:
    """Give the digest of an open file, from the sidecar if that knows it.

    Args:
        file: is read from its beginning to its end if need be.
        sidecar: of this file.
        interruption: ends it from another thread.

    Returns:
        lower-case hex.

    Raises:
        Unavailable: the file changed while it was read.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    known = sidecar.get("sha256")
    if known is None:
        try:
            known = file.sha256(on_block=lambda _: interruption.raise_if_interrupted())
        except ShortReadError:
            raise Unavailable("changed while it was read") from None
        sidecar.put("sha256", known)
    return known


def recheck(file: BaseFile, sha256: str, interruption: Interruption) -> None:
    """See, without haste, that a file is still what it was.

    Args:
        file: is read from its beginning to its end, so that most of the time the disk is left to others.
        sha256: that it had.
        interruption: ends it from another thread.

    Raises:
        BaseImageError: it has rotted.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    began = time.monotonic()

    def pause(_: int) -> None:
        nonlocal began
        interruption.wait(_IDLE * (time.monotonic() - began))
        began = time.monotonic()

    try:
        found = file.sha256(on_block=pause)
    except ShortReadError:
        raise BaseImageError(
            f"content changed (corruption?): it had {file.size} bytes and is shorter"
        ) from None
    if found != sha256:
        raise BaseImageError(f"content changed (corruption?): its SHA-256 was {sha256} and is {found}")


def _read(sidecar: Path) -> dict[str, object]:
    """Give what the sidecar holds; nothing when there is none, or something else."""
    try:
        document: object = json.loads(sidecar.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _sample(file: BaseFile) -> str:
    """Digest of the file's size and of some blocks of it, from the first to the last."""
    digest = hashlib.sha256(str(file.size).encode())
    for number in range(_SAMPLES):
        offset = max(0, file.size - _SAMPLE_BYTES) * number // (_SAMPLES - 1)
        digest.update(file.read_at(offset, _SAMPLE_BYTES))
    return digest.hexdigest()
