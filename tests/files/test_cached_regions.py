from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from image_service.files.base_file import BaseFile
from image_service.files.cached_regions import LASTING_SECONDS, MAX_REGIONS, REGION_BYTES, CachedRegions

SIZE = 3 * REGION_BYTES - 1000
KIB = 1024


@attrs.define(eq=False)
class World:
    """A file of which everything is present but for what is said to be cold.

    Args:
        cold: an offset.
        looked_at: the extents that were looked at, in their order.
    """

    cold: int = -1
    looked_at: list[tuple[int, int]] = attrs.field(factory=list)
    clock: Clock = attrs.field(factory=Clock)
    file: BaseFile = attrs.field(factory=lambda: BaseFile(7, SIZE, "base.iso"))
    regions: CachedRegions = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.regions = CachedRegions(self.clock, self._is_resident)

    def _is_resident(self, file: BaseFile, offset: int, length: int) -> bool:
        assert file is self.file
        self.looked_at.append((offset, length))
        return not offset <= self.cold < offset + length

    def knows(self, offset: int, length: int = 64 * KIB) -> bool:
        """Whether an extent is known to be present."""
        return self.regions.are_resident(self.file, offset, length)


@pytest.fixture
def world() -> World:
    return World()


def test_who_reads_once_is_asked_about_what_it_reads(world: World) -> None:
    for index in range(3):
        assert not world.knows(index * REGION_BYTES)
    assert world.looked_at == []


def test_a_region_is_looked_at_when_it_is_read_from_again(world: World) -> None:
    assert not world.knows(REGION_BYTES)
    assert world.knows(REGION_BYTES + 64 * KIB)
    assert world.knows(2 * REGION_BYTES - 1, 1)
    assert world.looked_at == [(REGION_BYTES, REGION_BYTES)]


def test_the_last_region_ends_with_the_file(world: World) -> None:
    world.knows(2 * REGION_BYTES)
    assert world.knows(SIZE - 10, 10)
    assert world.looked_at == [(2 * REGION_BYTES, REGION_BYTES - 1000)]


def test_what_lies_in_two_regions_is_not_known(world: World) -> None:
    for offset in (0, 0, REGION_BYTES, REGION_BYTES):
        world.knows(offset)
    assert not world.knows(REGION_BYTES - 1, 2)


def test_it_is_looked_at_again_after_a_while(world: World) -> None:
    world.knows(0)
    assert world.knows(0)
    world.cold = 5
    world.clock.advance(LASTING_SECONDS / 2)
    assert world.knows(0)
    world.clock.advance(LASTING_SECONDS / 2)
    assert not world.knows(0)
    assert not world.knows(0)
    assert len(world.looked_at) == 2


def test_a_part_that_is_not_there_makes_nobody_look_at_each_request(world: World) -> None:
    world.cold = 5
    for _ in range(10):
        assert not world.knows(64 * KIB)
    assert len(world.looked_at) == 1


def test_who_comes_back_after_a_long_time_begins_anew(world: World) -> None:
    world.knows(0)
    assert world.knows(0)
    world.clock.advance(2 * LASTING_SECONDS)
    assert not world.knows(0)
    assert len(world.looked_at) == 1
    assert world.knows(0)


def test_files_are_not_mistaken_for_one_another(world: World) -> None:
    other = BaseFile(8, SIZE, "other.iso")
    world.knows(0)
    assert world.knows(0)
    assert not world.regions.are_resident(other, 0, 1)


def test_another_file_of_the_same_number_is_looked_at_itself(world: World) -> None:
    """A base that gives way to another may leave it its descriptor."""
    world.knows(0)
    assert world.knows(0)
    world.file = BaseFile(7, SIZE, "other.iso")
    assert not world.knows(0)


def test_a_clock_that_is_set_back_makes_nothing_last(world: World) -> None:
    world.clock.advance(10_000)
    world.knows(0)
    assert world.knows(0)
    world.cold = 5
    world.clock.rightNow -= 3600
    assert not world.knows(0)
    assert not world.knows(0)


def test_not_more_than_so_many_are_remembered(world: World) -> None:
    world.file = attrs.evolve(world.file, size=(MAX_REGIONS + 10) * REGION_BYTES)
    for index in range(MAX_REGIONS + 5):
        world.knows(index * REGION_BYTES)
    assert len(world.regions._regions) == 5


@given(
    st.lists(
        st.tuples(
            st.integers(0, SIZE - 1),
            st.integers(1, 2 * REGION_BYTES),
            st.sampled_from([0.0, 0.3, LASTING_SECONDS, 5.0]),
        )
    ),
    st.integers(0, SIZE - 1),
)
def test_nothing_is_known_that_was_not_seen_a_moment_ago(
    reads: list[tuple[int, int, float]], cold: int
) -> None:
    """Whatever is cold from the start is never told to be present."""
    world = World(cold=cold)
    for offset, length, seconds in reads:
        stop = min(SIZE, offset + length)
        assert not (world.knows(offset, stop - offset) and offset <= cold < stop)
        world.clock.advance(seconds)
