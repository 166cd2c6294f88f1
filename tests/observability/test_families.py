"""Counting: each family against the naive way to count, and never more series than declared."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from image_service.observability.families import (
    OTHER,
    PREFIX,
    Counters,
    Family,
    Gauge,
    Histograms,
    StateGauge,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS = ("red", "green")
SHAPES = ("round", "square")
BOUNDS = (0.1, 1, 10)

colours = st.sampled_from(COLOURS) | st.text()
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


@given(st.lists(st.tuples(colours, shapes, st.integers(0, 2**40))))
def test_counters_count(events: list[tuple[str, str, int]]) -> None:
    counters = Counters("things_total", "Things.", colour=COLOURS, shape=SHAPES)
    expected = Counter({("", *key): 0 for key in product(COLOURS, SHAPES)})
    for colour, shape, amount in events:
        counters.add(colour, shape, amount=amount)
        expected["", folded(colour, COLOURS), folded(shape, SHAPES)] += amount
    assert samples(counters) == expected


def test_a_counter_without_labels_is_there_from_the_start() -> None:
    counter = Counters("things_total", "Things.")
    assert samples(counter) == {("",): 0}
    counter.add()
    assert samples(counter) == {("",): 1}


@given(st.lists(st.tuples(colours, values)))
def test_histograms_count_what_is_at_or_below_each_bound(events: list[tuple[str, float]]) -> None:
    histograms = Histograms("things_seconds", "Things.", BOUNDS, colour=COLOURS)
    for colour, value in events:
        histograms.series(colour).observe(value)
    found = samples(histograms)
    assert {key[1] for key in found} == {folded(colour, COLOURS) for colour, _ in events}
    for colour in {key[1] for key in found}:
        seen = [value for other, value in events if folded(other, COLOURS) == colour]
        for bound, name in zip((*BOUNDS, float("inf")), ("0.1", "1", "10", "+Inf"), strict=True):
            assert found["_bucket", colour, name] == sum(value <= bound for value in seen)
        assert found["_count", colour] == len(seen)
        assert abs(found["_sum", colour] - sum(seen)) < 1e-6


@given(st.lists(colours))
def test_a_census_counts_each_state_even_where_nobody_is(states: list[str]) -> None:
    census = StateGauge("things", "Things.", service=("",), colour=COLOURS)
    assert samples(census) == {}, "nobody was asked"
    census.read = lambda: states
    expected = Counter(folded(state, COLOURS) for state in states)
    assert samples(census) == {("", "", colour): expected[colour] for colour in (*COLOURS, OTHER)}


def test_a_gauge_is_read_each_time() -> None:
    gauge = Gauge("things", "Things.")
    assert samples(gauge) == {}, "nobody was asked"
    numbers = iter((1.0, 2.5))
    gauge.read = lambda: next(numbers)
    assert [samples(gauge), samples(gauge)] == [{("",): 1.0}, {("",): 2.5}]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1))
def test_series_are_no_more_than_declared(labels: list[tuple[str, str]]) -> None:
    counters = Counters("things_total", "Things.", colour=COLOURS, shape=SHAPES)
    histograms = Histograms("things_seconds", "Things.", BOUNDS, colour=COLOURS, shape=SHAPES)
    for pair in labels:
        counters.add(*pair)
        histograms.series(*pair).observe(1)
    declared = set(product((*COLOURS, OTHER), (*SHAPES, OTHER)))
    assert {key[1:] for key in samples(counters)} <= declared
    assert {key[1:3] for key in samples(histograms)} <= declared


def test_a_series_may_be_kept() -> None:
    histograms = Histograms("things_seconds", "Things.", BOUNDS, colour=COLOURS)
    kept = histograms.series("red")
    assert histograms.series("red") is kept
    assert histograms.series("blue") is histograms.series("pink")


def test_names_have_the_prefix() -> None:
    assert Gauge("things", "Things.").name == f"{PREFIX}things"
