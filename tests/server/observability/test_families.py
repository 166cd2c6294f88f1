"""Counting: each family against the naive way to count, and never more series than declared."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from image_service.server.observability.families import (
    OTHER,
    PREFIX,
    Counters,
    Family,
    Gauge,
    GaugeByLabel,
    Histograms,
    StateGauge,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

COLORS = ("red", "green")
SHAPES = ("round", "square")
BOUNDS = (0.1, 1, 10)

colors = st.sampled_from(COLORS) | st.text()
shapes = st.sampled_from(SHAPES) | st.text()
values = st.floats(0, 100) | st.sampled_from(BOUNDS)


def samples(family: Family) -> dict[tuple[str, ...], float]:
    """Give values by suffix of the name and label values."""
    return {
        (sample.name.removeprefix(family.name), *sample.labels.values()): sample.value
        for metric in family.collect()
        for sample in metric.samples
    }


def folded(value: str, declared: Sequence[str]) -> str:
    return value if value in declared else OTHER


@given(st.lists(st.tuples(colors, shapes, st.integers(1, 9))))
def test_counters_count_by_label_values(events: list[tuple[str, str, int]]) -> None:
    counters = Counters("things_total", "Things.", color=COLORS, shape=SHAPES)
    expected = Counter({("", *key): 0 for key in product(COLORS, SHAPES)})
    for color, shape, amount in events:
        for _ in range(amount):
            counters.increment(color, shape)
        expected["", folded(color, COLORS), folded(shape, SHAPES)] += amount
    assert samples(counters) == expected


def test_counter_without_labels_starts_at_zero() -> None:
    counter = Counters("things_total", "Things.")
    assert samples(counter) == {("",): 0}
    counter.increment()
    assert samples(counter) == {("",): 1}


@given(st.lists(st.tuples(colors, values)))
def test_histogram_buckets_include_their_bound(events: list[tuple[str, float]]) -> None:
    histograms = Histograms("things_seconds", "Things.", BOUNDS, color=COLORS)
    for color, value in events:
        histograms.series(color).observe(value)
    assert histograms.count() == len(events), "also of values that no bucket has yet"
    found = samples(histograms)
    assert {key[1] for key in found} == {folded(color, COLORS) for color, _ in events}
    for color in {key[1] for key in found}:
        seen = [value for other, value in events if folded(other, COLORS) == color]
        for bound, name in zip((*BOUNDS, float("inf")), ("0.1", "1", "10", "+Inf"), strict=True):
            assert found["_bucket", color, name] == sum(value <= bound for value in seen)
        assert found["_count", color] == len(seen)
        assert abs(found["_sum", color] - sum(seen)) < 1e-6


@given(st.lists(colors))
def test_state_gauge_counts_every_state_zeros_included(states: list[str]) -> None:
    gauge = StateGauge("things", "Things.", service=("",), color=COLORS)
    assert samples(gauge) == {}, "there is no reader"
    gauge.read = lambda: states
    expected = Counter(folded(state, COLORS) for state in states)
    assert samples(gauge) == {("", "", color): expected[color] for color in (*COLORS, OTHER)}


def test_gauge_is_read_each_time() -> None:
    gauge = Gauge("things", "Things.")
    assert samples(gauge) == {}, "there is no reader"
    numbers = iter((1.0, None, 0.0))
    gauge.read = lambda: next(numbers)
    assert [samples(gauge) for _ in range(3)] == [{("",): 1.0}, {}, {("",): 0.0}]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_number_of_series_is_bounded_by_the_declared_values(labels: list[tuple[str, str]]) -> None:
    counters = Counters("things_total", "Things.", color=COLORS, shape=SHAPES)
    histograms = Histograms("things_seconds", "Things.", BOUNDS, color=COLORS, shape=SHAPES)
    for pair in labels:
        counters.increment(*pair)
        histograms.series(*pair).observe(1)
    declared = set(product((*COLORS, OTHER), (*SHAPES, OTHER)))
    assert {key[1:] for key in samples(counters)} <= declared
    assert {key[1:3] for key in samples(histograms)} <= declared


def test_series_of_equal_labels_is_always_the_same_object() -> None:
    histograms = Histograms("things_seconds", "Things.", BOUNDS, color=COLORS)
    kept = histograms.series("red")
    assert histograms.series("red") is kept
    assert histograms.series("blue") is histograms.series("pink")


def test_names_have_the_prefix() -> None:
    assert Gauge("things", "Things.").name == f"{PREFIX}things"


def test_gauge_by_label_is_read_when_it_is_collected() -> None:
    numbers = {"a": 1.0}
    gauge = GaugeByLabel("some_bytes", "Bytes.", part=("a", "b"))
    (family,) = gauge.collect()
    assert family.samples == []
    gauge.read = lambda: numbers
    numbers["b"] = 2.0
    (family,) = gauge.collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"part": "a"}, 1.0),
        ({"part": "b"}, 2.0),
    ]
