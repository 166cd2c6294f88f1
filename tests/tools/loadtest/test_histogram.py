"""Counts of durations, compared with the durations themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.tools.loadtest.traffic.histogram import DurationHistogram

SECONDS = st.floats(0, 100_000) | st.floats(0, 0.01) | st.integers(0, 10**7).map(lambda us: us / 1e6)
MICROSECOND = 1e-6


def histogram_of(durations: list[float]) -> DurationHistogram:
    histogram = DurationHistogram()
    for seconds in durations:
        histogram.record(seconds)
    return histogram


@given(st.lists(SECONDS, min_size=1), st.floats(0.001, 100))
def test_percentiles_are_those_of_the_sorted_durations(durations: list[float], percent: float) -> None:
    at_rank = sorted(durations)[math.ceil(len(durations) * percent / 100) - 1]
    reported = histogram_of(durations).percentile(percent)
    assert at_rank * (1 - 1e-12) <= reported <= at_rank * (1 + 1 / 128) + 2 * MICROSECOND


@given(st.lists(SECONDS, min_size=1))
def test_largest_is_exact_and_is_percentile_100(durations: list[float]) -> None:
    histogram = histogram_of(durations)
    assert histogram.count == len(durations)
    assert histogram.largest == histogram.percentile(100) == max(durations)
    assert histogram.mean == pytest.approx(sum(durations) / len(durations))


@given(st.lists(SECONDS, min_size=1))
def test_shares_increase_and_match_sorted_durations(durations: list[float]) -> None:
    shares = list(histogram_of(durations).shares())
    assert shares == sorted(shares)
    assert shares[-1] == (max(durations), 1.0)
    for seconds, share in shares:
        at_most = sum(duration <= seconds for duration in durations) / len(durations)
        assert share == pytest.approx(at_most)


def test_empty_histogram_is_all_zero() -> None:
    histogram = DurationHistogram()
    assert (histogram.count, histogram.mean, histogram.largest, histogram.percentile(99)) == (0, 0, 0, 0)
    assert list(histogram.shares()) == []


def test_negative_duration_counts_as_zero() -> None:
    assert histogram_of([-1.0]).percentile(100) == 0


@given(st.lists(st.floats(0.0001, 1000), max_size=2000))
def test_bucket_count_is_bounded_by_the_range_of_values(durations: list[float]) -> None:
    assert len(list(histogram_of(durations).shares())) <= 128 * 25
