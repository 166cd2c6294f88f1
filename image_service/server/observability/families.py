"""Metric families: plain numbers while requests run, samples when Prometheus asks.

The client library's own counters take a lock at each step, and its histograms several: that would be a tenth
of the cost of a small range. Everything here is called in the reactor's thread.

Labels have the declared values and no others; any other value is counted as `other`. The number of series is
therefore bounded, and nothing that clients send is shown.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_right
from collections import Counter
from itertools import accumulate, product
from typing import TYPE_CHECKING, ClassVar

import attrs
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from image_service.server.transport.sending.observer import SentBytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prometheus_client import Metric

PREFIX = "assisted_image_service_"
_COUNTED_TOGETHER = 256  # values of a histogram
OTHER = "other"


class Family(Collector):
    """One metric: its name, its description, and the values of each of its labels.

    Args:
        name: without `PREFIX`.
        description: one line of Markdown.
        labels: values by name, in their order.
    """

    kind: ClassVar[str]
    fallback: ClassVar[tuple[str, ...]] = (OTHER,)
    """Label values beside the declared ones."""

    def __init__(self, name: str, description: str, **labels: Sequence[str]) -> None:
        self.name = PREFIX + name
        self.description = description
        self.labels = labels
        self._declared = tuple(map(frozenset, labels.values()))

    def fold(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Return label values with `OTHER` in place of undeclared ones."""
        pairs = zip(values, self._declared, strict=True)
        return tuple(value if value in declared else OTHER for value, declared in pairs)

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """Return the current samples."""


class Counters(Family):
    """Counts events. Every series exists from the start: one that starts at 1 has no rate."""

    kind = "counter"

    def __init__(self, name: str, description: str, **labels: Sequence[str]) -> None:
        super().__init__(name, description, **labels)
        self._counts: dict[tuple[str, ...], int] = dict.fromkeys(product(*labels.values()), 0)

    def increment(self, *values: str, by: int = 1) -> None:
        """Count events by their label values, in the order of the labels."""
        if values not in self._counts:
            values = self.fold(values)
            self._counts.setdefault(values, 0)
        self._counts[values] += by

    def collect(self) -> Iterable[Metric]:
        """Return all counts."""
        family = CounterMetricFamily(self.name, self.description, labels=tuple(self.labels))
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


class SentBytesCounter(Family):
    """The bytes sent, by path."""

    kind = "counter"
    fallback = ()

    def __init__(self, name: str, description: str) -> None:
        self.bytes = SentBytes()
        super().__init__(name, description, path=tuple(attrs.asdict(self.bytes)))

    def collect(self) -> Iterable[Metric]:
        """Return all counts."""
        family = CounterMetricFamily(self.name, self.description, labels=tuple(self.labels))
        for path, count in attrs.asdict(self.bytes).items():
            family.add_metric((path,), count)
        yield family


class Gauge(Family):
    """A number that another object keeps: read when Prometheus asks.

    It is absent as long as `read` is None, and while that returns None: the number is not known.
    """

    kind = "gauge"
    read: Callable[[], float | None] | None = None

    def collect(self) -> Iterable[Metric]:
        """Read the gauge's function."""
        family = GaugeMetricFamily(self.name, self.description, labels=())
        value = self.read() if self.read is not None else None
        if value is not None:
            family.add_metric((), value)
        yield family


class GaugeByLabel(Family):
    """A number for each value of one label, or for the values of several.

    It is read when Prometheus asks, and absent as long as `read` is None.
    """

    kind = "gauge"
    fallback = ()
    read: Callable[[], Mapping[str, float] | Mapping[tuple[str, ...], float]] | None = None

    def collect(self) -> Iterable[Metric]:
        """Read the counts from their owner."""
        family = GaugeMetricFamily(self.name, self.description, labels=tuple(self.labels))
        for value, number in (self.read() if self.read else {}).items():
            family.add_metric((value,) if isinstance(value, str) else value, number)
        yield family


class ReadCounters(Family):
    """Counts that another object keeps: read when Prometheus asks, absent as long as `read` is None.

    There is one count, or one for each value of the only label, or for the values of several.
    """

    kind = "counter"
    fallback = ()
    read: Callable[[], Mapping[str, float] | Mapping[tuple[str, ...], float]] | None = None
    """Returns the counts by the values of the labels; without a label, by an empty one."""

    def collect(self) -> Iterable[Metric]:
        """Read the counts from their owner."""
        family = CounterMetricFamily(self.name, self.description, labels=tuple(self.labels))
        for value, number in (self.read() if self.read else {}).items():
            family.add_metric(value if isinstance(value, tuple) else (value,) if self.labels else (), number)
        yield family


class StateGauge(Family):
    """The number of things in each state: counted when Prometheus asks, absent as long as `read` is None.

    The last label is the state; a label before it has one value.
    """

    kind = "gauge"
    read: Callable[[], Iterable[str]] | None = None
    """Returns the state of each thing."""

    def collect(self) -> Iterable[Metric]:
        """Count the things."""
        family = GaugeMetricFamily(self.name, self.description, labels=tuple(self.labels))
        if self.read is not None:
            *constant, declared = self.labels.values()
            shared = tuple(value for values in constant for value in values)
            counts = Counter(state if state in declared else OTHER for state in self.read())
            for state in (*declared, OTHER):
                family.add_metric((*shared, state), counts[state])
        yield family


class HistogramSeries:
    """One series of a histogram.

    Values are counted together, some hundred at a time: to find the bucket of each took twice as long.

    Args:
        bounds: of the buckets, each inclusive, ascending.
    """

    __slots__ = ("_bounds", "_counts", "_sum", "_values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0
        self._values: list[float] = []  # not counted yet

    def observe(self, value: float) -> None:
        """Count a value in its bucket."""
        values = self._values
        values.append(value)
        if len(values) >= _COUNTED_TOGETHER:
            self._count()

    def _count(self) -> None:
        values, counted = self._values, 0
        values.sort()
        for index, bound in enumerate(self._bounds):
            position = bisect_right(values, bound)
            self._counts[index] += position - counted
            counted = position
        self._counts[-1] += len(values) - counted
        self._sum += sum(values)
        values.clear()

    @property
    def sum(self) -> float:
        """The sum of all values."""
        self._count()
        return self._sum

    def count(self) -> int:
        """Return how many values there were."""
        return sum(self._counts) + len(self._values)

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bucket's bound, as Go writes it, and the number of values at or below it."""
        self._count()
        names = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True))


class Histograms(Family):
    """Distributions, each from its first value on; `bounds` are those of the buckets."""

    kind = "histogram"

    def __init__(self, name: str, description: str, bounds: Sequence[float], **labels: Sequence[str]) -> None:
        super().__init__(name, description, **labels)
        self.bounds = bounds
        self._series: dict[tuple[str, ...], HistogramSeries] = {}

    def series(self, *values: str) -> HistogramSeries:
        """Return the series of these label values; always the same object, so callers may keep it."""
        series = self._series.get(values)
        if series is None:
            series = self._series.setdefault(self.fold(values), HistogramSeries(self.bounds))
        return series

    def count(self) -> int:
        """Return how many values there were, in all series."""
        return sum(series.count() for series in self._series.values())

    def collect(self) -> Iterable[Metric]:
        """Return all distributions."""
        family = HistogramMetricFamily(self.name, self.description, labels=tuple(self.labels))
        for values, series in self._series.items():
            family.add_metric(values, series.buckets(), series.sum)
        yield family
