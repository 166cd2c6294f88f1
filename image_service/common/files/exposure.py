"""Finds out why users other than the owner have access to a secret file, and why this one has none."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def describe_exposure(path: Path) -> Iterator[str]:
    """Yield why others have access to a secret file of the operator: its mode, and its owner.

    Its group is the operator's choice. Links are followed: Kubernetes mounts secrets with them.

    Raises:
        OSError: it is absent.
    """
    status = path.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & stat.S_IRWXO:
        yield f"{path} has mode {mode:04o}: every user has access to it"
    yield from describe_owner(path, status)


def describe_owner(path: Path, status: os.stat_result) -> Iterator[str]:
    """Yield a sentence if a secret file belongs neither to this process's user nor to root."""
    if status.st_uid not in {os.geteuid(), 0}:
        yield (
            f"{path} belongs to uid {status.st_uid}, who can read and change it; this service runs as uid"
            f" {os.geteuid()}"
        )


def describe_denial(error: PermissionError) -> str:
    """Return why this process may not use a file: who owns it, or the nearest directory that it can see."""
    path = Path(error.filename)
    for found in (path, *path.parents):
        try:
            status = found.stat()
        except OSError:
            continue
        return (
            f"{path}: permission denied: {found} belongs to uid {status.st_uid} and gid {status.st_gid}"
            f" with mode {stat.S_IMODE(status.st_mode):04o}; this service runs as uid {os.geteuid()}, gid"
            f" {os.getegid()}; run it as the owner, or change the owner of the whole directory"
            " (chown -R)"
        )
    return f"{path}: permission denied"
