"""The bitmap of the bytes that were read, compared with a set of offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.boot_progress.coverage import MAX_BYTES, Coverage

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES = st.integers(1, 3_000_000)
Ranges = list[tuple[int, int]]


@st.composite
def ranges_of(draw: st.DrawFn) -> tuple[int, Ranges]:
    size = draw(SIZES)
    offsets = st.integers(0, size - 1)
    pairs = draw(st.lists(st.tuples(offsets, offsets), max_size=6))
    return size, [(min(pair), max(pair) + 1) for pair in pairs]


def covered(size: int, ranges: Sequence[tuple[int, int]]) -> Coverage:
    coverage = Coverage(size)
    for start, stop in ranges:
        coverage.add(start, stop)
    return coverage


def grains_of(coverage: Coverage, ranges: Sequence[tuple[int, int]]) -> set[int]:
    """Return the numbers of the grains that ranges touch."""
    return {
        grain
        for start, stop in ranges
        for grain in range(start >> coverage.shift, ((stop - 1) >> coverage.shift) + 1)
    }


@given(ranges_of(), st.data())
def test_bytes_are_counted_by_grains(sized: tuple[int, Ranges], data: st.DataObject) -> None:
    size, ranges = sized
    coverage = covered(size, ranges)
    grains, grain_bytes = grains_of(coverage, ranges), 1 << coverage.shift
    first = data.draw(st.integers(0, size - 1))
    last = data.draw(st.integers(first, size - 1))
    expected = sum(
        min((grain + 1) * grain_bytes, last + 1) - max(grain * grain_bytes, first)
        for grain in grains
        if grain * grain_bytes <= last and (grain + 1) * grain_bytes > first
    )
    assert coverage.count(first, last + 1) == expected
    assert coverage.is_prefix == (grains == set(range(len(grains))))
    assert coverage.has(first) == (first >> coverage.shift in grains)


@given(ranges_of(), st.data())
def test_merged_coverage_has_both(sized: tuple[int, Ranges], data: st.DataObject) -> None:
    size, ranges = sized
    split = data.draw(st.integers(0, len(ranges)))
    one, other = covered(size, ranges[:split]), covered(size, ranges[split:])
    one.merge(other.bitmap)
    assert one.bitmap == covered(size, ranges).bitmap


@pytest.mark.parametrize("size", [1, 511, 512, 2**20, 2**20 + 1, 100_000_000, 1_200_000_000, 2**40])
def test_bitmap_is_small_and_counts_the_whole_image(size: int) -> None:
    coverage = covered(size, [(0, size)])
    assert len(coverage.bitmap) <= MAX_BYTES
    assert (coverage.count(), coverage.is_prefix) == (size, True)
    coverage.clear()
    assert coverage.count() == 0
