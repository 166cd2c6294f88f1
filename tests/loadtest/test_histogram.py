"""Counts of durations, compared with the durations themselves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.loadtest.histogram import Histogram

SECONDS = st.floats(0, 100_000) | st.floats(0, 0.01) | st.integers(0, 10**7).map(lambda us: us / 1e6)
MICROSECOND = 1e-6


def histogram_of(durations: list[float]) -> Histogram:
    histogram = Histogram()
    for seconds in durations:
        histogram.record(seconds)
    return histogram


@given(st.lists(SECONDS, min_size=1), st.floats(0.001, 100))
def test_percentiles_are_those_of_the_sorted_durations(durations: list[float], percent: float) -> None:
    at_rank = sorted(durations)[math.ceil(len(durations) * percent / 100) - 1]
    told = histogram_of(durations).percentile(percent)
    assert at_rank * (1 - 1e-12) <= told <= at_rank * (1 + 1 / 128) + 2 * MICROSECOND


@given(st.lists(SECONDS, min_size=1))
def test_the_longest_is_exact_and_is_the_last_percentile(durations: list[float]) -> None:
    histogram = histogram_of(durations)
    assert histogram.count == len(durations)
    assert histogram.largest == histogram.percentile(100) == max(durations)
    assert histogram.mean == pytest.approx(sum(durations) / len(durations))


@given(st.lists(SECONDS, min_size=1))
def test_shares_rise_and_are_those_that_are_not_exceeded(durations: list[float]) -> None:
    shares = list(histogram_of(durations).shares())
    assert shares == sorted(shares)
    assert shares[-1] == (max(durations), 1.0)
    for seconds, share in shares:
        at_most = sum(duration <= seconds for duration in durations) / len(durations)
        assert share == pytest.approx(at_most)


def test_without_durations_there_is_nothing() -> None:
    histogram = Histogram()
    assert (histogram.count, histogram.mean, histogram.largest, histogram.percentile(99)) == (0, 0, 0, 0)
    assert list(histogram.shares()) == []


def test_a_clock_that_was_set_back_measures_nothing() -> None:
    assert histogram_of([-1.0]).percentile(100) == 0


@given(st.lists(st.floats(0.0001, 1000), max_size=2000))
def test_memory_is_bounded_by_the_range_of_values(durations: list[float]) -> None:
    assert len(list(histogram_of(durations).shares())) <= 128 * 25
