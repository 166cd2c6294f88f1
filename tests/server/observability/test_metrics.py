"""The page: it has assisted-image-service's metrics by name, and nothing that clients send."""

from __future__ import annotations

from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from image_service import __version__
from image_service.server.assisted.calls import CallKind, CallOutcome
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.http.head import ALLOWED_METHODS
from image_service.server.http.routes import HANDLERS, REGISTRY_HANDLER, parse_route
from image_service.server.observability.declarations import Declarations
from image_service.server.observability.families import Gauge, StateGauge
from image_service.server.observability.metrics import PROBES, Metrics, documentation
from image_service.server.observability.process import ProcessMetrics
from image_service.server.snapshots.storage.snapshot import REVALIDATION_RESULTS, SnapshotEvent
from image_service.server.transport.sending.observer import AbortReason, RefusalReason

if TYPE_CHECKING:
    import enum
    from collections.abc import Callable

    from prometheus_client import Metric

ROOT = Path(__file__).resolve().parents[3]
ID = "a6c0ff12-3456-4789-8abc-def012345678"
TOKEN = "e30.eyJzdWIiOiJhNmMwZmYxMi0zNDU2LTQ3ODktOGFiYy1kZWYwMTIzNDU2NzgifQ.c2ln"
HTTP = "assisted_image_service_http_"
SECRET = "b3ab1e5ec4e7"

words = st.sampled_from([*HANDLERS, *ALLOWED_METHODS, *PROBES, "ok", "client-gone", "sendfile"]) | st.text()


def page(metrics: Metrics) -> dict[str, Metric]:
    """Return the families of the page, parsed as Prometheus parses it."""
    families = list(text_string_to_metric_families(metrics.render()[0].decode()))
    by_name = {family.name: family for family in families}
    assert len(by_name) == len(families)
    return by_name


def samples(metrics: Metrics, name: str, **labels: str) -> dict[str, float]:
    """Return a family's non-zero values, by the labels that are not given."""
    return {
        " ".join(value for label, value in sample.labels.items() if label not in labels): sample.value
        for sample in page(metrics)[name].samples
        if sample.value and labels.items() <= sample.labels.items()
    }


# What assisted-image-service shows.


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("request_duration_seconds", ["0.1", "1", "10", "50", "100", "300", "600", "+Inf"]),
        ("response_size_bytes", ["100", "1e+06", "5e+08", "1e+09", "1e+10", "+Inf"]),
    ],
)
def test_request_histograms_match_assisted_image_service(name: str, bounds: list[str]) -> None:
    metrics = Metrics()
    metrics.record_request("/byid/:token", "GET", 206, 0.5, 2_000_000)
    family = page(metrics)[HTTP + name]
    buckets, count, total = family.samples[:-2], *family.samples[-2:]
    labels = {"service": "", "handler": "/byid/:token", "method": "GET", "code": "206"}
    assert family.type == "histogram"
    assert [bucket.labels for bucket in buckets] == [{**labels, "le": bound} for bound in bounds]
    assert (count.name, count.labels) == (f"{HTTP}{name}_count", labels)
    assert (total.name, total.labels) == (f"{HTTP}{name}_sum", labels)


def test_inflight_gauge_matches_assisted_image_service() -> None:
    metrics = Metrics()
    metrics.count_states("http_requests_inflight", lambda: ["/byid/:token", "/byid/:token", ""])
    family = page(metrics)[f"{HTTP}requests_inflight"]
    assert family.type == "gauge"
    assert {tuple(sample.labels) for sample in family.samples} == {("handler", "service")}
    found = samples(metrics, f"{HTTP}requests_inflight", service="")
    assert found == {"/byid/:token": 2, "other": 1}


def test_durations_and_sizes_fall_into_their_buckets() -> None:
    metrics = Metrics()
    for seconds, size in ((0.1, 100), (0.11, 101), (700, 2 * 10**10)):
        metrics.record_request("/images/:imageID", "GET", 200, seconds, size)
    labels = {"service": "", "handler": "/images/:imageID", "method": "GET", "code": "200"}
    durations = samples(metrics, f"{HTTP}request_duration_seconds", **labels)
    assert (durations["0.1"], durations["1"], durations["600"], durations["+Inf"]) == (1, 2, 2, 3)
    sizes = samples(metrics, f"{HTTP}response_size_bytes", **labels)
    assert (sizes["100"], sizes["1e+06"], sizes["1e+10"], sizes["+Inf"]) == (1, 2, 2, 3)


@pytest.mark.parametrize("probe", sorted(PROBES))
def test_probes_are_not_measured(probe: str) -> None:
    metrics, untouched = Metrics(), Metrics()
    metrics.record_first_byte(probe, 0.1)
    metrics.record_request(probe, "GET", 200, 0.1, 3)
    for name in ("request_duration_seconds", "response_size_bytes", "time_to_first_byte_seconds"):
        assert samples(metrics, HTTP + name) == samples(untouched, HTTP + name) == {}


def test_every_route_has_a_handler_and_every_handler_a_route() -> None:
    """By example: one request target for each, and no handler without a route."""
    targets = (
        f"/images/{ID}?version=4.20&type=full-iso",
        f"/byid/{ID}/4.20/x86_64/full.iso",
        f"/byapikey/{TOKEN}/4.20/x86_64/full.iso",
        f"/bytoken/{TOKEN}/4.20/x86_64/full.iso",
        f"/images/{ID}/pxe-initrd?version=4.20",
        f"/images/{ID}/s390x-initrd-addrsize?version=4.20",
        f"/images/{ID}/ipxe?version=4.20",
        "/s/abcdefghijklmnop.iso",
        "/boot-artifacts/kernel?version=4.20",
        "/boot-artifacts/rootfs?version=4.20",
        "/boot-artifacts/ins-file?version=4.20",
        "/boot-artifacts/4.20/x86_64/vmlinuz",
        f"/clusters/{ID}/downloads/image",
        "/streams/stable.json",
        "/streams/stable/configmap.yaml",
        "/streams/stable/44.1/x86_64/live.iso",
    )
    found = [parse_route(target, {}) for target in targets]
    handlers = tuple(route.handler for route in found if not isinstance(route, Enum))
    assert (*handlers, REGISTRY_HANDLER) == HANDLERS


# What is ours.


@pytest.mark.parametrize(
    ("record", "name", "label", "declared"),
    [
        (Metrics.record_abort, "aborted_responses", "reason", list(AbortReason)),
        (Metrics.record_refusal, "refusals", "reason", list(RefusalReason)),
        (Metrics.record_snapshot_event, "snapshot_revalidations", "result", list(REVALIDATION_RESULTS)),
        (
            lambda metrics, outcome: metrics.record_upstream_call("ramdisk", outcome.value, 1),
            "upstream_calls",
            "outcome",
            list(CallOutcome),
        ),
        (
            lambda metrics, kind: metrics.record_upstream_call(kind.value, "ok", 1),
            "upstream_calls",
            "kind",
            list(CallKind),
        ),
    ],
)
def test_events_are_counted_by_their_label_value(
    record: Callable[[Metrics, object], None], name: str, label: str, declared: list[enum.Enum]
) -> None:
    metrics = Metrics()
    for number, event in enumerate(declared, 1):
        for _ in range(number):
            record(metrics, event)
    found = page(metrics)[f"assisted_image_service_{name}"].samples
    counted = {sample.labels[label]: sample.value for sample in found if sample.value}
    assert counted == {event.value: number for number, event in enumerate(declared, 1)}


@pytest.mark.parametrize(
    ("event", "name"),
    [
        (SnapshotEvent.HIT, "hits"),
        (SnapshotEvent.MISS, "misses"),
        (SnapshotEvent.GRACE, "grace_requests"),
        (SnapshotEvent.EVICTION, "evictions"),
    ],
)
def test_each_snapshot_event_has_its_own_counter(event: SnapshotEvent, name: str) -> None:
    metrics = Metrics()
    metrics.record_snapshot_event(event)
    found = {
        family.name: sample.value
        for family in page(metrics).values()
        for sample in family.samples
        if "snapshot" in family.name and sample.value
    }
    assert found == {f"assisted_image_service_snapshot_{name}": 1}


def test_sent_bytes_are_shown_by_path() -> None:
    metrics = Metrics()
    metrics.sent.sendfile += 5 * 2**40
    metrics.sent.sendfile += 1
    metrics.sent.tls += 7
    assert samples(metrics, "assisted_image_service_sent_bytes") == {"sendfile": 5 * 2**40 + 1, "tls": 7}


def test_calls_to_assisted_service_are_timed_by_kind() -> None:
    metrics = Metrics()
    metrics.record_upstream_call("ignition", "ok", 0.2)
    metrics.record_upstream_call("ignition", "timeout", 30)
    name = "assisted_image_service_upstream_call_duration_seconds"
    found = samples(metrics, name, kind="ignition")
    assert (found["0.25"], found["10"], found["30"]) == (1, 1, 2)


def test_first_byte_histogram_has_a_bucket_at_three_seconds() -> None:
    metrics = Metrics()
    for seconds in (3.0, 3.01):
        metrics.record_first_byte("/byid/:token", seconds)
    found = samples(metrics, f"{HTTP}time_to_first_byte_seconds", handler="/byid/:token")
    assert (found["3"], found["+Inf"]) == (1, 2)


def test_every_gauge_shows_what_its_reader_returns() -> None:
    metrics = Metrics()
    gauges = [family for family in Declarations() if isinstance(family, Gauge)]
    for number, gauge in enumerate(gauges, 1):
        metrics.read_gauge(gauge.name.removeprefix("assisted_image_service_"), partial(float, number))
    shown = page(metrics)
    assert [shown[gauge.name].samples[0].value for gauge in gauges] == list(range(1, len(gauges) + 1))


def test_unknown_gauge_raises() -> None:
    with pytest.raises(KeyError):
        Metrics().read_gauge("slot_taken", lambda: 0)
    with pytest.raises(KeyError):
        Metrics().count_states("slots_taken", lambda: ())


def test_base_images_are_counted_by_every_state() -> None:
    metrics = Metrics()
    metrics.count_states("base_images", lambda: ["ready", "ready", "refused"])
    name = "assisted_image_service_base_images"
    assert samples(metrics, name) == {"ready": 2, "refused": 1}
    assert {sample.labels["state"] for sample in page(metrics)[name].samples} == {
        *(state.value for state in BaseImageState),
        "other",
    }


def test_build_info_shows_version_composer_and_python() -> None:
    (build,) = page(Metrics())["assisted_image_service_build_info"].samples
    assert build.labels.keys() == {"version", "composer", "python"}
    assert build.labels["version"] == __version__
    assert build.value == 1


def test_two_instances_count_independently() -> None:
    counting, other = Metrics(), Metrics()
    counting.record_abort(AbortReason.CLIENT_GONE)
    assert samples(other, "assisted_image_service_aborted_responses") == {}


# The process.


def test_process_metrics_are_shown() -> None:
    shown = page(Metrics())
    names = ("open_fds", "max_fds", "resident_memory_bytes", "cpu_seconds", "start_time_seconds")
    assert all(shown[f"process_{name}"].samples[0].value > 0 for name in names)


def test_process_metrics_are_shown_without_proc_stat(tmp_path: Path) -> None:
    """As under ``ProcSubset=pid``, which the unit in ``conf/`` sets."""
    (tmp_path / "self").symlink_to("/proc/self")
    names = {metric.name for metric in ProcessMetrics(registry=None, proc=str(tmp_path)).collect()}
    assert {"process_open_fds", "process_max_fds", "process_start_time_seconds"} <= names


# What clients send.


@given(st.lists(st.tuples(words, words, st.sampled_from([0, 200, 206, 404]) | st.integers())))
def test_number_of_series_does_not_depend_on_clients(asked: list[tuple[str, str, int]]) -> None:
    metrics = Metrics()
    for handler, method, status in asked:
        metrics.record_first_byte(handler, 0.1)
        metrics.record_request(handler, method, status, 0.1, 10)
        metrics.record_upstream_call(handler, method, 1)
    metrics.count_states("http_requests_inflight", lambda: [handler for handler, _, _ in asked])
    declared = {family.name: family.labels for family in Declarations()}
    for family in page(metrics).values():
        known = declared.get(family.name) or declared.get(f"{family.name}_total") or {}
        for sample in family.samples:
            for label, values in known.items():
                assert sample.labels[label] in {*values, "other"}


def test_secrets_in_label_values_are_not_shown() -> None:
    metrics = Metrics()
    for word in (SECRET, f"/byapikey/{SECRET}/4.20/x86_64/full.iso", f'"}} {SECRET} 1\n{SECRET}'):
        metrics.record_first_byte(word, 0.1)
        metrics.record_request(word, word, 200, 0.1, 10)
        metrics.record_upstream_call(word, word, 1)
    metrics.count_states("http_requests_inflight", lambda: [SECRET])
    metrics.count_states("base_images", lambda: [SECRET])
    shown, media_type = metrics.render()
    assert SECRET not in shown.decode() + media_type
    assert samples(metrics, "assisted_image_service_upstream_calls") == {"other other": 3}


# The reference.


def test_reference_is_current() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == documentation(), "run make docs"


def test_reference_names_every_own_metric() -> None:
    shown = {
        name
        for family in page(Metrics()).values()
        if (name := family.name + ("_total" if family.type == "counter" else "")).startswith("assisted_")
    }
    assert {name for name in shown if f"## `{name}`" not in documentation()} == set()
    assert {family.name for family in Declarations() if isinstance(family, StateGauge | Gauge)} <= shown


def test_page_media_type_is_the_text_format() -> None:
    assert Metrics().render()[1] == "text/plain; version=0.0.4; charset=utf-8"
