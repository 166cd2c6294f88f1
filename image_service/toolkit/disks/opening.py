"""Opens a disk image: its format is detected, compared with the declared one, and its structures are checked.

The bytes that were inspected are those that are converted: the file is opened once, and programs get its
descriptor.
"""

from __future__ import annotations

import json
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import attrs

from image_service.common.files.data_ranges import data_ranges
from image_service.core.errors import FormatError, UnsafeImage
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat, VirtualDisk, check_structure
from image_service.core.formats.disk.ova import read_ova
from image_service.core.formats.disk.ova_manifest import check_ova_manifest
from image_service.core.formats.disk.reading_disks import read_disk
from image_service.core.formats.reading import SpanReader
from image_service.toolkit.disks.detection import detect_images, detect_others
from image_service.toolkit.disks.ovf_descriptor import read_ovf
from image_service.toolkit.disks.safety import (
    MAX_VIRTUAL_BYTES,
    check_content,
    check_size,
    describe_unsupported,
    inspect_by_oslo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from image_service.core.formats.reading import ReadAt, Span

OVA = "ova"
INPUT_FORMATS = (*(item.value for item in DiskFormat), OVA)
"""The values of `declared` in `open_image`."""

_TABLES_IN_HOLES_BYTES = 128 * 1024 * 1024
_FILE_TYPES: Final[Mapping[int, str]] = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a character device",
    stat.S_IFSOCK: "a socket",
}


@attrs.frozen
class Assessment:
    """The verdict on a file: its format, and whether a program may open it.

    Args:
        format: as detected, of an OVA its disk's; None: no disk image that is supported (`reasons` tell).
        content: the name of the detected format, for messages: ``qcow2``, ``raw``, ``ova``, ``luks``, …
        reasons: why it is refused; none: it is safe.
        size: bytes of the file.
        disk: its content, as far as it can be read; safe only if there is no reason.
        area: where in the file the image is; None: the file is the image.
        warnings: in what the descriptor of an OVA differs from the rest of it.
    """

    format: DiskFormat | None
    content: str
    reasons: tuple[str, ...]
    size: int = 0
    disk: VirtualDisk | None = None
    area: Span | None = None
    warnings: tuple[str, ...] = ()


@attrs.frozen(eq=False)
class DiskImage:
    """An open disk image that is safe.

    Args:
        path: for messages.
        descriptor: of the file, read-only.
        size: bytes of the file.
        content: the format of the file: that of the disk, or ``ova``.
        area: where in an OVA the disk's image is; None: the file is the image.
        state: of the file when it was opened.
        warnings: as of its `Assessment`.
        node: the disk for qemu's programs: with every driver, so that they detect nothing.
    """

    path: Path
    descriptor: int
    size: int
    disk: VirtualDisk
    content: str
    area: Span | None
    state: os.stat_result
    warnings: tuple[str, ...] = ()
    node: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def name_for_programs(self) -> str:
        """Return the path under which a program that inherits the descriptor opens the image."""
        return f"/proc/self/fd/{self.descriptor}"

    @property
    def source_for_qemu(self) -> str:
        """Return the disk's name for qemu's programs."""
        return "json:" + json.dumps(self.node)

    @property
    def stored_extents(self) -> Iterable[tuple[int, int]]:
        """Yield offset and length of the stored parts of the disk; raw and fixed VHD store no holes."""
        if (self.disk.format, self.disk.subformat) in {(DiskFormat.RAW, ""), (DiskFormat.VHD, "fixed")}:
            return data_ranges(self.descriptor)
        return self.disk.data_extents()

    @node.default
    def _describe_node(self) -> Mapping[str, Any]:
        is_device = stat.S_ISBLK(self.state.st_mode)
        source: dict[str, Any]
        file: dict[str, Any] = {
            "driver": "host_device" if is_device else "file",
            "filename": self.name_for_programs,
        }
        if self.area:
            file = {"driver": "raw", "offset": self.area.offset, "size": self.area.length, "file": file}
        if self.disk.format is DiskFormat.RAW:
            source = {"driver": "raw", "file": file}
        elif self.disk.format is DiskFormat.VHD and self.disk.subformat == "fixed":
            # qemu's own driver may take the size from the geometry, which is less.
            source = {"driver": "raw", "offset": 0, "size": self.disk.virtual_size, "file": file}
        elif self.disk.format is DiskFormat.VHD:
            source = {"driver": "vpc", "force_size_calc": "current_size", "file": file}
        elif self.disk.format is DiskFormat.VHDX:
            source = {"driver": "vhdx", "file": file}
        else:
            source = {"driver": self.disk.format.value, "backing": None, "file": file}
        return source

    def check_unchanged(self) -> None:
        """Raise UnsafeImage if somebody has written to the file since it was opened."""
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != (self.state.st_size, self.state.st_mtime_ns):
            raise UnsafeImage(f"{self.path}: the file changed while it was read")


class _CheckedReader:
    """Reads a file; while it is checked, not many more bytes than it stores.

    Tables in the holes of a small file can be of any size, and to read them takes as long.
    """

    def __init__(self, descriptor: int, pace: Callable[[int], None]) -> None:
        state = os.fstat(descriptor)
        stored = state.st_blocks * SECTOR_BYTES if stat.S_ISREG(state.st_mode) else state.st_size
        self.left: int | None = stored + _TABLES_IN_HOLES_BYTES
        self._limit = self.left
        self._descriptor = descriptor
        self._pace = pace

    def __call__(self, offset: int, length: int) -> bytes:
        """Read at an offset; FormatError if the check has read too much."""
        self._pace(length)
        if self.left is not None:
            self.left -= length
            if self.left < 0:
                raise FormatError(
                    f"the image has tables of more than {self._limit} bytes, most of them in holes"
                )
        return os.pread(self._descriptor, length, offset)


def ignore_pace(_count: int) -> None:
    """Neither wait nor check a limit."""


def assess(
    descriptor: int,
    max_virtual_bytes: int = MAX_VIRTUAL_BYTES,
    pace: Callable[[int], None] = ignore_pace,
) -> Assessment:
    """Detect the format of an open file, and check its structures; a fault is a reason, not an error.

    Args:
        descriptor: of a file, read-only.
        max_virtual_bytes: a larger disk is refused.
        pace: is called with the bytes of each read, now and of the disk later: `Workspace.pace`.
    """
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        kind = _FILE_TYPES.get(stat.S_IFMT(mode), "no regular file")
        return Assessment(None, "no file", (f"it is {kind}: only files and block devices can be images",))
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if not size:
        return Assessment(None, "empty", ("the file is empty",))
    read_at = _CheckedReader(descriptor, pace)
    formats, reasons = _detect(read_at, size)
    formats = formats or detect_others(read_at, size) or {DiskFormat.RAW.value}
    content = "+".join(sorted(formats))
    if len(formats) > 1:
        reasons = [*reasons, f"it would be read as any of {', '.join(sorted(formats))}"]
        return Assessment(None, content, tuple(reasons), size)
    if content not in INPUT_FORMATS:
        return Assessment(None, content, (describe_unsupported(content),), size)
    area = disk = None
    warnings: tuple[str, ...] = ()
    try:
        if content == OVA:
            layout = read_ova(read_at, size)
            area, reasons = layout.disk, _check_vmdk(read_at, layout.disk)
            disk = read_disk(DiskFormat.VMDK, SpanReader(read_at, area), area.length)
            warnings = read_ovf(read_at, layout, disk.virtual_size)
        else:
            disk = read_disk(DiskFormat(content), read_at, size)
        check_size(disk, max_virtual_bytes)
        check_structure(disk)
        reasons += check_content(disk)
    except FormatError as error:
        reasons.insert(0, error.detail)
    disk_format = DiskFormat.VMDK if content == OVA else DiskFormat(content)
    read_at.left = None
    return Assessment(disk_format, content, tuple(reasons), size, disk, area, warnings)


def check_manifest(descriptor: int, assessment: Assessment, pace: Callable[[int], None]) -> str | None:
    """Return why an OVA differs from its manifest, after reading all of it; None: it does not."""
    if assessment.content != OVA:
        return None

    def read_at(offset: int, length: int) -> bytes:
        pace(length)
        return os.pread(descriptor, length, offset)

    try:
        check_ova_manifest(read_at, read_ova(read_at, assessment.size))
    except FormatError as error:
        return error.detail
    return None


def _detect(read_at: ReadAt, size: int) -> tuple[set[str], list[str]]:
    """Return the formats that any inspector finds, and the objections of oslo.utils."""
    formats, reasons = inspect_by_oslo(read_at, size)
    return formats | detect_images(read_at, size), reasons


def _check_vmdk(read_at: ReadAt, area: Span) -> list[str]:
    """Return the objections of oslo.utils to the disk of an OVA; FormatError if it is not a VMDK."""
    formats, reasons = _detect(SpanReader(read_at, area), area.length)
    if formats != {DiskFormat.VMDK.value}:
        found = " and ".join(sorted(formats)) or DiskFormat.RAW.value
        raise FormatError(f"{area.path} in the OVA should be vmdk, and its content is {found}")
    return reasons


@contextmanager
def open_image(
    path: Path,
    declared: str | None = None,
    max_virtual_bytes: int = MAX_VIRTUAL_BYTES,
    pace: Callable[[int], None] = ignore_pace,
    name: str = "",
) -> Iterator[DiskImage]:
    """Open a disk image for reading.

    Args:
        path: of a regular file or a block device.
        declared: one of `INPUT_FORMATS`; None: the detected format.
        max_virtual_bytes: a larger disk is refused.
        pace: as for `assess`.
        name: of the image in messages; "": its path.

    Raises:
        UnsafeImage: it is not safe, or its content is not of the declared format; both are named. At the end:
            the file changed meanwhile.
        OSError: it cannot be read.
    """
    # Without O_NONBLOCK a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        state = os.fstat(descriptor)
        assessment = assess(descriptor, max_virtual_bytes, pace)
        reasons = list(assessment.reasons)
        if declared is not None and declared != assessment.content:
            reasons.insert(0, f"it is declared to be {declared}, and its content is {assessment.content}")
        if reasons or assessment.disk is None:
            raise UnsafeImage(f"{name or path}: {'; '.join(reasons)}")
        if damage := check_manifest(descriptor, assessment, pace):
            raise UnsafeImage(f"{name or path}: {damage}")
        image = DiskImage(
            path,
            descriptor,
            os.lseek(descriptor, 0, os.SEEK_END),
            assessment.disk,
            assessment.content,
            assessment.area,
            state,
            assessment.warnings,
        )
        yield image
        image.check_unchanged()
    finally:
        os.close(descriptor)
