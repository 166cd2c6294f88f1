"""Objectives: parsed, compared and formatted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.tools.loadtest.traffic.objectives import (
    Dimension,
    Timing,
    format_value,
    parse_objective,
    parse_rate,
)


@pytest.mark.parametrize(
    ("text", "statistic", "timing", "bound"),
    [
        ("p99<200ms", "p99", Timing.REQUEST, 0.2),
        ("p99.9 <= 2s", "p99.9", Timing.REQUEST, 2),
        ("first-byte.max<=3s", "max", Timing.FIRST_BYTE, 3),
        ("first-request.p50<15ms", "p50", Timing.FIRST_REQUEST, 0.015),
        ("range.mean<800us", "mean", Timing.RANGE, 0.0008),
        ("connect.p100<1m", "p100", Timing.CONNECT, 60),
        ("errors<0.1%", "errors", None, 0.001),
        ("errors<=0", "errors", None, 0),
        ("refusals<0.05", "refusals", None, 0.05),
        ("throughput>1.5GB/s", "throughput", None, 1.5e9),
        ("throughput >= 3MiB/s", "throughput", None, 3 * 2**20),
        ("requests>1000/s", "requests", None, 1000),
    ],
)
def test_objective_is_parsed(text: str, statistic: str, timing: Timing | None, bound: float) -> None:
    objective = parse_objective(f" {text} ")
    assert (objective.text, objective.statistic, objective.timing) == (text, statistic, timing)
    assert objective.bound == pytest.approx(bound)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "must be as"),
        ("p99", "must be as"),
        ("p99=1s", "must be as"),
        ("p99<-1s", "must be as"),
        ("p99<1s and more", "must be as"),
        ("p99<200", "needs a unit, one of us, ms, s, m"),
        ("p99<2GB/s", "has the unit GB/s"),
        ("errors<1ms", "has the unit ms; here it is one of none, %"),
        ("throughput>1", "needs a unit, one of B/s, kB/s"),
        ("p0<1s", "p0 is none of"),
        ("p100.5<1s", "p100.5 is none of"),
        ("median<1s", "median is none of"),
        ("tail.p99<1s", "tail is not timed; request, head"),
        ("range.errors<1%", "errors is none of"),
    ],
)
def test_invalid_objective_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace(".", r"\.")):
        parse_objective(text)


@given(st.sampled_from(("<", "<=", ">", ">=")), st.integers(0, 100), st.integers(0, 100))
def test_objective_compares_as_the_operator_says(comparison: str, bound: int, measured: int) -> None:
    objective = parse_objective(f"requests{comparison}{bound}/s")
    naive = {"<": measured < bound, ">": measured > bound}.get(comparison[:1], False)
    assert objective.is_met_by(measured) == (naive or (measured == bound and "=" in comparison))
    assert not objective.is_met_by(None)


@pytest.mark.parametrize(
    ("text", "byte_count", "requests"),
    [
        ("10KiB/s", 10240, None),
        ("1.5 MB/s", 1.5e6, None),
        ("20/s", None, 20),
        ("0/s", None, None),
        ("20", None, None),
        ("fast", None, None),
        ("1ms", None, None),
    ],
)
def test_rates_are_of_bytes_or_of_requests(
    text: str, byte_count: float | None, requests: float | None
) -> None:
    assert parse_rate(text, Dimension.BYTES_PER_SECOND) == byte_count
    assert parse_rate(text, Dimension.PER_SECOND) == requests


@pytest.mark.parametrize(
    ("value", "dimension", "text"),
    [
        (0.0221, Dimension.SECONDS, "22.1 ms"),
        (0, Dimension.SECONDS, "0 us"),
        (0.000004, Dimension.SECONDS, "4 us"),
        (75, Dimension.SECONDS, "75 s"),
        (0.00123, Dimension.SHARE, "0.123 %"),
        (1.25e9, Dimension.BYTES_PER_SECOND, "1.25 GB/s"),
        (12, Dimension.BYTES_PER_SECOND, "12 B/s"),
        (1234.5, Dimension.PER_SECOND, "1,234/s"),
    ],
)
def test_value_is_formatted_in_a_readable_unit(value: float, dimension: Dimension, text: str) -> None:
    assert format_value(value, dimension) == text


@given(st.floats(1e-6, 1e5))
def test_formatted_value_can_be_parsed_again(seconds: float) -> None:
    objective = parse_objective(f"p99<{format_value(seconds, Dimension.SECONDS).replace(',', '')}")
    assert objective.bound == pytest.approx(seconds, rel=0.006)
