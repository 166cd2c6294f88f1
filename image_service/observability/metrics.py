"""The metrics: what other rooms tell of, and the page that Prometheus reads.

Each room declares a protocol with the methods that it calls, or takes them one by one. ``python -m
image_service.observability.metrics`` prints ``docs/metrics.md``.
"""

from __future__ import annotations

import platform
import sys
import textwrap
from contextlib import suppress
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, TypeVar

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Info, generate_latest

from image_service.images.validators import COMPOSER_VERSION
from image_service.observability.declarations import REVALIDATION_RESULTS, Declarations
from image_service.observability.families import PREFIX, Family, Gauge, Histogram, Histograms, StateGauge
from image_service.observability.process import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client import Metric

    from image_service.observability.families import SentBytes

F = TypeVar("F", bound=Family)

PROBES = frozenset({"/health", "/live", "/metrics", "/images"})
"""Handlers that are not measured, nor are they by assisted-image-service: sums are of images."""


class Metrics:
    """All metrics of the process. Everything is told in the reactor's thread, and costs next to nothing.

    A word that a metric does not know is counted as ``other``, unless another is said below.
    """

    def __init__(self) -> None:
        self._all = Declarations()
        self._requests: dict[tuple[str, str, int], tuple[Histogram, Histogram]] = {}
        revalidated = self._all.revalidations.add
        self._snapshot_events: dict[str, Callable[[], None]] = {
            "hit": self._all.hits.add,
            "miss": self._all.misses.add,
            "grace": self._all.grace.add,
            "eviction": self._all.evictions.add,
            **{result: partial(revalidated, result) for result in REVALIDATION_RESULTS},
        }
        self._registry = _registry(self._all)

    # What happens.

    def answer_began(self, handler: str, seconds: float) -> None:
        """The first byte of an answer is on its way.

        Args:
            handler: the route's name; empty: none.
            seconds: since the request's head had arrived.
        """
        if handler not in PROBES:
            self._all.first_bytes.series(handler).observe(seconds)

    def request_ended(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """A request is over, however it went.

        Args:
            handler: the route's name; empty: none.
            method: as sent.
            status: of the answer; 0: there was none.
            seconds: since its head had arrived.
            body_bytes: bytes of content that the transport took.
        """
        if handler in PROBES:
            return
        series = self._requests.get((handler, method, status))
        durations, sizes = series or self._request_series(handler, method, status)
        durations.observe(seconds)
        sizes.observe(body_bytes)

    def _request_series(self, handler: str, method: str, status: int) -> tuple[Histogram, Histogram]:
        told = ("", handler, method, str(status))
        values = self._all.durations.known(told)
        series = self._all.durations.series(*values), self._all.sizes.series(*values)
        if values == told:  # else clients would decide how much is kept
            self._requests[handler, method, status] = series
        return series

    def counter(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """Give what counts requests that are alike, and whose answers begin and end at once.

        Args:
            handler: the route's name, of images.
            method: as sent.
            status: of the answers.

        Returns:
            to be called with the seconds since the request's head had arrived, and the bytes of content.
        """
        first_bytes = self._all.first_bytes.series(handler)
        durations, sizes = self._request_series(handler, method, status)

        def count(seconds: float, body_bytes: int) -> None:
            first_bytes.observe(seconds)
            durations.observe(seconds)
            sizes.observe(body_bytes)

        return count

    @property
    def sent(self) -> SentBytes:
        """What the kernel took, for senders to add to."""
        return self._all.sent.bytes

    def aborted(self, reason: str) -> None:
        """An answer did not come to its end.

        Args:
            reason: one of ``ABORT_REASONS``.
        """
        self._all.aborted.add(reason)

    def refused(self, reason: str) -> None:
        """A request was refused because of our own load.

        Args:
            reason: one of ``REFUSAL_REASONS``.
        """
        self._all.refused.add(reason)

    def upstream(self, kind: str, outcome: str, seconds: float) -> None:
        """A call to assisted-service has ended.

        Args:
            kind: what was asked for, one of ``UPSTREAM_KINDS``.
            outcome: one of ``UPSTREAM_OUTCOMES``.
            seconds: what it took.
        """
        self._all.upstream.add(kind, outcome)
        self._all.upstream_seconds.series(kind).observe(seconds)

    def snapshot(self, event: str) -> None:
        """Something happened to a snapshot.

        Args:
            event: ``hit``, ``miss``, ``grace`` (a request was served in it), ``eviction``, or one of
                ``REVALIDATION_RESULTS``.

        Raises:
            KeyError: there is no such event.
        """
        self._snapshot_events[event]()

    def worker_restarted(self) -> None:
        """A worker took the place of one that died."""
        self._all.worker_restarts.add()

    # What is.

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Say who knows a number.

        Args:
            name: of a gauge without labels, without the prefix.
            read: gives it; called whenever the page is made.

        Raises:
            KeyError: there is no such gauge.
        """
        self._named(name, Gauge).read = read

    def watch_each(self, name: str, read: Callable[[], Iterable[str]]) -> None:
        """Say who knows the things that are counted by state.

        Args:
            name: ``base_images`` or ``http_requests_inflight``.
            read: gives the state, or the handler, of each thing; called whenever the page is made.

        Raises:
            KeyError: there is no such gauge.
        """
        self._named(name, StateGauge).read = read

    def _named(self, name: str, kind: type[F]) -> F:
        found = {family.name: family for family in self._all if isinstance(family, kind)}
        return found[PREFIX + name]

    # The page.

    def collect(self) -> Iterable[Metric]:
        """Give the samples of this moment."""
        return self._registry.collect()

    def render(self) -> tuple[bytes, str]:
        """Make the page.

        Only in the text format, as assisted-image-service does: Prometheus takes OpenMetrics first where it
        is offered, and in it the bound ``le="1"`` that dashboards may name is ``le="1.0"``.

        Returns:
            its bytes and their media type.
        """
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


def _registry(families: Iterable[Family]) -> CollectorRegistry:
    registry = CollectorRegistry()
    for family in families:
        registry.register(family)
    Process(registry=registry)
    build = Info(f"{PREFIX}build", "What runs here.", registry=registry)
    python = platform.python_version()
    build.info({"version": _version(), "composer": str(COMPOSER_VERSION), "python": python})
    return registry


def _version() -> str:
    with suppress(metadata.PackageNotFoundError):  # a checkout that nobody installed
        return metadata.version("image-service")
    return "unknown"


def documentation() -> str:
    """Give the reference of all metrics, as Markdown."""
    sections = [_INTRODUCTION]
    for family in Declarations():
        sections.append(f"## `{family.name}`")
        sections.append(_filled(f"{family.kind.capitalize()}. {family.meaning}"))
        sections += [_filled(line) for line in _details(family)]
    return "\n\n".join([*sections, _CLOSING]) + "\n"


def _details(family: Family) -> Iterator[str]:
    for label, values in family.labels.items():
        if label == "service":
            yield "Label `service`: empty."
        elif label == "code":
            yield "Label `code`: the status."
        else:
            yield f"Label `{label}`: {', '.join(f'`{value}`' for value in (*values, *family.others))}."
    if isinstance(family, Histograms):
        yield f"Buckets: {', '.join(f'{bound:g}' for bound in family.bounds)}."


def _filled(text: str) -> str:
    return textwrap.fill(text, 110, break_on_hyphens=False, break_long_words=False)


_INTRODUCTION = f"""# Metrics

`/metrics` shows, in Prometheus's text format, what is below and what its client library knows of any process
(`process_open_fds`, `process_max_fds`, `process_resident_memory_bytes`, `process_cpu_seconds_total`, …).
`{PREFIX}http_request_duration_seconds`, `…_response_size_bytes` and `…_requests_inflight`
are those of assisted-image-service, with its names, labels and buckets.

Labels have the values that are listed and no others, whatever clients send. No identifier, address or
credential is among them.

[conf/prometheus-rules.yaml](../conf/prometheus-rules.yaml) has rules for alerts. On Kubernetes its `groups`
are the `spec` of a `PrometheusRule`. [conf/grafana-dashboard.json](../conf/grafana-dashboard.json) shows the
objectives of [slo.md](slo.md).

This page is made from `image_service/observability/declarations.py`: `make docs`."""

_CLOSING = f"""## `{PREFIX}build_info`

Gauge, always 1. Labels `version`, `python`, and `composer`: replicas whose composer is the same make the same
bytes of the same inputs."""


if __name__ == "__main__":
    sys.stdout.write(documentation())
