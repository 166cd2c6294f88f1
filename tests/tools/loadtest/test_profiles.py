"""The ranges that are read of an image."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.tools.loadtest.traffic.profiles import (
    BLOCK,
    BOOT_BYTES,
    BOOT_RANGES,
    DIRECTORY_BYTES,
    MOUNT_RANGES,
    Profile,
    ranges,
)

SIZES = st.integers(1, 3 * BLOCK) | st.integers(1, 1 << 42)
KIB = 1024
GIB = 1 << 30


def reads(profile: Profile, size: int, seed: int) -> list[tuple[int, int]]:
    return list(ranges(profile, size, Random(seed)))  # noqa: S311 - nothing is secret


@given(st.sampled_from((Profile.MOUNT, Profile.BOOT)), SIZES, st.integers(0, 9))
def test_ranges_are_aligned_within_the_image_and_of_4_to_128_kib(
    profile: Profile, size: int, seed: int
) -> None:
    made = reads(profile, size, seed)
    assert len(made) == {Profile.MOUNT: MOUNT_RANGES, Profile.BOOT: BOOT_RANGES}[profile]
    for start, stop in made:
        assert 0 <= start < stop <= size
        assert start % BLOCK == 0
        assert stop == size or (4 * KIB <= stop - start <= 128 * KIB and stop % BLOCK == 0)


@settings(max_examples=20)  # of 3000 ranges each
@given(st.integers(0, 1000))
def test_mount_is_mostly_sequential_with_jumps_back(seed: int) -> None:
    made = reads(Profile.MOUNT, GIB, seed)
    followed = {stop % GIB for _, stop in made}
    sequential = sum(start in followed for start, _ in made)
    back = [start for start, _ in made if start not in followed]
    assert sequential > 0.9 * MOUNT_RANGES
    assert len(back) >= 16
    assert sum(start < BOOT_BYTES for start in back) >= len(back) - 2


def test_boot_begins_with_directories() -> None:
    made = reads(Profile.BOOT, GIB, 1)
    assert all(start < DIRECTORY_BYTES for start, _ in made[:16])
    assert made[16][0] == 0
    assert all(before[1] == after[0] for before, after in pairwise(made[16:]))


@pytest.mark.parametrize("profile", [Profile.MOUNT, Profile.BOOT])
def test_empty_image_has_no_ranges(profile: Profile) -> None:
    assert reads(profile, 0, 1) == []


def test_equal_seeds_make_equal_ranges() -> None:
    assert reads(Profile.MOUNT, GIB, 7) == reads(Profile.MOUNT, GIB, 7)
    assert reads(Profile.MOUNT, GIB, 7) != reads(Profile.MOUNT, GIB, 8)
