"""The metrics of several processes as one page: each process sends its samples as JSON, for summing."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import attrs
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from image_service.server.observability.families import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Exported: TypeAlias = Sequence[tuple[str, str, str, Sequence[tuple[str, dict[str, str], float]]]]
    """Of each metric its name, description and kind, and of each of its samples name, labels and value."""

SHARED = frozenset(
    {
        f"{PREFIX}slots_limit",
        f"{PREFIX}base_images",
        f"{PREFIX}registry_base_images",
        f"{PREFIX}build",
        "process_start_time_seconds",
    }
)
"""Metrics with one value for all processes: shown as the first process has them, not summed."""
CUMULATIVE = frozenset({"counter", "histogram"})
"""Kinds that outlive their process: they must not decrease."""


def export(metrics: Iterable[Metric]) -> Exported:
    """Return a collector's metrics as JSON values."""
    return [
        (
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in metrics
    ]


def cumulative(exported: Exported) -> Exported:
    """Return the counts of a process that has ended or does not respond, without its states."""
    return [metric for metric in exported if metric[2] in CUMULATIVE]


def add_up(processes: Iterable[Exported]) -> Exported:
    """Return the sums over all processes; the first one provides the `SHARED` metrics."""
    return export(_Sums(processes).collect())


def render(exported: Exported) -> tuple[bytes, str]:
    """Return the page and its media type."""
    registry = CollectorRegistry()
    registry.register(_Sums([exported]))
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


@attrs.frozen
class _Sum:
    """One metric, and its values by the samples' names and labels."""

    name: str
    description: str
    kind: str
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = attrs.field(factory=dict)


class _Sums(Collector):
    def __init__(self, processes: Iterable[Exported]) -> None:
        self._sums: dict[str, _Sum] = {}
        for name, description, kind, samples in chain.from_iterable(processes):
            values = self._sums.setdefault(name, _Sum(name, description, kind)).values
            if values and name in SHARED:
                continue
            for sample, labels, value in samples:
                key = sample, tuple(labels.items())
                values[key] = values.get(key, 0) + value

    def collect(self) -> Iterator[Metric]:
        for each in self._sums.values():
            metric = Metric(each.name, each.description, each.kind)
            for (sample, labels), value in each.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
