"""The stages of a boot, by the parts of an ISO that were requested, and when.

    firmware            a file that firmware reads
    boot loader         a file of a boot loader, after the firmware's
    kernel              the kernel
    initrd              the initrd, after the kernel
    ignition            the area or file of the config, after the end of the initrd
    root file system    its file after the config, or anything far behind its beginning

The order distinguishes the files that the machine wants from those that are read with them: clients read
ahead, and whole blocks, so a range may begin and end in files that the machine did not want. A range counts
for the file in which it begins, and one that begins a block for all files in that. Only times are compared,
so that it does not matter which process has sent a range.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from typing import TYPE_CHECKING

import attrs

from image_service.core.families.iso_layout import BootPart

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from image_service.core.images.boot_areas import BootArea

BLOCK_BYTES = 32 * 1024
"""GRUB reads whole blocks of this size, at their multiples; other clients have smaller ones."""
BEGINNING_BYTES = 64 * 1024
"""The volume descriptors are in these bytes; every client reads them first."""
MAX_BOOT_BYTES = 8 * 1024 * 1024
"""Of a range that a machine reads while it boots; longer ones are of downloads."""
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


class ReadState(enum.Enum):
    """What the service knows about a client that reads an image, and no more."""

    READING = "reading"
    QUIET = "quiet"  # a boot that may need no further byte: the machine runs, hangs, or is off
    STALLED = "stalled"  # a boot that still needs the image
    DONE = "done"  # a download of all bytes
    ABORTED = "aborted"  # a download that a program or a person has ended before


READ_AS_FILE = "file"
"""In the place of a stage, of an image that is read as a whole."""
ORDER = {stage: number for number, stage in enumerate(Stage)}
_STAGES = {
    BootPart.FIRMWARE: Stage.FIRMWARE,
    BootPart.BOOT_LOADER: Stage.BOOT_LOADER,
    BootPart.KERNEL: Stage.KERNEL,
    BootPart.INITRD: Stage.INITRD,
    BootPart.CONFIG: Stage.IGNITION,
    BootPart.ROOTFS: Stage.ROOTFS,
}


def find_last_stage(areas: Iterable[BootArea]) -> Stage:
    """Return the last stage that a boot from an ISO with these parts reaches."""
    return max((_STAGES[area.part] for area in areas), key=ORDER.__getitem__, default=Stage.PROBED)


class Touch(enum.IntEnum):
    """A part of an ISO that a range may be for."""

    FIRMWARE = 0
    BOOT_LOADER = 1
    KERNEL = 2
    INITRD = 3
    INITRD_END = 4
    IGNITION = 5
    IGNITION_END = 6
    ROOTFS = 7
    ROOTFS_INSIDE = 8
    """Far behind its beginning, where nothing is read ahead of the files before it."""


_BEGUN = {
    BootPart.FIRMWARE: Touch.FIRMWARE,
    BootPart.BOOT_LOADER: Touch.BOOT_LOADER,
    BootPart.KERNEL: Touch.KERNEL,
    BootPart.INITRD: Touch.INITRD,
    BootPart.CONFIG: Touch.IGNITION,
    BootPart.ROOTFS: Touch.ROOTFS,
}
_ENDS = {Stage.INITRD: Touch.INITRD_END, Stage.IGNITION: Touch.IGNITION_END}
_ENDED = {BootPart.INITRD: Touch.INITRD_END, BootPart.CONFIG: Touch.IGNITION_END}


NO_FILE: tuple[int, int, Touch | None] = (0, 0, None)
"""In which no range begins."""
_END = 1 << 63
"""Of a gap after which there is no file."""


class BootMap:
    """Finds the parts of an ISO that a range may be for.

    Args:
        areas: by ascending offset, without overlaps; none: the image is not booted as a medium.
    """

    __slots__ = ("_areas", "_stops")

    def __init__(self, areas: Sequence[BootArea]) -> None:
        self._stops = [area.stop for area in areas]
        self._areas = [(area.start, area.stop, _BEGUN[area.part], _ENDED.get(area.part)) for area in areas]

    def find_touches(self, start: int, stop: int) -> list[Touch]:
        """Return the parts that a range from `start` up to `stop` may be for."""
        areas, found = self._areas, []
        alignment = start & -start if start >= BEGINNING_BYTES else 1
        block_stop = start + min(alignment, BLOCK_BYTES, stop - start)
        for index in range(bisect_left(self._stops, start + 1), len(areas)):
            area_start, area_stop, begun, ended = areas[index]
            if area_start >= block_stop:
                break
            found.append(begun)
            if ended is not None and stop >= area_stop:
                found.append(ended)
            # A block that ends behind the root file system may be read for the file there.
            is_whole = begun is Touch.ROOTFS and block_stop <= area_stop
            if is_whole and start - area_start >= MAX_READ_AHEAD_BYTES:
                found.append(Touch.ROOTFS_INSIDE)
        return found

    def find_file(self, start: int) -> tuple[int, int, Touch | None]:
        """Return start and stop of the file in which a range begins, and the part for which the range counts.

        Ranges that begin and end in it count for that alone. Between two files it is the gap, and no part.
        """
        areas, index = self._areas, bisect_left(self._stops, start + 1)
        gap_start = areas[index - 1][1] if index else 0
        if index == len(areas):
            return gap_start, _END, None
        area_start, area_stop, begun, _ = areas[index]
        if start < area_start:
            return gap_start, area_start, None
        if begun is not Touch.ROOTFS:
            return area_start, area_stop, begun
        inside = area_start + MAX_READ_AHEAD_BYTES
        return (inside, area_stop, Touch.ROOTFS_INSIDE) if start >= inside else NO_FILE


@attrs.define
class Touches:
    """When each part was requested first and last, by the clock's seconds."""

    first: dict[int, float] = attrs.field(factory=dict)
    last: dict[int, float] = attrs.field(factory=dict)

    def add(self, touches: Iterable[int], now: float) -> None:
        """Add those of a range."""
        for touch in touches:
            self.first.setdefault(touch, now)
            self.last[touch] = now

    def collect(self) -> list[tuple[int, float, float]]:
        """Return each part with its times, and forget them."""
        collected = [(touch, first, self.last[touch]) for touch, first in self.first.items()]
        self.first.clear()
        self.last.clear()
        return collected

    def merge(self, collected: Iterable[tuple[int, float, float]]) -> None:
        """Add the times that another process has collected."""
        for touch, first, last in collected:
            self.first[touch] = min(first, self.first.get(touch, first))
            self.last[touch] = max(last, self.last.get(touch, last))

    @property
    def stage(self) -> Stage:
        """The last stage that was reached, except for the end."""
        has_loaded = self.has_read_to_end(Stage.INITRD)
        for stage, is_reached in (
            (Stage.ROOTFS, self._has_mounted),
            (Stage.IGNITION, has_loaded and self._follows(Touch.IGNITION, self._loaded_at)),
            (Stage.INITRD, self._follows(Touch.INITRD, self.first.get(Touch.KERNEL))),
            (Stage.KERNEL, Touch.KERNEL in self.first),
            (Stage.BOOT_LOADER, self._follows(Touch.BOOT_LOADER, self.first.get(Touch.FIRMWARE))),
            (Stage.FIRMWARE, Touch.FIRMWARE in self.first),
        ):
            if is_reached:
                return stage
        return Stage.PROBED

    def has_read_to_end(self, stage: Stage) -> bool:
        """Return True if the file of a stage was read to its end after the kernel was begun.

        GRUB may have got the end of the config in a block with the initrd.
        """
        end = _ENDS.get(stage)
        return end is not None and self._follows(end, self.first.get(Touch.KERNEL))

    @property
    def _loaded_at(self) -> float | None:
        return self.last.get(Touch.INITRD_END)

    @property
    def _has_mounted(self) -> bool:
        if Touch.ROOTFS_INSIDE in self.last:
            return True
        has_read = self.has_read_to_end(Stage.INITRD) and self._follows(Touch.IGNITION, self._loaded_at)
        return has_read and self._follows(Touch.ROOTFS, self.last.get(Touch.IGNITION))

    def _follows(self, touch: Touch, moment: float | None) -> bool:
        """Return True if a part was requested after a moment; None: at any time."""
        last = self.last.get(touch)
        return last is not None and (moment is None or last > moment)
