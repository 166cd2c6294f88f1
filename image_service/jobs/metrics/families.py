"""Metric families whose labels have the values that occur, such as tenants."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PREFIX = "image_builder_"


class EventCounts(Collector):
    """Counts events.

    Its type is `untyped`: the client library would append ``_total`` to the names of counters, and dashboards
    of osbuild-composer use the names without it.

    Args:
        name: without `PREFIX`.
        description: one line.
        labels: names; without any, the count is shown from the start.
    """

    def __init__(self, name: str, description: str, *labels: str) -> None:
        self.name = PREFIX + name
        self.description = description
        self.labels = labels
        self._counts: Counter[tuple[str, ...]] = Counter()
        if not labels:
            self._counts[()] = 0

    def increment(self, *values: str) -> None:
        """Count an event by its label values."""
        self._counts[values] += 1

    def collect(self) -> Iterator[Metric]:
        """Yield all counts."""
        yield _family(self.name, self.description, "unknown", self.labels, self._counts)


class ReadGauges(Collector):
    """Shows numbers that were read elsewhere; none before the first time.

    Args:
        name: without `PREFIX`.
        description: one line.
    """

    def __init__(self, name: str, description: str, *labels: str) -> None:
        self.name = PREFIX + name
        self.description = description
        self.labels = labels
        self.values: Mapping[tuple[str, ...], float] = {}

    def collect(self) -> Iterator[Metric]:
        """Yield the latest numbers."""
        yield _family(self.name, self.description, "gauge", self.labels, self.values)


def _family(
    name: str, description: str, kind: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], float]
) -> Metric:
    family = Metric(name, description, kind)
    for labelled, value in values.items():
        family.add_sample(name, dict(zip(labels, map(str, labelled), strict=True)), value)
    return family
