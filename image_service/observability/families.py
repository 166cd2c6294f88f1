"""Families of metrics: plain numbers while requests run, samples when Prometheus asks.

The client library's own counters take a lock at each step, and that of a histogram several: for one request
that would be a tenth of what a small range costs. All that happens here happens in the reactor's thread.

Labels take the values that are declared for them and no others; what is none of them is counted as ``other``.
So the number of series is bounded whatever clients send, and nothing that they send is shown.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left
from collections import Counter
from itertools import accumulate, product
from typing import TYPE_CHECKING, ClassVar

import attrs
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from prometheus_client import Metric

PREFIX = "assisted_image_service_"
OTHER = "other"


class Family(Collector):
    """One metric: a name, a meaning, and the values that each of its labels may have.

    Args:
        name: without ``PREFIX``.
        meaning: one line of Markdown.
        labels: by name, in their order.
    """

    kind: ClassVar[str]
    others: ClassVar[tuple[str, ...]] = (OTHER,)
    """Values of labels beside those that are declared."""

    def __init__(self, name: str, meaning: str, **labels: Sequence[str]) -> None:
        self.name = PREFIX + name
        self.meaning = meaning
        self.labels = labels
        self._declared = tuple(map(frozenset, labels.values()))

    def known(self, values: tuple[str, ...]) -> tuple[str, ...]:
        """Give label values with ``OTHER`` in the place of those that are not declared."""
        pairs = zip(values, self._declared, strict=True)
        return tuple(value if value in declared else OTHER for value, declared in pairs)

    @abstractmethod
    def collect(self) -> Iterable[Metric]:
        """Give the samples of this moment."""


class Counters(Family):
    """Counts what happens. A series is there from the start: one that begins at 1 has no rate."""

    kind = "counter"

    def __init__(self, name: str, meaning: str, **labels: Sequence[str]) -> None:
        super().__init__(name, meaning, **labels)
        self._counts: dict[tuple[str, ...], int] = dict.fromkeys(product(*labels.values()), 0)

    def add(self, *values: str, amount: int = 1) -> None:
        """Count something.

        Args:
            values: of the labels, in their order.
            amount: how much of it.
        """
        if values not in self._counts:
            values = self.known(values)
            self._counts.setdefault(values, 0)
        self._counts[values] += amount

    def collect(self) -> Iterable[Metric]:
        """Give all counts."""
        family = CounterMetricFamily(self.name, self.meaning, labels=tuple(self.labels))
        for values, count in self._counts.items():
            family.add_metric(values, count)
        yield family


@attrs.define
class SentBytes:
    """Bytes that the kernel took. Whoever sends adds to them: a call for each piece would cost too much."""

    sendfile: int = 0
    copy: int = 0
    tls: int = 0


class SentBytesCounter(Family):
    """Shows what was sent, by the way it went."""

    kind = "counter"
    others = ()

    def __init__(self, name: str, meaning: str) -> None:
        self.bytes = SentBytes()
        super().__init__(name, meaning, path=tuple(attrs.asdict(self.bytes)))

    def collect(self) -> Iterable[Metric]:
        """Give all counts."""
        family = CounterMetricFamily(self.name, self.meaning, labels=tuple(self.labels))
        for path, count in attrs.asdict(self.bytes).items():
            family.add_metric((path,), count)
        yield family


class Gauge(Family):
    """A number that somebody else keeps: read when Prometheus asks, absent until there is a reader."""

    kind = "gauge"
    read: Callable[[], float] | None = None

    def collect(self) -> Iterable[Metric]:
        """Read it."""
        family = GaugeMetricFamily(self.name, self.meaning, labels=())
        if self.read is not None:
            family.add_metric((), self.read())
        yield family


class StateGauge(Family):
    """How many things are in each state: counted when Prometheus asks, absent until there is a reader.

    The last label is the state; one before it has one value.
    """

    kind = "gauge"
    read: Callable[[], Iterable[str]] | None = None
    """Gives the state of each thing."""

    def collect(self) -> Iterable[Metric]:
        """Count the things."""
        family = GaugeMetricFamily(self.name, self.meaning, labels=tuple(self.labels))
        if self.read is not None:
            *same, declared = self.labels.values()
            shared = tuple(value for values in same for value in values)
            census = Counter(state if state in declared else OTHER for state in self.read())
            for state in (*declared, OTHER):
                family.add_metric((*shared, state), census[state])
        yield family


class Histogram:
    """One series of a histogram.

    Args:
        bounds: of the buckets, each inclusive, ascending.
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum: float = 0

    def observe(self, value: float) -> None:
        """Count a value into its bucket."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """Give each bucket's bound, as Go writes it, and what is at or below it."""
        names = (*(f"{bound:g}" for bound in self._bounds), "+Inf")
        return list(zip(names, accumulate(self._counts), strict=True))

    @property
    def sum(self) -> float:
        """All values together."""
        return self._sum


class Histograms(Family):
    """Distributions, each from its first value on.

    Args:
        name: as ``Family``'s.
        meaning: as ``Family``'s.
        bounds: of the buckets.
        labels: as ``Family``'s.
    """

    kind = "histogram"

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], **labels: Sequence[str]) -> None:
        super().__init__(name, meaning, **labels)
        self.bounds = bounds
        self._series: dict[tuple[str, ...], Histogram] = {}

    def series(self, *values: str) -> Histogram:
        """Give the one of these label values, which stays the same: it may be kept.

        Args:
            values: of the labels, in their order.

        Returns:
            where values are observed.
        """
        found = self._series.get(values)
        if found is None:
            found = self._series.setdefault(self.known(values), Histogram(self.bounds))
        return found

    def collect(self) -> Iterable[Metric]:
        """Give all distributions."""
        family = HistogramMetricFamily(self.name, self.meaning, labels=tuple(self.labels))
        for values, series in self._series.items():
            family.add_metric(values, series.buckets(), series.sum)
        yield family
