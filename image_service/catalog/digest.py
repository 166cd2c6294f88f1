"""The SHA-256 of a base image: taken once, and remembered beside it for the next start.

A digest is good for one path, size, modification time and inode: a file that was put in the place of
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


def sha256_of(file: BaseFile, sidecar: Path, interruption: Interruption) -> str:
    """Give the digest of an open file, from the sidecar if that was made for it.

    Args:
        file: is read from its beginning to its end if need be.
        sidecar: where the digest is remembered.
        interruption: ends it from another thread.

    Returns:
        lower-case hex.

    Raises:
        Unavailable: the file changed while it was read.
        OSError: it cannot be read.
        Interrupted: the service stops.
    """
    identity = _identity(file)
    remembered = _read(sidecar)
    digest = str(remembered.pop("sha256", None))
    if remembered == identity and _SHA256.fullmatch(digest):
        return digest
    digest = _take(file, interruption)
    if _identity(file) != identity:
        raise Unavailable("changed while it was read")
    with contextlib.suppress(OSError), written(sidecar) as target:  # not kept: the next start takes it again
        target.write(json.dumps({**identity, "sha256": digest}).encode())
    return digest


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
