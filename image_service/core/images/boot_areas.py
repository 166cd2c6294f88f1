"""The bytes of an ISO that a machine reads at each stage of a boot: firmware, boot loader, kernel."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from image_service.core.families.coreos.live_iso import LiveIso
    from image_service.core.formats.reading import Span


class BootPart(enum.Enum):
    """The parts of an ISO that a machine reads while it boots, in this order."""

    FIRMWARE = "firmware"
    BOOT_LOADER = "boot loader"
    KERNEL = "kernel"
    INITRD = "initrd"
    IGNITION = "ignition"
    ROOTFS = "root file system"


@attrs.frozen
class BootArea:
    """A file or an area of an ISO, from `start` up to `stop`."""

    part: BootPart
    start: int
    stop: int


def find_boot_areas(
    iso: LiveIso, translate: Callable[[int, int], int] = lambda offset, _: offset
) -> tuple[BootArea, ...]:
    """Return the areas of an ISO, by ascending offset; none of them overlap.

    Args:
        translate: returns the offset, in the ISO, of so many bytes at an offset of the base image. Raises
            FormatError if the ISO lacks them.
    """
    areas: list[BootArea] = []
    for part, span in _spans(iso):
        try:
            start = translate(span.offset, span.length)
        except FormatError:
            continue
        areas.append(BootArea(part, start, start + span.length))
    areas.sort(key=lambda area: area.start)
    return tuple(area for index, area in enumerate(areas) if not index or areas[index - 1].stop <= area.start)


def _spans(iso: LiveIso) -> Iterator[tuple[BootPart, Span]]:
    files = iso.files
    for part, span in (
        (BootPart.KERNEL, files.kernel),
        (BootPart.INITRD, files.initrd),
        (BootPart.IGNITION, iso.ignition),
        (BootPart.ROOTFS, files.rootfs),
        *((BootPart.FIRMWARE, span) for span in iso.firmware),
        *((BootPart.BOOT_LOADER, span) for span in iso.boot_loader),
    ):
        if span is not None and span.length:
            yield part, span
