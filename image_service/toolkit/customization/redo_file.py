"""The redo file of a disk that is customized in place: it is there while the disk is written.

    offset  size  content, numbers big-endian
    0       16    IMAGE-TOOLKIT-R1
    16      4     length of the description
    20            the description, JSON: format, SHA-256 of the customization, offset and length of each
                  change; then all old bytes, all new bytes, and the SHA-256 of everything before it

A file without its right SHA-256 was not finished, so nothing has been written to the disk. The disk's own
bytes show whether one belongs to it: each sector that changes must be as before or as after.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import UnsafeImage
from image_service.core.formats.disk.model import MAX_DISK_BYTES, DiskFormat
from image_service.toolkit.customization.patch import Change, Patch

if TYPE_CHECKING:
    from pathlib import Path

_MAGIC = b"IMAGE-TOOLKIT-R1"
_LENGTH_BYTES = 4
_DIGEST_BYTES = hashlib.sha256().digest_size


@attrs.frozen
class Redo:
    """The changes that a call was about to write.

    Args:
        customization: its digest.
    """

    format: DiskFormat
    customization: str
    patch: Patch


def redo_path(disk: Path) -> Path:
    """Return where the redo file of a disk is."""
    return disk.with_name(f".{disk.name}.image-toolkit-redo")


def write_redo(path: Path, redo: Redo) -> None:
    """Write the redo file, for its owner alone, and bring it to stable storage."""
    changes = redo.patch.changes
    described = json.dumps(
        {
            "format": redo.format.value,
            "customization": redo.customization,
            "changes": [(change.offset, len(change.after)) for change in changes],
        }
    ).encode()
    content = b"".join(
        [
            _MAGIC,
            len(described).to_bytes(_LENGTH_BYTES),
            described,
            *(change.before for change in changes),
            *(change.after for change in changes),
        ]
    )
    path.unlink(missing_ok=True)  # one that was not finished
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content + hashlib.sha256(content).digest())
        file.flush()
        os.fsync(descriptor)
    _sync_directory(path)


def remove_redo(path: Path) -> None:
    """Remove the redo file, if there is one."""
    path.unlink(missing_ok=True)
    _sync_directory(path)


def read_redo(path: Path, owners: set[int]) -> Redo | None:
    """Return the redo file of a killed call; None: there is no redo file, or it was not finished.

    Args:
        owners: user ids of which one must own it.

    Raises:
        UnsafeImage: it is not a regular file, is owned by somebody else, or contains what this module never
            writes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeImage(f"{path} is a symlink; remove it if the disk is as it should be") from None
        raise
    try:
        state = os.fstat(descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_uid not in owners:
            raise UnsafeImage(
                f"{path} is not a file of this user's; remove it if the disk is as it should be"
            )
        with open(descriptor, "rb", closefd=False) as file:
            magic = file.read(len(_MAGIC))
            content = magic + file.read() if magic == _MAGIC else b""
    finally:
        os.close(descriptor)
    content, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    try:
        return _parse(content)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise UnsafeImage(
            f"{path} is not a redo file of image-toolkit; remove it if the disk is as it should be"
        ) from None


def _parse(content: bytes) -> Redo:
    """Parse content whose digest is right.

    Raises:
        KeyError, RecursionError, TypeError, ValueError: `write_redo` has not made it.
    """
    start = len(_MAGIC) + _LENGTH_BYTES
    stop = start + int.from_bytes(content[len(_MAGIC) : start])
    described = json.loads(content[start:stop])
    half = (len(content) - stop) // 2
    changes, position, free_from = [], stop, 0
    for offset, length in described["changes"]:
        if not isinstance(offset, int) or not free_from <= offset < MAX_DISK_BYTES or length <= 0:
            raise ValueError(f"{length} bytes at offset {offset}")
        end, free_from = position + length, offset + length
        changes.append(Change(offset, content[position:end], content[position + half : end + half]))
        position = end
    if not changes or position != stop + half or len(content) != stop + 2 * half:
        raise ValueError(f"{len(changes)} changes, {len(content) - stop} bytes")
    return Redo(DiskFormat(described["format"]), described["customization"], Patch(tuple(changes)))


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
