"""Writes a patch to a raw or qcow2 disk; qemu-io allocates the clusters of the latter."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.ofd_locks import EXCLUSIVE, NONE, try_lock
from image_service.core.errors import ConversionFailed, UnsafeImage
from image_service.core.formats.disk.model import DiskFormat
from image_service.core.formats.disk.reading_disks import read_disk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from image_service.core.formats.disk.model import VirtualDisk
    from image_service.toolkit.customization.patch import Change, Patch
    from image_service.toolkit.workspace.workspace import Workspace

_OWN_LOCK = 1 << 62, 1
_QEMU_LOCKS = 100, 200  # where qemu's programs lock an image that they have opened
_RETRY_SECONDS = 0.05
_REPAIRED = 0, 3  # exit statuses of qemu-img check -r leaks: clean, and leaks that are left


@attrs.frozen
class DiskWriter:
    """Writes to one image.

    Args:
        descriptor: of the image, for reading and writing.
        path: for the programs that write it.
        format: raw or qcow2.
    """

    descriptor: int
    path: Path
    format: DiskFormat
    workspace: Workspace

    def read_disk(self) -> VirtualDisk:
        """Return the disk as it is now."""
        size = os.fstat(self.descriptor).st_size
        return read_disk(self.format, lambda offset, length: os.pread(self.descriptor, length, offset), size)

    def write(self, patch: Patch) -> None:
        """Write the changes of a patch that the disk lacks, and bring them to stable storage.

        Raises:
            ConversionFailed: the disk is not as it should be afterwards.
            OSError, ImageServiceError: it cannot be written.
        """
        missing = patch.find_missing(self.read_disk().read_at)
        if self.format is DiskFormat.RAW:
            for change in missing:
                _write_all(self.descriptor, change)
        elif missing:
            self._write_by_qemu(missing)
        os.fsync(self.descriptor)
        if patch.find_missing(self.read_disk().read_at):
            raise ConversionFailed(f"{self.path} does not contain what was written to it")

    def repair_refcounts(self) -> None:
        """Repair the refcounts of a qcow2 image after qemu-io was killed.

        With lazy refcounts the image is marked as dirty: qemu-io rebuilds them when it opens it for writing.
        Else clusters may be allocated that nothing refers to.
        """
        if self.format is DiskFormat.QCOW2:
            self._write_by_qemu(())
            self._run(["qemu-img", "check", "-r", "leaks"], accepts=_REPAIRED)

    def _write_by_qemu(self, changes: Sequence[Change]) -> None:
        commands = []
        for number, change in enumerate(changes):
            source = self.workspace.directory / f"change-{number}"
            source.touch(mode=0o600)
            source.write_bytes(change.after)
            commands.append(f"write -s {source.name} {change.offset} {len(change.after)}\n")
        self._run(["qemu-io"], stdin="".join([*commands, "flush\n"]).encode())

    def _run(self, command: Sequence[str], *, stdin: bytes = b"", accepts: Sequence[int] = (0,)) -> None:
        """Run a program of qemu on the image. It inherits the locks: if this process is killed, they last."""
        file = {"driver": "file", "filename": f"/proc/self/fd/{self.descriptor}"}
        source = "json:" + json.dumps({"driver": self.format.value, "backing": None, "file": file})
        self.workspace.run(
            [*command, source],
            descriptors=[self.descriptor],
            writes=[self.path],
            stdin=stdin,
            accepts=accepts,
        )


@contextmanager
def open_for_writing(path: Path, *, wait_seconds: float = 0) -> Iterator[int]:
    """Open an image for one call alone, and yield its descriptor.

    Args:
        wait_seconds: for another program to close the image.

    Raises:
        UnsafeImage: another program has it open.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_up_at = time.monotonic() + wait_seconds
        while refusal := _take_locks(descriptor):
            if time.monotonic() >= give_up_at:
                raise UnsafeImage(f"{path} {refusal}")
            time.sleep(_RETRY_SECONDS)
        yield descriptor
    finally:
        os.close(descriptor)


def _take_locks(descriptor: int) -> str | None:
    """Take the lock of a call; return the reason if this is not possible, else None."""
    if not try_lock(descriptor, EXCLUSIVE, *_OWN_LOCK):
        return "is being customized by another call"
    if not try_lock(descriptor, EXCLUSIVE, *_QEMU_LOCKS):
        return "is open in another program, such as a virtual machine"
    try_lock(descriptor, NONE, *_QEMU_LOCKS)  # qemu-io takes it
    return None


def _write_all(descriptor: int, change: Change) -> None:
    position = 0
    while position < len(change.after):
        position += os.pwrite(descriptor, change.after[position:], change.offset + position)
