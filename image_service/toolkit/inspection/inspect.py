"""Describes a disk image: its format, the content of the disk, and whether programs may open it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.toolkit.disks.digest import sha256_of
from image_service.toolkit.disks.opening import assess, check_manifest
from image_service.toolkit.inspection.content import read_content
from image_service.toolkit.inspection.operating_system import find_operating_systems

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.core.formats.reading import ReadAt
    from image_service.toolkit.inspection.content import DiskContent
    from image_service.toolkit.inspection.operating_system import OperatingSystems
    from image_service.toolkit.workspace.workspace import Workspace

HASHED_BYTES = 16 * 1024**3
"""The largest file whose SHA-256 is computed without a request."""
_LEFT_OUT = f"SHA-256: more than {HASHED_BYTES >> 30} GiB"

_MAX_READ_BYTES = 16 * 1024 * 1024  # a Windows takes two million, for the directory System32


@attrs.frozen
class ImageDescription:
    """The description of a disk image.

    Args:
        format: ``raw``, ``qcow2``, ``vmdk``, ``vhd``, ``vhdx``, ``ova``; of an unsupported format, its name.
        subformat: as the format's specification names it; "" if it has none.
        size: bytes of the file.
        actual_size: bytes of the file that are allocated.
        virtual_size: bytes of the disk; None: it cannot be read.
        sha256: of the file; None: it was not computed.
        reasons: why it is not safe; none: it is.
        warnings: in what the descriptor of an OVA differs from the rest of it.
        left_out: what `inspect_image` did not compute, because the file is larger than `HASHED_BYTES` and
            the caller did not ask for its digest.
        content: None: the image is not safe.
        systems: None: likewise.
    """

    format: str
    subformat: str
    size: int
    actual_size: int
    virtual_size: int | None
    sha256: str | None
    reasons: tuple[str, ...]
    warnings: tuple[str, ...]
    left_out: tuple[str, ...]
    content: DiskContent | None
    systems: OperatingSystems | None


class _BoundedReader:
    """Reads a disk, in all not many more bytes than real disks take to describe.

    A disk may have thousands of partitions with the same large directories; time and memory follow the bytes.
    """

    def __init__(self, read_at: ReadAt) -> None:
        self._read_at = read_at
        self._left = _MAX_READ_BYTES

    def __call__(self, offset: int, length: int) -> bytes:
        """Read at an offset; FormatError if too much has been read."""
        self._left -= length
        if self._left < 0:
            raise FormatError(f"to describe the disk, more than {_MAX_READ_BYTES} bytes would be read")
        return self._read_at(offset, length)


def inspect_image(path: Path, workspace: Workspace, *, digest: bool | None = None) -> ImageDescription:
    """Describe a disk image; neither damage nor an unsafe image is an error.

    Args:
        path: of a file or block device.
        workspace: its limits are kept; nothing is written.
        digest: compute the SHA-256 of the file; None: unless it has more than `HASHED_BYTES`. Only False
            leaves out the comparison of an OVA with its manifest.

    Raises:
        OSError: the file cannot be read.
        TimedOut: a limit is exceeded.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        assessment = assess(descriptor, pace=workspace.pace)
        disk, reasons = assessment.disk, assessment.reasons
        content = systems = None
        if disk and not reasons:
            try:
                content = read_content(attrs.evolve(disk, read_at=_BoundedReader(disk.read_at)))
                systems = find_operating_systems(content)
            except FormatError as error:  # of the image: content of the disk is described, not raised
                reasons = (error.detail,)
        is_hashable = assessment.size and not assessment.reasons  # an unsafe file may be 8 EiB of holes
        leaves_out = is_hashable and digest is None and assessment.size > HASHED_BYTES
        reads_all = is_hashable and digest is not False
        if reads_all and (damage := check_manifest(descriptor, assessment, workspace.pace)):
            reasons = (*reasons, damage)
        return ImageDescription(
            format=assessment.content,
            subformat=disk.subformat if disk else "",
            size=assessment.size,
            actual_size=os.fstat(descriptor).st_blocks * SECTOR_BYTES,
            virtual_size=disk.virtual_size if disk else None,
            sha256=sha256_of(descriptor, workspace.pace) if reads_all and not leaves_out else None,
            reasons=reasons,
            warnings=assessment.warnings,
            left_out=(_LEFT_OUT,) if leaves_out else (),
            content=content,
            systems=systems,
        )
    finally:
        os.close(descriptor)
