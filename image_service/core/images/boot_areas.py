"""The bytes of an ISO that a machine reads at each stage of a boot: firmware, boot loader, kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import FormatError
from image_service.core.families.iso_layout import BootPart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet

    from image_service.core.families.iso_layout import IsoLayout
    from image_service.core.formats.iso_edit.editor import IsoPlan
    from image_service.core.formats.reading import Span


@attrs.frozen
class BootArea:
    """A file or an area of an ISO, from `start` up to `stop`."""

    part: BootPart
    start: int
    stop: int


def find_boot_areas(
    iso: IsoLayout,
    config: Span | None = None,
    translate: Callable[[int, int], int] = lambda offset, _: offset,
) -> tuple[BootArea, ...]:
    """Return the areas of an ISO, by ascending offset; none of them overlap.

    Args:
        config: the area or file of the config; None: a machine reads none.
        translate: returns the offset, in the ISO, of so many bytes at an offset of the base image. Raises
            FormatError if the ISO lacks them.
    """
    areas: list[BootArea] = []
    for part, span in _spans(iso, config):
        try:
            start = translate(span.offset, span.length)
        except FormatError:
            continue
        areas.append(BootArea(part, start, start + span.length))
    areas.sort(key=lambda area: area.start)
    return tuple(area for index, area in enumerate(areas) if not index or areas[index - 1].stop <= area.start)


def _spans(iso: IsoLayout, config: Span | None) -> Iterator[tuple[BootPart, Span]]:
    files = iso.files
    for part, span in (
        (BootPart.KERNEL, files.kernel),
        (BootPart.INITRD, files.initrd),
        (BootPart.CONFIG, config),
        (BootPart.ROOTFS, files.rootfs),
        *iso.live,
        *((BootPart.FIRMWARE, span) for span in iso.firmware),
        *((BootPart.BOOT_LOADER, span) for span in iso.boot_loader),
    ):
        if span is not None and span.length:
            yield part, span


def edited_areas(
    areas: tuple[BootArea, ...], plan: IsoPlan, config: AbstractSet[str]
) -> tuple[BootArea, ...]:
    """Return the areas of an edited ISO: of partitions that have moved, and of files that were put.

    Args:
        areas: of the base.
        plan: the edit.
        config: paths of the config's files.
    """
    put = [place for place in plan.places if place.path in config and place.length]
    found = [_moved(area, plan) for area in areas if not put or area.part is not BootPart.CONFIG]
    found += (BootArea(BootPart.CONFIG, place.offset, place.offset + place.length) for place in put)
    return tuple(sorted(found, key=lambda area: area.start))


def _moved(area: BootArea, plan: IsoPlan) -> BootArea:
    for move in plan.moves:
        if move.start <= area.start < move.start + move.length:
            distance = move.to - move.start
            return BootArea(area.part, area.start + distance, area.stop + distance)
    return area
