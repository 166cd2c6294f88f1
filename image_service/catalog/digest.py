"""What takes long to find out about a base image: found once, and remembered beside it for the next start.

It is good for one path, size, modification time and inode: a file that was put in the place of
another, or written to, has a new one of these.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from typing import TYPE_CHECKING

from image_service.catalog.files import written
from image_service.errors import Unavailable

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.catalog.interruption import Interruption
    from image_service.images.extents import BaseFile

_BLOCK_BYTES = 1024 * 1024
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
        self._identity = _identity(file)
        remembered = _read(path)
        same = all(remembered.get(name) == value for name, value in self._identity.items())
        self._known: dict[str, object] = remembered if same else {}

    def get(self, name: str) -> str | None:
        """Give a digest, lower-case hex, if it is known."""
        value = str(self._known.get(name))
        return value if _SHA256.fullmatch(value) else None

    def put(self, name: str, digest: str) -> None:
        """Remember a digest.

        Raises:
            Unavailable: the file changed since this was made.
        """
        if _identity(self._file) != self._identity:
            raise Unavailable("changed while it was read")
        self._known |= {**self._identity, name: digest}
        with contextlib.suppress(OSError), written(self._path) as target:  # the next start takes it again
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
        known = _take(file, interruption)
        sidecar.put("sha256", known)
    return known


def _identity(file: BaseFile) -> dict[str, object]:
    status = os.fstat(file.descriptor)
    return {
        "path": file.path,
        "size": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,  # which nobody can put back
        "inode": status.st_ino,
    }


def _read(sidecar: Path) -> dict[str, object]:
    """Give what the sidecar holds; nothing when there is none, or something else."""
    try:
        document: object = json.loads(sidecar.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _take(file: BaseFile, interruption: Interruption) -> str:
    digest = hashlib.sha256()
    offset = 0
    while block := os.pread(file.descriptor, _BLOCK_BYTES, offset):
        interruption.check()
        digest.update(block)
        offset += len(block)
    return digest.hexdigest()
