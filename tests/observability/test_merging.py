"""The sums against what each process would show by itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from image_service.observability.merging import add_up, export, lasting, render
from image_service.observability.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.observability.merging import Exported

HANDLER = "/byid/:token"
ONCE = ("slots_limit", "base_images", "build_info", "process_start_time_seconds")


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
        metrics.request_ended(HANDLER, "GET", 206, each, 10)
    metrics.watch("connections", lambda: connections)
    metrics.watch("slots_limit", lambda: limit)
    metrics.watch_each("base_images", lambda: ["ready", "ready"])
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
def test_what_is_counted_is_added_up_and_what_all_know_alike_is_not(
    processes: list[tuple[list[float], int]],
) -> None:
    made = [counted(seconds, connections) for seconds, connections in processes]
    merged = values(render(add_up(map(sent, made)))[0])
    alone = [values(metrics.render()[0]) for metrics in made]
    for key, value in merged.items():
        each = [page[key] for page in alone if key in page]
        is_once = any(name in key[0] for name in ONCE)
        assert value == (each[0] if is_once else sum(each)), key
    assert merged.keys() == set().union(*alone)


def test_one_process_looks_as_it_does_alone() -> None:
    metrics = counted([0.5], 3)
    page, content_type = render(sent(metrics))
    assert (values(page), content_type) == (values(metrics.render()[0]), metrics.render()[1])
    assert page.splitlines()[:2] == metrics.render()[0].splitlines()[:2]


def test_who_does_not_know_what_all_know_alike_does_not_hide_it() -> None:
    merged = add_up([sent(Metrics()), sent(counted([], 0, limit=5))])
    assert b"assisted_image_service_slots_limit 5.0" in render(merged)[0]


def test_of_one_that_is_gone_the_counts_stay_and_nothing_else() -> None:
    page = render(lasting(sent(counted([0.5], 3))))[0]
    assert b'http_request_duration_seconds_count{code="206"' in page
    assert b"assisted_image_service_connections" not in page
