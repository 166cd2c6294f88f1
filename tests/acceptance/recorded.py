"""Alerts, judged by ``promtool test rules`` from what a service showed on its metrics page.

A test reads the page before and after a fault: the changes in between are repeated in each minute of a
phase. Counters go on growing as they have grown, and gauges stay as they are.
"""

from __future__ import annotations

import json
import re
import time
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.clients import run_client
from tests.acceptance.service import CHECKOUT
from tests.packaging.promql import parse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.acceptance.service import Service

    Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
    Phase: TypeAlias = tuple[int, "Minute | None"]

RULES = CHECKOUT / "conf" / "prometheus-rules.yaml"
CUMULATIVE = {"counter", "histogram"}
OF_THE_MACHINE = r"data_dir_(free|file_system)_bytes|http_time_to_first_byte_seconds_.*"
"""How full and how fast the machine of the test is."""


GROUPS: Sequence[Mapping[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]


def _names(rules: Iterable[Mapping[str, str]]) -> frozenset[str]:
    """Return the series of which rules are made."""
    return frozenset(name for rule in rules for name, _ in parse(rule["expr"]).selectors)


@cache
def _groups(among: str) -> list[dict[str, Any]]:
    """Return the rules of some alerts, and of the recorded series of which those are made.

    The others would take most of promtool's time.
    """
    rules = [rule for group in GROUPS for rule in group["rules"]]
    alerts = [rule for rule in rules if "alert" in rule and re.fullmatch(among, rule["alert"])]
    names = _names(alerts)
    return [
        {**group, "rules": [rule for rule in group["rules"] if rule in alerts or rule.get("record") in names]}
        for group in GROUPS
    ]


QUERIED = _names(rule for group in _groups(".*") for rule in group["rules"])
"""The metrics that the alerts need."""


@attrs.frozen
class Page:
    """The samples of a metrics page that the alerts need."""

    at: float  # seconds since the epoch
    counts: Mapping[Key, float]
    gauges: Mapping[Key, float]


@attrs.frozen
class Minute:
    """The samples of a target during a minute: its gauges, and the growth of its counts."""

    gauges: Mapping[Key, float]
    grown: Mapping[Key, float]
    counted_before: frozenset[Key]  # counts that were there already

    def __add__(self, other: Minute) -> Minute:
        """Return a minute in which both happen."""
        keys = self.grown.keys() | other.grown.keys()
        grown = {key: self.grown.get(key, 0) + other.grown.get(key, 0) for key in keys}
        return Minute(self.gauges, grown, self.counted_before | other.counted_before)

    def __mul__(self, times: int) -> Minute:
        """Return a minute in which everything happens several times."""
        return attrs.evolve(self, grown={key: value * times for key, value in self.grown.items()})

    def requests(self, status: str = "...") -> float:
        """Return how many requests end in it with a status that matches a pattern."""
        return sum(
            count
            for (name, labels), count in self.grown.items()
            if name.endswith("http_request_duration_seconds_count")
            and re.fullmatch(status, dict(labels)["code"])
        )

    @property
    def idle(self) -> Minute:
        """A minute in which nothing happens."""
        return self * 0


def read_page(service: Service, *, about: str = "") -> Page:
    """Read a service's metrics page.

    Args:
        service: that is running.
        about: a pattern of the metrics of `OF_THE_MACHINE` that matter.
    """
    counts: dict[Key, float] = {}
    gauges: dict[Key, float] = {}
    now = time.time()
    for family in text_string_to_metric_families(service.get("/metrics").body.decode()):
        for sample in family.samples:
            name = sample.name.removeprefix("assisted_image_service_")
            is_ignored = re.fullmatch(OF_THE_MACHINE, name) and not re.fullmatch(about, name)
            if sample.name in QUERIED and not is_ignored:
                kept = counts if family.type in CUMULATIVE else gauges
                # promtool's time begins at 0.
                shift = now if name.endswith("not_after_seconds") else 0
                kept[sample.name, tuple(sample.labels.items())] = sample.value - shift
    return Page(now, counts, gauges)


def minute(before: Page, after: Page) -> Minute:
    """Return the changes between two pages."""
    grown = {key: value - before.counts.get(key, 0) for key, value in after.counts.items()}
    return Minute(after.gauges, grown, frozenset(before.counts))


def check_alerts(
    directory: Path,
    *targets: Sequence[Phase],
    firing: Collection[tuple[str, str]],
    among: str = ".*",
    step_minutes: int = 1,
) -> None:
    """Check which alerts fire at the end of the last phase; if none is expected, at any time.

    Args:
        directory: for promtool's files.
        targets: phases of each: minutes, and what it shows in each of them; None: it has ended.
        firing: names and severities.
        among: a pattern of the names that count.
        step_minutes: between two samples, and two evaluations.
    """
    last = max(sum(minutes for minutes, _ in phases) for phases in targets) - step_minutes
    alerts = f'ALERTS{{alertstate="firing",alertname=~"{among}"}}'
    if not firing:
        alerts = f"last_over_time({alerts}[{last + 1}m])"
    expected = [
        {"labels": f'{{alertname="{name}",severity="{severity}"}}', "value": 1} for name, severity in firing
    ]
    query = {"expr": f"group by (alertname, severity) ({alerts})", "eval_time": f"{last}m"}
    interval = f"{step_minutes}m"
    series = [
        {
            "series": _series(key, f"replica-{number}:8080"),
            "values": " ".join(_values(key, phases, step_minutes)),
        }
        for number, phases in enumerate(targets)
        for key in _keys(phases)
    ]
    groups = _groups(among)
    rules = directory / "rules.json"
    rules.write_text(json.dumps({"groups": groups}))
    test = {
        "interval": interval,
        "input_series": series,
        "promql_expr_test": [{**query, "exp_samples": expected}],
    }
    file = directory / "alerts.json"
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": interval,
        "group_eval_order": [group["name"] for group in groups],
        "tests": [test],
    }
    file.write_text(json.dumps(document))
    run_client("promtool", "test", "rules", file)


def _keys(phases: Iterable[Phase]) -> list[Key]:
    return sorted({key for _, each in phases if each is not None for key in (*each.gauges, *each.grown)})


def _series(key: Key, instance: str) -> str:
    name, labels = key
    pairs = [*labels, ("job", "image-service"), ("instance", instance)]
    return f"{name}{{{','.join(f'{label}={json.dumps(value)}' for label, value in pairs)}}}"


def _values(key: Key, phases: Iterable[Phase], step_minutes: int) -> Iterator[str]:
    """Return the values of a series in promtool's notation, in which ``a+bxn`` are n + 1 values."""
    count: float | None = None
    was_shown = False
    for minutes, each in phases:
        steps = minutes // step_minutes
        start, growth = None, 0.0
        if each is not None and key in each.gauges:
            start = each.gauges[key]
        elif each is not None and (key in each.grown or count is not None):
            growth = each.grown.get(key, 0) * step_minutes
            if count is None and key in each.counted_before:
                count = 0
            start = growth if count is None else count + growth
            count = start + growth * (steps - 1)
        if start is not None:
            yield f"{start:f}+{growth:f}x{steps - 1}"
        elif was_shown:
            yield f"stale _x{steps - 1}"
        else:
            yield f"_x{steps}"
        was_shown = start is not None
