"""Pending reads, compared with a record of each range by itself."""

from __future__ import annotations

from itertools import count
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from image_service.core.families.iso_layout import BootPart
from image_service.core.images.boot_areas import BootArea
from image_service.server.boot_progress.recording import PendingReads, ReadRecorder
from image_service.server.boot_progress.stages import BootMap, Touch, Touches
from tests.server.boot_progress.boots import MIB, iso, key

KIB = 1024
SECTOR = 2 * KIB
SIZE = 32 * MIB

Boot: TypeAlias = "tuple[list[BootArea], list[tuple[int, int]]]"


@st.composite
def boots(draw: st.DrawFn) -> Boot:
    """Parts of an ISO with gaps or without, and the offsets and lengths of ranges at and between them."""
    areas, start = [], 64 * KIB
    for part in draw(st.permutations(list(BootPart))):
        start += draw(st.sampled_from([0, SECTOR, 40 * KIB, MIB]))
        length = draw(st.sampled_from([SECTOR, 30 * KIB, 2 * MIB]))
        areas.append(BootArea(part, start, start + length))
        start += length
    places = [offset for area in areas for offset in (area.start, area.stop - SECTOR, area.stop)]
    distances = st.sampled_from([-32 * KIB, -SECTOR, 0, 0, 0, SECTOR, 64 * KIB, MIB + SECTOR])
    offsets = st.tuples(st.sampled_from(places), distances).map(lambda pair: max(0, sum(pair)))
    lengths = st.sampled_from([SECTOR, 32 * KIB, 256 * KIB, MIB])
    return areas, draw(st.lists(st.tuples(offsets, lengths), max_size=40))


@given(boots())
def test_parts_have_the_times_of_all_ranges(boot: Boot) -> None:
    areas, ranges = boot
    clock = count()
    reads = PendingReads(key(), iso(areas, SIZE), ReadRecorder(lambda: float(next(clock))))
    boot_map, expected, recorded = BootMap(areas), Touches(), Touches()
    for number, (start, length) in enumerate(ranges):
        reads.record(start, length)
        expected.add(boot_map.find_touches(start, start + length), float(number))
    recorded.merge(reads.collect()["touches"])
    assert recorded.first == expected.first
    if Touch.ROOTFS_INSIDE in expected.last:  # a range there counts for that alone, which is a later stage
        recorded.last[Touch.ROOTFS] = expected.last[Touch.ROOTFS]
    assert recorded.last == expected.last
    assert recorded.stage is expected.stage
