"""The stages of a boot, by the parts of an ISO whose bytes were requested.

    firmware, boot loader, kernel, initrd   a range began in one of its files
    ignition                                the same, and the end of the initrd was requested
    root file system                        a range began in it after Ignition, or far behind its beginning

A range counts for the file in which it begins: clients read ahead, so a range may end in files that nobody
has asked for. Boot loaders read the initrd before the Ignition area, and Linux the root file system after it,
which distinguishes them from what was read ahead of the files before them.
"""

from __future__ import annotations

import enum
from bisect import bisect_right
from typing import TYPE_CHECKING

from image_service.images.boot_areas import BootPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.images.boot_areas import BootArea

MAX_BOOT_BYTES = 8 * 1024 * 1024
"""Of a range that a machine reads while it boots; longer ones are of downloads."""
BLOCK_BYTES = 4096
"""Some clients read whole blocks of this size, so that a range begins before the file that is wanted."""
MAX_READ_AHEAD_BYTES = 1024 * 1024


class Stage(enum.Enum):
    """How far a boot has come; in this order."""

    PROBED = "probed"
    FIRMWARE = "firmware"
    BOOT_LOADER = "boot loader"
    KERNEL = "kernel"
    INITRD = "initrd"
    IGNITION = "ignition"
    ROOTFS = "root file system"
    DONE = "done"


ORDER = {stage: number for number, stage in enumerate(Stage)}


class Mark(enum.IntFlag):
    """What was requested of an ISO."""

    NONE = 0
    BEGINNING = enum.auto()  # the system area or the volume descriptors
    FIRMWARE = enum.auto()
    BOOT_LOADER = enum.auto()
    KERNEL = enum.auto()
    INITRD = enum.auto()
    INITRD_END = enum.auto()
    IGNITION = enum.auto()
    IGNITION_END = enum.auto()
    ROOTFS = enum.auto()  # its beginning, maybe ahead of what was wanted
    ROOTFS_MOUNTED = enum.auto()
    SMALL = enum.auto()  # a range of at most MAX_BOOT_BYTES
    RETURNED = enum.auto()  # what was read already; a client that reads the file in order does not
    HEAD = enum.auto()  # the header fields alone


_BEGUN = {
    BootPart.FIRMWARE: Mark.FIRMWARE,
    BootPart.BOOT_LOADER: Mark.BOOT_LOADER,
    BootPart.KERNEL: Mark.KERNEL,
    BootPart.INITRD: Mark.INITRD,
    BootPart.IGNITION: Mark.IGNITION,
    BootPart.ROOTFS: Mark.ROOTFS,
}
_ENDED = {BootPart.INITRD: Mark.INITRD_END, BootPart.IGNITION: Mark.IGNITION_END}
_ROOTFS, _ROOTFS_MOUNTED = int(Mark.ROOTFS), int(Mark.ROOTFS_MOUNTED)
_IGNITION_READ = Mark.INITRD_END | Mark.IGNITION


def has_mounted(before: Mark, now: Mark) -> bool:
    """Return True if the beginning of the root file system was read after Ignition.

    Args:
        before: what was requested earlier.
        now: what was requested then.
    """
    return bool(now & Mark.ROOTFS) and before & _IGNITION_READ == _IGNITION_READ


def find_stage(marks: Mark) -> Stage:
    """Return the last stage that a boot has reached, except for its end."""
    if marks & Mark.ROOTFS_MOUNTED:
        return Stage.ROOTFS
    if marks & _IGNITION_READ == _IGNITION_READ:
        return Stage.IGNITION
    for mark, stage in (
        (Mark.INITRD, Stage.INITRD),
        (Mark.KERNEL, Stage.KERNEL),
        (Mark.BOOT_LOADER, Stage.BOOT_LOADER),
        (Mark.FIRMWARE, Stage.FIRMWARE),
    ):
        if marks & mark:
            return stage
    return Stage.PROBED


class BootMap:
    """Finds what a range of an ISO is part of.

    Args:
        areas: by ascending offset, without overlaps; none: the image is not booted as a medium.
    """

    __slots__ = ("_areas", "_starts")

    def __init__(self, areas: Sequence[BootArea]) -> None:
        self._starts = [area.start - BLOCK_BYTES + 1 for area in areas]
        # Plain numbers: a flag's operators would cost more than all else about a range.
        self._areas = [
            (area.start, area.stop, int(_BEGUN[area.part]), int(_ENDED.get(area.part, 0))) for area in areas
        ]

    def find_marks(self, start: int, stop: int) -> int:
        """Return the marks of a range from `start` up to `stop`: what it begins in, and ends, if anything."""
        areas, index = self._areas, bisect_right(self._starts, start) - 1
        while index > 0 and start < areas[index][0] and start < areas[index - 1][1]:
            index -= 1  # it begins in the file before, not only in the block before the next one
        if index < 0:
            return 0
        area_start, area_stop, begun, ended = areas[index]
        if start >= area_stop:
            return 0
        if begun == _ROOTFS and start - area_start >= MAX_READ_AHEAD_BYTES:
            return begun | _ROOTFS_MOUNTED
        return begun | ended if stop >= area_stop else begun
