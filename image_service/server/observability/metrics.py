"""The metrics: methods by which other packages record, and the page that Prometheus reads.

`python -m image_service.server.observability.metrics` prints `docs/metrics.md`.
"""

from __future__ import annotations

import platform
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Info, generate_latest

from image_service import __version__
from image_service.core.images.layouts import newest_layout
from image_service.server.http.routes import Probe, PublicDocument
from image_service.server.observability.declarations import Declarations
from image_service.server.observability.families import (
    PREFIX,
    Family,
    Gauge,
    GaugeByLabel,
    Histograms,
    ReadCounters,
    StateGauge,
)
from image_service.server.observability.process import ProcessMetrics
from image_service.server.snapshots.storage.snapshot import REVALIDATION_RESULTS, SnapshotEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import Metric

    from image_service.server.observability.families import HistogramSeries
    from image_service.server.snapshots.replicas.observer import ClaimOutcome, Direction
    from image_service.server.transport.sending.observer import (
        AbortReason,
        HandshakeFailure,
        RefusalReason,
        SentBytes,
    )

F = TypeVar("F", bound=Family)

PROBES = frozenset(route.value for route in (*Probe, *PublicDocument))
"""Handlers that are not measured, as in assisted-image-service: sums are of images."""


class Metrics:
    """All metrics of the process. Recording happens in the reactor's thread."""

    def __init__(self) -> None:
        self._all = Declarations()
        self._requests: dict[tuple[str, str, int], tuple[HistogramSeries, HistogramSeries]] = {}
        self._snapshot_events: dict[SnapshotEvent, Callable[[], None]] = {
            SnapshotEvent.HIT: self._all.hits.increment,
            SnapshotEvent.MISS: self._all.misses.increment,
            SnapshotEvent.GRACE: self._all.grace.increment,
            SnapshotEvent.EVICTION: self._all.evictions.increment,
            **{
                result: partial(self._all.revalidations.increment, result.value)
                for result in REVALIDATION_RESULTS
            },
        }
        self._registry = _registry(self._all)

    # Events. The first group is the transport's `Observer`, which documents it.

    @property
    def sent(self) -> SentBytes:
        """Counters of the bytes that the kernel accepted; senders add to them."""
        return self._all.sent.bytes

    def count_requests(self) -> int:
        """Return how many requests have ended."""
        return self._all.sizes.count()

    def record_first_byte(self, handler: str, seconds: float) -> None:
        """Record that a response starts."""
        if handler not in PROBES:
            self._all.first_bytes.series(handler).observe(seconds)

    def record_request(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """Record a finished request."""
        if handler in PROBES:
            return
        series = self._requests.get((handler, method, status))
        durations, sizes = series or self._request_series(handler, method, status)
        durations.observe(seconds)
        sizes.observe(body_bytes)

    def _request_series(
        self, handler: str, method: str, status: int
    ) -> tuple[HistogramSeries, HistogramSeries]:
        requested = ("", handler, method, str(status))
        values = self._all.durations.fold(requested)
        series = self._all.durations.series(*values), self._all.sizes.series(*values)
        if values == requested:  # else clients would decide how much is kept
            self._requests[handler, method, status] = series
        return series

    def get_recorder(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """Return a function that records one of many equal requests."""
        first_bytes = self._all.first_bytes.series(handler)
        durations, sizes = self._request_series(handler, method, status)

        def record(seconds: float, body_bytes: int) -> None:
            first_bytes.observe(seconds)
            durations.observe(seconds)
            sizes.observe(body_bytes)

        return record

    def record_abort(self, reason: AbortReason) -> None:
        """Record a response that was not sent to its end."""
        self._all.aborted.increment(reason.value)

    def record_refusal(self, reason: RefusalReason) -> None:
        """Record a request or a connection that was refused for our own load."""
        self._all.refused.increment(reason.value)

    def record_handshake_failure(self, reason: HandshakeFailure) -> None:
        """Record a TLS handshake that failed."""
        self._all.handshake_failures.increment(reason.value)

    def record_upstream_call(self, kind: str, outcome: str, seconds: float) -> None:
        """Record a finished call to assisted-service, by the values of a `CallKind` and a `CallOutcome`."""
        self._all.upstream.increment(kind, outcome)
        self._all.upstream_seconds.series(kind).observe(seconds)

    def record_snapshot_event(self, event: SnapshotEvent) -> None:
        """Record an event of a snapshot."""
        self._snapshot_events[event]()

    # The next group is the `ReplicaObserver` of replicas.

    def record_claim(self, outcome: ClaimOutcome, seconds: float) -> None:
        """Record an attempt to claim a key."""
        self._all.claims.increment(outcome.value)
        self._all.claim_seconds.series().observe(seconds)

    def record_changes(self, direction: Direction, number: int) -> None:
        """Record changes that were sent to, or received from, other replicas."""
        self._all.claim_changes.increment(direction.value, by=number)

    def watch_notifications(self, is_notified: Callable[[], bool]) -> None:
        """Show whether this process is notified of changes."""
        self._all.claims_polling.read = lambda: not is_notified()

    def record_process_restart(self) -> None:
        """Record that a serving process was started in place of one that died."""
        self._all.worker_restarts.increment()

    # States.

    def read_gauge(self, name: str, read: Callable[[], float | None]) -> None:
        """Read a gauge by a function from now on.

        Args:
            name: of a gauge without labels, without the prefix.
            read: returns the number, None if it is not known; called whenever the page is rendered.

        Raises:
            KeyError: there is no such gauge.
        """
        self._find(name, Gauge).read = read

    def read_gauges(
        self, name: str, read: Callable[[], Mapping[str, float] | Mapping[tuple[str, ...], float]]
    ) -> None:
        """Read a gauge with labels by a function from now on.

        Args:
            name: without the prefix.
            read: returns the number for each value of the label, or for the values of several; called
                whenever the page is rendered.

        Raises:
            KeyError: there is no such gauge.
        """
        self._find(name, GaugeByLabel).read = read

    def read_counts(
        self, name: str, read: Callable[[], Mapping[str, float] | Mapping[tuple[str, ...], float]]
    ) -> None:
        """Read counts that another object keeps by a function from now on.

        Args:
            name: without the prefix.
            read: returns the count for each value of the label, or for the values of several, or for an
                empty one if there is no label; called whenever the page is rendered.

        Raises:
            KeyError: there is no such counter.
        """
        self._find(name, ReadCounters).read = read

    def count_states(self, name: str, read: Callable[[], Iterable[str]]) -> None:
        """Count things by state from now on.

        Args:
            name: of a state gauge, without the prefix.
            read: returns the state of each thing; called whenever the page is rendered.

        Raises:
            KeyError: there is no such gauge.
        """
        self._find(name, StateGauge).read = read

    def _find(self, name: str, kind: type[F]) -> F:
        return {family.name: family for family in self._all if isinstance(family, kind)}[PREFIX + name]

    # The page.

    def collect(self) -> Iterable[Metric]:
        """Return the current samples."""
        return self._registry.collect()

    def render(self) -> tuple[bytes, str]:
        """Return the page and its media type.

        Only in the text format, as assisted-image-service does: Prometheus prefers OpenMetrics where it is
        offered, in which the bound `le="1"` that dashboards may name is `le="1.0"`.
        """
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


def _registry(families: Iterable[Family]) -> CollectorRegistry:
    registry = CollectorRegistry()
    for family in families:
        registry.register(family)
    ProcessMetrics(registry=registry)
    build = Info(f"{PREFIX}build", "The running version.", registry=registry)
    python = platform.python_version()
    # The label is called composer: operators' queries, alerts and dashboards have that name.
    build.info({"version": __version__, "composer": str(newest_layout().version), "python": python})
    return registry


def documentation() -> str:
    """Return the reference of all metrics, as Markdown."""
    sections = [_INTRODUCTION]
    for family in Declarations():
        sections.append(f"## `{family.name}`")
        sections.append(_filled(f"{family.kind.capitalize()}. {family.description}"))
        sections += [_filled(line) for line in _details(family)]
    return "\n\n".join([*sections, _CLOSING]) + "\n"


def _details(family: Family) -> Iterator[str]:
    for label, values in family.labels.items():
        if label == "service":
            yield "Label `service`: empty."
        elif label == "code":
            yield "Label `code`: the status."
        elif label == "stream":
            yield "Label `stream`: the names in `COREOS_STREAMS`."
        elif label in _OF_REGISTRIES:
            yield f"Label `{label}`: {_OF_REGISTRIES[label]}."
        else:
            yield f"Label `{label}`: {', '.join(f'`{value}`' for value in (*values, *family.fallback))}."
    if isinstance(family, Histograms):
        yield f"Buckets: {', '.join(f'{bound:g}' for bound in family.bounds)}."


def _filled(text: str) -> str:
    return textwrap.fill(text, 110, break_on_hyphens=False, break_long_words=False)


_OF_REGISTRIES = {
    "registry": "host and port of a registry or mirror",
    "repository": "a repository in it",
    "digest": "of the layer that is read, or of the URL; empty: the URL has a tag",
}

_INTRODUCTION = f"""# Metrics

`/metrics` shows, in Prometheus's text format, the metrics below and those of its client library for any
process (`process_open_fds`, `process_max_fds`, `process_resident_memory_bytes`, `process_cpu_seconds_total`,
…). `{PREFIX}http_request_duration_seconds`, `…_response_size_bytes` and `…_requests_inflight`
are those of assisted-image-service, with its names, labels and buckets.

With `ADMIN_LISTEN` it is on that listener alone. A job of Prometheus for one that is not on loopback:

```yaml
scrape_configs:
  - job_name: image-service
    scheme: https
    authorization:
      credentials_file: /etc/prometheus/image-service.token
    static_configs:
      - targets: ["images.example.com:8081"]
```

The file has the token of `ADMIN_TOKEN_FILE`.

Labels have the listed values and no others, whatever clients send. No credential is among them, and no
identifier or address but those of registries.

[conf/prometheus-rules.yaml](../conf/prometheus-rules.yaml) has rules for alerts, which [alerts.md](alerts.md)
explains. On Kubernetes its `groups`
are the `spec` of a `PrometheusRule`. [conf/grafana-dashboard.json](../conf/grafana-dashboard.json) shows the
objectives of [slo.md](slo.md). [jobs-operation.md](jobs-operation.md#metrics) has the metrics of the jobs
role.

This page is generated from `image_service/server/observability/declarations.py`: `make docs`."""

_CLOSING = f"""## `{PREFIX}build_info`

Gauge, always 1. Labels `version`, `python`, and `composer`, the byte layout: replicas with the same one make
the same bytes from the same inputs."""


if __name__ == "__main__":
    sys.stdout.write(documentation())
