"""The instance's secret, from which the repository's keys are derived: shared by all its processes."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.concurrency.directory_lock import directory_lock
from image_service.errors import StoreFailed
from image_service.snapshots.encryption import SECRET_BYTES

if TYPE_CHECKING:
    from pathlib import Path

SECRET_FILE = "snapshot.secret"  # noqa: S105 - its name
_log = Logger()


def load_or_create_secret(data_dir: Path) -> bytes:
    """Return the secret; the first process that asks creates it. Waits for the disk.

    A file of another size is no secret: it is replaced, and what was sealed with it is lost.

    Args:
        data_dir: an existing directory; the file in it is for its owner alone.

    Raises:
        StoreFailed: it can be neither read nor written.
    """
    path = data_dir / SECRET_FILE
    try:
        with directory_lock(data_dir) as directory:
            return _load(path) or _create(path, directory)
    except OSError as error:
        raise StoreFailed(f"{path} can be neither read nor written: {error.strerror}") from error


def _load(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        secret = path.read_bytes()
        if len(secret) == SECRET_BYTES:
            return secret
        _log.warn(
            "{path} has {size} bytes instead of {expected}: creating a new secret; stored snapshots are lost",
            path=str(path),
            size=len(secret),
            expected=SECRET_BYTES,
        )
    return None


def _create(path: Path, directory: int) -> bytes:
    """Write it under another name first: a crash leaves no part of a secret in its place."""
    secret = secrets.token_bytes(SECRET_BYTES)
    temporary = path.with_name(f".{path.name}.part")
    temporary.unlink(missing_ok=True)  # a crash's
    with open(temporary, "xb", opener=_open_private) as file:
        file.write(secret)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    os.fsync(directory)
    return secret


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
