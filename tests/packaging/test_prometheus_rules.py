"""Every rule matches series of the metrics page, and ``docs/alerts.md`` explains every alert."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.packaging.conftest import CHECKOUT, PUBLISHED
from tests.packaging.promql import Query, all_series, check_alternatives, check_query, parse

if TYPE_CHECKING:
    from tests.packaging.promql import Series

FILE = CHECKOUT / "conf" / "prometheus-rules.yaml"
RUNBOOK = "docs/alerts.md"
SECTIONS = {
    heading: text
    for heading, _, text in (
        section.partition("\n") for section in (CHECKOUT / RUNBOOK).read_text().split("\n## ")[1:]
    )
}
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
def test_alerts_have_severity_and_texts(alert: dict[str, Any]) -> None:
    name, severity = alert["alert"], alert["labels"]["severity"]
    assert name.startswith("ImageService")
    assert severity in {"warning", "critical"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"{PUBLISHED}/{RUNBOOK}#{name.lower()}"
    assert f"{severity.capitalize()}: " in SECTIONS[name]


def test_alerts_of_one_name_differ_in_severity() -> None:
    names = [(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS]
    assert len(set(names)) == len(names)


def test_each_alert_is_tested_under_its_fault() -> None:
    text = (CHECKOUT / "tests" / "acceptance" / "test_alerts.py").read_text()
    tested = {
        (f"ImageService{name}", severity)
        for severity, name in re.findall(r'(warning|critical)\("(\w+)"\)', text)
    }
    assert tested == {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}


def test_each_alert_has_one_section_in_the_order_of_the_rules() -> None:
    assert list(SECTIONS) == list(dict.fromkeys(alert["alert"] for alert in ALERTS))


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_name_causes_and_actions(name: str, series: Series) -> None:
    text = SECTIONS[name]
    assert re.findall(r"^- \*\*(.*?)\*\*", text, re.MULTILINE) in (
        ["Causes", "Do"],
        ["Do"],  # what to do is the same for each cause, or names it
    )
    panels = {
        panel["title"] for panel in json.loads((FILE.parent / "grafana-dashboard.json").read_text())["panels"]
    }
    for listed in re.findall(r"panels? ((?:\*[^*\n]+\*(?:, | and )?)+)", text.replace("\n", " ")):
        assert set(re.findall(r"\*([^*]+)\*", listed)) <= panels
    metrics = {shown for shown, _ in series}
    assert set(re.findall(r"\bassisted_image_service_\w+", text)) <= metrics
    assert set(re.findall(r"\(#(\w+)\)", text)) <= {other.lower() for other in SECTIONS}
