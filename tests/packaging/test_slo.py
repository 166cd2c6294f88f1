"""The objectives, the dashboard and the alerts agree."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from image_service.server.observability.declarations import Declarations
from image_service.tools.loadtest.traffic.objectives import parse_objective
from tests.packaging.conftest import CHECKOUT
from tests.packaging.promql import all_series, check_alternatives, check_query, parse

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
VARIABLES = {
    "datasource": "prometheus",
    "job": "label_values(assisted_image_service_build_info, job)",
    "namespace": "label_values(assisted_image_service_build_info, namespace)",
    "instance": "label_values(assisted_image_service_build_info, instance)",
}
SELECTION = 'job=~"$job", namespace=~"$namespace", instance=~"$instance"'
BURN_RATES = re.findall(r"^\| ([\d.]+) \| ([\w ]+) and ([\w ]+) \|.* (\w+) \|$", DOCUMENT, re.MULTILINE)
"""Factor, long and short window, severity."""
BUDGETS = {
    "http_server_errors": "At most 0.1 % of requests end in a 5xx",
    "aborted_responses": "At most 0.1 % of responses are aborted",
    "refusals": "At most 1 % of requests are refused because of load",
    "slow_responses": "99 % of responses begin within 50 ms",
}
"""Names of recording rules, and the headings of their objectives."""


@pytest.fixture(scope="module")
def series() -> Series:
    """Return every series of a service that has answered successes and failures."""
    return all_series()


def of_all(query: str) -> str:
    """Return a query of the dashboard without its variables."""
    return query.replace(f"{{{SELECTION}}}", "").replace(f"{SELECTION}, ", "")


@pytest.mark.parametrize("query", SHOWN)
def test_dashboard_queries_existing_metrics_without_rules(query: str, series: Series) -> None:
    check_query(of_all(query), series, recorded=())
    check_alternatives(of_all(query), series)


@pytest.mark.parametrize("query", SHOWN)
def test_dashboard_variables_select_each_metric(query: str) -> None:
    selectors = parse(query).selectors
    assert query.count(SELECTION) == len(selectors)
    assert "$" not in of_all(query)


def test_each_objective_has_a_dashboard_panel() -> None:
    sections = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)[1:]
    panels = {panel["title"]: of_all(panel["targets"][0]["expr"]) for panel in PANELS}
    assert len(PROMISED) == len(sections)
    for section, query in zip(sections, PROMISED, strict=True):
        assert panels[section.partition("\n")[0]] == query


def normal(query: str) -> str:
    return re.sub(r"\s+", "", query)


def promised(heading: str) -> str:
    section = DOCUMENT.partition(f"## {heading}\n")[2]
    return normal(section.partition("```promql\n")[2].partition("```")[0])


def recorded(name: str) -> str:
    (rule,) = [rule for rule in RULES if rule.get("record") == f"assisted_image_service:{name}"]
    return normal(rule["expr"])


def test_rule_of_late_answers_matches_its_objective() -> None:
    assert recorded("late_answers:rate5m") == promised("A response begins within 3 s, always")


@pytest.mark.parametrize("window", ["5m", "30m", "1h", "6h", "3d"])
@pytest.mark.parametrize("name", BUDGETS)
def test_ratio_of_each_window_matches_its_objective(name: str, window: str) -> None:
    objective = promised(BUDGETS[name]).replace("[5m]", f"[{window}]")
    expected = f"1-({objective})" if name == "slow_responses" else objective
    assert recorded(f"{name}:ratio_rate{window}") == expected


@pytest.mark.parametrize("name", BUDGETS)
def test_burn_rate_alerts_match_the_table_and_the_objective(name: str) -> None:
    (percent,) = re.findall(r"([\d.]+) %", BUDGETS[name])
    budget = (100 - float(percent) if name == "slow_responses" else float(percent)) / 100
    alerts = [
        (rule["labels"]["severity"], normal(rule["expr"]))
        for rule in RULES
        if "alert" in rule and f":{name}:" in rule["expr"]
    ]
    found = []
    for severity, query in alerts:
        for part in query.split("or("):
            limits = re.findall(r"ratio_rate(\w+)>(?:([\d.]+)\*)?([\d.]+)and", part)
            windows, factors, budgets = zip(*limits, strict=True)
            assert {*map(float, budgets)} == {budget}
            assert part.count(f"[{windows[0]}]") == part.count("increase(")
            assert ">=20" in part
            assert len({*factors}) == 1
            found.append((factors[0] or "1", *windows, severity))
    table = [
        (factor, *(re.sub(r" (.).*", r"\1", window) for window in (long, short)), severity)
        for factor, long, short, severity in BURN_RATES
    ]
    if name == "slow_responses":
        table = [(*windows, "warning") for *windows, _ in table]
    assert len(table) == 3
    assert found == table


def test_objective_and_alert_of_readiness_count_the_states_that_are_served() -> None:
    served = 'state=~"ready|degraded|deriving"'
    (alert,) = [rule for rule in RULES if rule.get("alert") == "ImageServiceNotReady"]
    assert served in alert["expr"]
    assert normal(served) in promised("At least one replica is ready, always")
    described = Declarations().base_images.description
    assert "`ready`, `degraded` and `deriving` ones are served" in described


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


def test_dashboard_has_variables_for_source_job_namespace_and_instance() -> None:
    source, *others = DASHBOARD["templating"]["list"]
    assert {
        variable["name"]: variable.get("definition", variable["query"]) for variable in (source, *others)
    } == (VARIABLES)
    for variable in others:
        assert (variable["query"]["query"], variable["allValue"]) == (variable["definition"], ".*")
    sources = [part["datasource"] for panel in PANELS for part in (panel, *panel["targets"])]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
