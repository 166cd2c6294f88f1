"""Every query in ``conf/prometheus-rules.yaml`` matches series of the metrics page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.packaging.promql import Query, all_series, check_alternatives, check_query, parse

if TYPE_CHECKING:
    from tests.packaging.promql import Series

FILE = Path(__file__).resolve().parents[2] / "conf" / "prometheus-rules.yaml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
RECORDED = [rule["record"] for rule in RULES if "record" in rule]
ALERTS = [rule for rule in RULES if "alert" in rule]


@pytest.mark.parametrize(
    ("query", "selectors", "labels"),
    [
        ("up", [("up", [])], set()),
        ("absent(up)", [("up", [])], set()),
        ('a{x="1",y!~"2|3"} > 0.5', [("a", [("x", "=", "1"), ("y", "!~", "2|3")])], set()),
        ("sum by (job, x) (rate(a[5m])) / b:c:d", [("a", []), ("b:c:d", [])], {"job", "x"}),
        ('a{x="(by)"} and on (job) b unless c', [("a", [("x", "=", "(by)")]), ("b", []), ("c", [])], {"job"}),
        ("sum(a) by (x) >= bool 1e3", [("a", [])], {"x"}),
    ],
)
def test_promql_parser_finds_metrics_and_labels(query: str, selectors: list[Any], labels: set[str]) -> None:
    assert parse(query) == Query(selectors, labels)


@pytest.fixture(scope="module")
def series() -> Series:
    """Return every series of a service that has answered successes and failures."""
    return all_series()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_query_existing_metrics_and_labels(rule: dict[str, Any], series: Series) -> None:
    check_query(rule["expr"], series, RECORDED)
    check_alternatives(rule["expr"], series)


def test_recorded_series_are_defined_before_use() -> None:
    recorded: set[str] = set()
    for rule in RULES:
        used = {name for name, _ in parse(rule["expr"]).selectors if ":" in name}
        assert used <= recorded
        recorded.add(rule.get("record", ""))
    assert len(set(RECORDED)) == len(RECORDED)


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_have_severity_and_runbook_text(alert: dict[str, Any]) -> None:
    assert alert["alert"].startswith("ImageService")
    assert alert["labels"]["severity"] in {"warning", "critical"}
    assert alert["annotations"].keys() == {"summary", "description"}


def test_alert_names_are_unique() -> None:
    names = [alert["alert"] for alert in ALERTS]
    assert len(set(names)) == len(names)
