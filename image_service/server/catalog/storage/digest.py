"""Digests of base images, stored in sidecars: what takes long to compute is computed once per file.

A sidecar is valid for one path, size, modification time and inode: a file that was replaced or written to
differs in one of these. The time of the status change alone does not count: an orchestrator that hands over a
volume changes the owner of each file. Then a sample of the content decides, and all is read later, in the
background.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING

from image_service.common.files.atomic import atomic_write
from image_service.common.files.local_file import ShortReadError
from image_service.core.errors import BaseImageError, Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.core.base_file import BaseFile
    from image_service.core.formats.reading import Span

_SAMPLES = 16
_SAMPLE_BYTES = 64 * 1024
_IDLE_FACTOR = 4  # a background check idles so many times as long as it reads
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Sidecar:
    """The stored digests of one file; none if the file has changed since.

    Args:
        file: the file they are of.
    """

    def __init__(self, path: Path, file: BaseFile) -> None:
        self._path = path
        self._file = file
        self._identity = file.identity()
        self._sample = _sample(file)
        stored = _load(path)
        same = all(stored.get(name) == value for name, value in self._identity.items())
        intact = same and stored.get("sample") == self._sample
        untouched = stored.get("ctime_ns") == os.fstat(file.descriptor).st_ctime_ns
        self._stored: dict[str, object] = stored if intact else {}
        self.is_corrupt = same and untouched and "sample" in stored and not intact
        """True if the content changed though the file was not written to."""

    def get_digest(self, name: str) -> str | None:
        """Return a digest in lower-case hex; None if it is not stored."""
        value = str(self._stored.get(name))
        return value if _SHA256.fullmatch(value) else None

    def save_digest(self, name: str, digest: str) -> None:
        """Store a digest; raise Unavailable if the file changed since this sidecar was loaded."""
        if self._file.identity() != self._identity:
            raise Unavailable("the file changed while it was read")
        ctime_ns = os.fstat(self._file.descriptor).st_ctime_ns
        self._stored |= {**self._identity, "ctime_ns": ctime_ns, "sample": self._sample, name: digest}
        # If it cannot be written, the next start computes the digest again.
        with contextlib.suppress(OSError), atomic_write(self._path) as target:
            target.write(json.dumps(self._stored).encode())


def get_sha256(
    file: BaseFile,
    sidecar: Sidecar,
    interruption: Interruption,
    name: str = "sha256",
    part: Span | None = None,
) -> str:
    """Return the SHA-256 of a file, or of a part of it, from its sidecar or by reading all of that.

    Raises:
        Unavailable: the file changed while it was read.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    digest = sidecar.get_digest(name)
    if digest is None:
        offset, length = (part.offset, part.length) if part else (0, None)
        try:
            digest = file.sha256(offset, length, on_block=lambda _: interruption.raise_if_interrupted())
        except ShortReadError:
            raise Unavailable("the file changed while it was read") from None
        sidecar.save_digest(name, digest)
    return digest


def stored_sha256(sidecar: Path) -> str | None:
    """Return the SHA-256 of a file when it was last verified, though it may have changed since."""
    value = str(_load(sidecar).get("sha256"))
    return value if _SHA256.fullmatch(value) else None


def move_sidecar(path: Path, renamed: Path) -> None:
    """Store the digests of a file that was renamed; if that cannot be written, they are computed again."""
    stored, sidecar = _load(path.with_name(f"{path.name}.json")), renamed.with_name(f"{renamed.name}.json")
    if stored:
        with contextlib.suppress(OSError), atomic_write(sidecar) as target:
            target.write(json.dumps({**stored, "path": str(renamed)}).encode())


def recheck_sha256(file: BaseFile, sha256: str, interruption: Interruption) -> None:
    """Read a file in the background, mostly idle; raise BaseImageError if its SHA-256 is another."""
    started = time.monotonic()

    def idle(_: int) -> None:
        nonlocal started
        interruption.wait(_IDLE_FACTOR * (time.monotonic() - started))
        started = time.monotonic()

    try:
        found = file.sha256(on_block=idle)
    except ShortReadError:
        raise BaseImageError(f"the file's content changed (corruption?): it had {file.size} bytes") from None
    if found != sha256:
        raise BaseImageError(
            f"the file's content changed (corruption?): its SHA-256 was {sha256} and is {found}"
        )


def _load(sidecar: Path) -> dict[str, object]:
    try:
        document: object = json.loads(sidecar.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _sample(file: BaseFile) -> str:
    """Return a digest of the file's size and of blocks spread from its start to its end."""
    digest = hashlib.sha256(str(file.size).encode())
    for number in range(_SAMPLES):
        offset = max(0, file.size - _SAMPLE_BYTES) * number // (_SAMPLES - 1)
        digest.update(file.read_at(offset, _SAMPLE_BYTES))
    return digest.hexdigest()
