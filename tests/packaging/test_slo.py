"""The objectives, the dashboard and the alerts agree."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from image_service.loadtest.objectives import parse_objective
from tests.packaging.conftest import CHECKOUT
from tests.packaging.promql import all_series, check_alternatives, check_query

if TYPE_CHECKING:
    from tests.packaging.promql import Series

DOCUMENT = (CHECKOUT / "docs" / "slo.md").read_text()
PROMISED = [query.strip() for query in re.findall(r"```promql\n(.*?)```", DOCUMENT, re.DOTALL)]
DASHBOARD: dict[str, Any] = json.loads((CHECKOUT / "conf" / "grafana-dashboard.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SHOWN: list[str] = [target["expr"] for panel in PANELS for target in panel["targets"]]
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((CHECKOUT / "conf" / "prometheus-rules.yaml").read_text())["groups"]
    for rule in group["rules"]
]
COLUMNS = 24


@pytest.fixture(scope="module")
def series() -> Series:
    """Return every series of a service that has answered successes and failures."""
    return all_series()


@pytest.mark.parametrize("query", SHOWN)
def test_dashboard_queries_existing_metrics_without_rules(query: str, series: Series) -> None:
    check_query(query, series, recorded=())
    check_alternatives(query, series)


def test_each_objective_has_a_dashboard_panel() -> None:
    sections = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]
    panels = {panel["title"]: panel["targets"][0]["expr"] for panel in PANELS}
    assert len(PROMISED) == len(sections)
    for section, query in zip(sections, PROMISED, strict=True):
        assert panels[section.partition("\n")[0]] == query


def normal(query: str) -> str:
    return re.sub(r"\s+", "", query)


@pytest.mark.parametrize(
    "record",
    ["late_answers:rate5m", "http_server_errors:ratio_rate5m", "aborted_responses:ratio_rate5m"],
)
def test_alert_thresholds_match_the_objectives(record: str) -> None:
    (rule,) = [rule for rule in RULES if rule.get("record") == f"assisted_image_service:{record}"]
    assert normal(rule["expr"]) in map(normal, PROMISED)


def test_alerts_named_in_slo_document_exist() -> None:
    named = set(re.findall(r"`(ImageService\w+)`", DOCUMENT))
    assert named
    assert named <= {rule.get("alert") for rule in RULES}


def test_slo_objectives_match_the_load_test() -> None:
    stated = re.findall(r"--slo '([^']+)'", DOCUMENT)
    command, *each = re.findall(r"--slo '[^']+'(?:[ \\\n]+--slo '[^']+')*", DOCUMENT)
    assert [parse_objective(text).text for text in stated] == stated
    assert set(re.findall(r"'([^']+)'", command)) == set(re.findall(r"'([^']+)'", " ".join(each)))


def test_dashboard_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < COLUMNS
        taken |= cells
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)


def test_dashboard_uses_only_the_data_source_variable() -> None:
    (variable,) = DASHBOARD["templating"]["list"]
    assert (variable["name"], variable["type"], variable["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    sources = [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
