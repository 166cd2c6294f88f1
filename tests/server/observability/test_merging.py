"""The sums against what each process would show by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from image_service.server.observability.merging import add_up, cumulative, export, render
from image_service.server.observability.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.server.observability.merging import Exported

HANDLER = "/byid/:token"
SHARED = ("slots_limit", "base_images", "build_info", "process_start_time_seconds")


def values(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.startswith("process_")
    }


def counted(seconds: Iterable[float], connections: int, limit: int = 7) -> Metrics:
    metrics = Metrics()
    for each in seconds:
        metrics.record_request(HANDLER, "GET", 206, each, 10)
    metrics.read_gauge("connections", lambda: connections)
    metrics.read_gauge("slots_limit", lambda: limit)
    metrics.count_states("base_images", lambda: ["ready", "ready"])
    return metrics


def sent(metrics: Metrics) -> Exported:
    """As it arrives at another process."""
    exported: Exported = json.loads(json.dumps(export(metrics.collect())))
    return exported


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from([0.0, 0.5, 20.0])), st.integers(0, 9)), min_size=1, max_size=3
    )
)
def test_counts_are_summed_and_shared_values_are_not(
    processes: list[tuple[list[float], int]],
) -> None:
    made = [counted(seconds, connections) for seconds, connections in processes]
    merged = values(render(add_up(map(sent, made)))[0])
    alone = [values(metrics.render()[0]) for metrics in made]
    for key, value in merged.items():
        each = [page[key] for page in alone if key in page]
        is_shared = any(name in key[0] for name in SHARED)
        assert value == (each[0] if is_shared else sum(each)), key
    assert merged.keys() == set().union(*alone)


def test_merged_metrics_of_one_process_equal_its_own() -> None:
    metrics = counted([0.5], 3)
    page, content_type = render(sent(metrics))
    assert (values(page), content_type) == (values(metrics.render()[0]), metrics.render()[1])
    assert page.splitlines()[:2] == metrics.render()[0].splitlines()[:2]


def test_process_without_a_shared_value_does_not_hide_it() -> None:
    merged = add_up([sent(Metrics()), sent(counted([], 0, limit=5))])
    assert b"assisted_image_service_slots_limit 5.0" in render(merged)[0]


def test_only_counts_stay_of_an_ended_process() -> None:
    page = render(cumulative(sent(counted([0.5], 3))))[0]
    assert b'http_request_duration_seconds_count{code="206"' in page
    assert b"assisted_image_service_connections" not in page
