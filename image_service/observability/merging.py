"""The metrics of several processes as one page: what each has counted is sent as JSON, and added up."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import attrs
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Metric, generate_latest
from prometheus_client.registry import Collector

from image_service.observability.families import PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Exported: TypeAlias = Sequence[tuple[str, str, str, Sequence[tuple[str, dict[str, str], float]]]]
    """Of each metric its name, meaning and kind, and of each of its samples name, labels and value."""

ONCE = frozenset(
    {f"{PREFIX}slots_limit", f"{PREFIX}base_images", f"{PREFIX}build", "process_start_time_seconds"}
)
"""What all processes tell alike: it is shown as the first one tells it, and not added up."""
LASTING = frozenset({"counter", "histogram"})
"""Kinds that outlive the process that has counted: they must not go back."""


def export(metrics: Iterable[Metric]) -> Exported:
    """Give what can be sent to another process.

    Args:
        metrics: as a collector gives them.

    Returns:
        what JSON can hold.
    """
    return [
        (
            metric.name,
            metric.documentation,
            metric.type,
            [(sample.name, dict(sample.labels), sample.value) for sample in metric.samples],
        )
        for metric in metrics
    ]


def lasting(exported: Exported) -> Exported:
    """Give what stays of a process that is gone, or says nothing: its counts."""
    return [metric for metric in exported if metric[2] in LASTING]


def add_up(processes: Iterable[Exported]) -> Exported:
    """Make one process of several.

    Args:
        processes: what each has counted; the first counts where all tell alike.
    """
    sums = _Sums()
    for exported in processes:
        sums.add(exported)
    return export(sums.collect())


def render(exported: Exported) -> tuple[bytes, str]:
    """Make the page.

    Args:
        exported: of all processes.

    Returns:
        its bytes and their media type.
    """
    registry, sums = CollectorRegistry(), _Sums()
    sums.add(exported)
    registry.register(sums)
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4


@attrs.frozen
class _Sum:
    """One metric, and its values by the samples' names and labels."""

    name: str
    meaning: str
    kind: str
    values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = attrs.field(factory=dict)


class _Sums(Collector):
    """All metrics, added up."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def add(self, exported: Exported) -> None:
        for name, meaning, kind, samples in exported:
            values = self._sums.setdefault(name, _Sum(name, meaning, kind)).values
            if values and name in ONCE:
                continue
            for sample, labels, value in samples:
                key = sample, tuple(labels.items())
                values[key] = values.get(key, 0) + value

    def collect(self) -> Iterator[Metric]:
        for each in self._sums.values():
            metric = Metric(each.name, each.meaning, each.kind)
            for (sample, labels), value in each.values.items():
                metric.add_sample(sample, dict(labels), value)
            yield metric
