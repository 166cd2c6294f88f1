from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.common.files.local_file import LocalFile
from image_service.common.files.residency_cache import (
    MAX_REGIONS,
    REGION_BYTES,
    VALID_SECONDS,
    ResidencyCache,
)

if TYPE_CHECKING:
    from image_service.core.base_file import BaseFile

SIZE = 3 * REGION_BYTES - 1000
KIB = 1024


@attrs.define(eq=False)
class World:
    """A file that is resident except for one byte.

    Args:
        cold: offset of the absent byte.
        checked: the extents that were looked at, in their order.
    """

    cold: int = -1
    checked: list[tuple[int, int]] = attrs.field(factory=list)
    clock: Clock = attrs.field(factory=Clock)
    file: LocalFile = attrs.field(factory=lambda: LocalFile(7, SIZE, "base.iso"))
    regions: ResidencyCache = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.regions = ResidencyCache(self.clock, self._is_resident)

    def _is_resident(self, file: BaseFile, offset: int, length: int) -> bool:
        assert file is self.file
        self.checked.append((offset, length))
        return not offset <= self.cold < offset + length

    def knows(self, offset: int, length: int = 64 * KIB) -> bool:
        """Return True if an extent is known to be resident."""
        return self.regions.are_resident(self.file, offset, length)


@pytest.fixture
def world() -> World:
    return World()


def test_region_read_once_is_not_checked(world: World) -> None:
    for index in range(3):
        assert not world.knows(index * REGION_BYTES)
    assert world.checked == []


def test_region_is_checked_at_its_second_read(world: World) -> None:
    assert not world.knows(REGION_BYTES)
    assert world.knows(REGION_BYTES + 64 * KIB)
    assert world.knows(2 * REGION_BYTES - 1, 1)
    assert world.checked == [(REGION_BYTES, REGION_BYTES)]


def test_last_region_ends_with_the_file(world: World) -> None:
    world.knows(2 * REGION_BYTES)
    assert world.knows(SIZE - 10, 10)
    assert world.checked == [(2 * REGION_BYTES, REGION_BYTES - 1000)]


def test_extent_across_two_regions_is_unknown(world: World) -> None:
    for offset in (0, 0, REGION_BYTES, REGION_BYTES):
        world.knows(offset)
    assert not world.knows(REGION_BYTES - 1, 2)


def test_region_is_checked_again_when_its_validity_ends(world: World) -> None:
    world.knows(0)
    assert world.knows(0)
    world.cold = 5
    world.clock.advance(VALID_SECONDS / 2)
    assert world.knows(0)
    world.clock.advance(VALID_SECONDS / 2)
    assert not world.knows(0)
    assert not world.knows(0)
    assert len(world.checked) == 2


def test_absent_region_is_not_checked_at_each_read(world: World) -> None:
    world.cold = 5
    for _ in range(10):
        assert not world.knows(64 * KIB)
    assert len(world.checked) == 1


def test_expired_region_counts_as_read_once(world: World) -> None:
    world.knows(0)
    assert world.knows(0)
    world.clock.advance(2 * VALID_SECONDS)
    assert not world.knows(0)
    assert len(world.checked) == 1
    assert world.knows(0)


def test_regions_of_two_files_are_distinct(world: World) -> None:
    other = LocalFile(8, SIZE, "other.iso")
    world.knows(0)
    assert world.knows(0)
    assert not world.regions.are_resident(other, 0, 1)


def test_file_with_a_reused_descriptor_is_checked_itself(world: World) -> None:
    """The file opened after another is closed may get its descriptor."""
    world.knows(0)
    assert world.knows(0)
    world.file = LocalFile(7, SIZE, "other.iso")
    assert not world.knows(0)


def test_clock_set_back_ends_validity(world: World) -> None:
    world.clock.advance(10_000)
    world.knows(0)
    assert world.knows(0)
    world.cold = 5
    world.clock.rightNow -= 3600
    assert not world.knows(0)
    assert not world.knows(0)


def test_number_of_cached_regions_is_bounded(world: World) -> None:
    world.file = attrs.evolve(world.file, size=(MAX_REGIONS + 10) * REGION_BYTES)
    for index in range(MAX_REGIONS + 5):
        world.knows(index * REGION_BYTES)
    assert not world.knows(0), "the first was evicted"
    assert world.knows((MAX_REGIONS + 4) * REGION_BYTES), "the last was not"


@given(
    st.lists(
        st.tuples(
            st.integers(0, SIZE - 1),
            st.integers(1, 2 * REGION_BYTES),
            st.sampled_from([0.0, 0.3, VALID_SECONDS, 5.0]),
        )
    ),
    st.integers(0, SIZE - 1),
)
def test_absent_bytes_are_never_reported_resident(reads: list[tuple[int, int, float]], cold: int) -> None:
    world = World(cold=cold)
    for offset, length, seconds in reads:
        stop = min(SIZE, offset + length)
        assert not (world.knows(offset, stop - offset) and offset <= cold < stop)
        world.clock.advance(seconds)
