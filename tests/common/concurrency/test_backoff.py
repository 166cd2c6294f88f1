from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.concurrency.backoff import Backoff

SECONDS = st.floats(0.001, 100_000)


def at_most(_: float, most: float) -> float:
    return most


def at_least(least: float, _: float) -> float:
    return least


@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 1), (2, 2), (3, 4), (9, 256), (10, 300), (11, 300), (10_000, 300)]
)
def test_each_failure_doubles_the_delay_up_to_the_maximum(failures: int, seconds: float) -> None:
    assert Backoff(1, 300, at_most).delay_seconds(failures) == seconds
    assert Backoff(1, 300, at_least).delay_seconds(failures) == seconds / 2


@given(SECONDS, SECONDS, st.integers(1, 80), st.none() | st.integers(0, 86400))
def test_delay_is_within_bounds_and_at_least_retry_after(
    least: float, most: float, failures: int, asked: int | None
) -> None:
    expected = least
    for _ in range(failures - 1):
        expected *= 2
    expected = min(most, expected)
    delay = Backoff(least, most).delay_seconds(failures, asked)
    assert max(expected / 2, asked or 0) <= delay <= max(expected, asked or 0)


def test_delays_are_spread_by_jitter() -> None:
    assert len({Backoff().delay_seconds(8) for _ in range(10)}) > 1
