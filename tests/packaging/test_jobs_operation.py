"""Rules, dashboard and document of the jobs role agree with its metrics."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from image_service.jobs.metrics.jobs_metrics import COMPOSER, EC2, WORKER, JobsMetrics, MeasuredRequest
from image_service.jobs.model import Job, JobState, JobType
from tests.acceptance.clients import run_client
from tests.packaging.conftest import CHECKOUT, PUBLISHED
from tests.packaging.promql import check_query, parse

if TYPE_CHECKING:
    from pathlib import Path

    from tests.packaging.promql import Series

FILE = CHECKOUT / "conf" / "jobs-prometheus-rules.yaml"
DOCUMENT = (CHECKOUT / "docs" / "jobs-operation.md").read_text()
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
RECORDED = [rule["record"] for rule in RULES if "record" in rule]
DASHBOARD: dict[str, Any] = json.loads((CHECKOUT / "conf" / "jobs-grafana-dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SELECTION = 'job=~"$job", namespace=~"$namespace", instance=~"$instance"'
PROMISED = re.findall(r"```promql\n(.*?)```", DOCUMENT, re.DOTALL)
UPLOADS = "/jobs/{token}/artifacts/{name}"


def normal(query: str) -> str:
    return re.sub(r"\s+", "", query)


def of_all(query: str) -> str:
    """Return a query of the dashboard without its variables."""
    return query.replace(f"{{{SELECTION}}}", "").replace(f"{SELECTION}, ", "")


@pytest.fixture(scope="module")
def series() -> Series:
    """Every series of a role that has answered, and done a job."""
    metrics = JobsMetrics()
    for api in (COMPOSER, WORKER, EC2):
        metrics.record_request(api, MeasuredRequest("POST", "/compose", 503, "", 0.1))
    metrics.record_refused_request("AuthFailure")
    now = datetime.now(UTC)
    job = Job(
        id="1",
        compose_id="2",
        tenant="",
        step="s",
        type=JobType.CONVERT,
        architecture="x86_64",
        state=JobState.RUNNING,
        attempt=1,
        queued_at=now,
        started_at=now,
    )
    metrics.record_job_start(job)
    metrics.record_job_end(job, None)
    metrics.pending_jobs.values = metrics.running_jobs.values = {("convert", ""): 1}
    metrics.active_workers.values = {("", "x86_64"): 1}
    metrics.composes.values = {("pending",): 1}
    metrics.tasks.values = {("import-vol", "pending"): 1}
    page = metrics.render()[0].decode()
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    return [(sample.name, sample.labels) for sample in samples]


@pytest.mark.parametrize("query", [rule["expr"] for rule in RULES if 'status="5xx"' not in rule["expr"]])
def test_rules_query_existing_metrics_and_labels(query: str, series: Series) -> None:
    check_query(query, series, RECORDED)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_dashboard_queries_existing_metrics_and_selects_each(panel: dict[str, Any], series: Series) -> None:
    (query,) = [target["expr"] for target in panel["targets"]]
    check_query(of_all(query), series, ())
    assert query.count(SELECTION) == len(parse(query).selectors)


def test_each_objective_has_a_panel_and_rules() -> None:
    shown = {normal(of_all(panel["targets"][0]["expr"])) for panel in PANELS}
    rules = {rule["record"]: normal(rule["expr"]) for rule in RULES if "record" in rule}
    names = ("compose_failures", "composer_slow", "worker_slow")
    for name, promised in zip(names, PROMISED, strict=True):
        assert normal(promised) in shown
        for window in ("5m", "30m", "1h", "6h", "3d"):
            ratio = normal(promised).replace("[5m]", f"[{window}]")
            expected = ratio if name == "compose_failures" else f"1-({ratio})"
            assert rules[f"image_builder:{name}:ratio_rate{window}"] == expected


def test_calls_that_wait_are_left_out_by_their_routes() -> None:
    source = (CHECKOUT / "image_service/jobs/worker_api/worker_api.py").read_text()
    for path in ("/jobs", UPLOADS):
        assert f'"{path}"' in source
        assert path in PROMISED[-1]


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert['alert']}-{alert['labels']['severity']}")
def test_alerts_are_explained(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert alert["annotations"]["runbook_url"] == f"{PUBLISHED}/docs/jobs-operation.md#{name.lower()}"
    text = DOCUMENT.partition(f"### {name}\n")[2].partition("\n### ")[0]
    assert alert["labels"]["severity"] in text.lower()
    assert re.findall(r"^- \*\*(.*?)\*\*", text, re.MULTILINE) == ["Look at", "Do"]
    panels = {panel["title"] for panel in PANELS}
    for listed in re.findall(r"panels? ((?:\*[^*\n]+\*(?: and )?)+)", text.replace("\n", " ")):
        assert set(re.findall(r"\*([^*]+)\*", listed)) <= panels


def test_each_metric_is_documented(series: Series) -> None:
    shown = {name.removeprefix("image_builder_") for name, _ in series if name.startswith("image_builder_")}
    shown = {re.sub("_(bucket|sum|count|created)$", "", name) for name in shown} - {
        "composer_request",
        "worker_request",
        "ec2_request",
    }
    table = DOCUMENT.partition("## Metrics\n")[2].partition("## Alerts")[0]
    assert shown <= set(re.findall(r"`(\w+)`", table))


HEALTHY = {
    "image_builder_build_info": "1x400",
    "image_builder_engine_up": "1x400",
    'image_builder_worker_pending_jobs{type="convert",tenant=""}': "0x400",
    'image_builder_worker_running_jobs{type="convert",tenant=""}': "1x400",
    'image_builder_worker_active_workers{tenant="",arch="x86_64"}': "1x400",
    'image_builder_ec2_request_count{path="DescribeConversionTasks",code="200"}': "0+10x400",
    'image_builder_ec2_request_count{path="DescribeConversionTasks",code="503"}': "0x400",
    "image_builder_composer_total_compose_requests": "0+10x400",
    "image_builder_composer_total_failed_compose_requests": "0x400",
    'image_builder_composer_http_duration_seconds_bucket{path="/compose",le="0.2"}': "0+10x400",
    'image_builder_composer_http_duration_seconds_count{path="/compose"}': "0+10x400",
    'image_builder_worker_http_duration_seconds_bucket{path="/workers",le="0.2"}': "0+10x400",
    'image_builder_worker_http_duration_seconds_count{path="/workers"}': "0+10x400",
    'image_builder_worker_http_duration_seconds_bucket{path="/jobs",le="0.2"}': "0x400",
    'image_builder_worker_http_duration_seconds_count{path="/jobs"}': "0+10x400",
    'image_builder_worker_total_jobs{type="convert",status="2xx"}': "0+1x400",
    'image_builder_worker_total_jobs{type="convert",status="5xx"}': "0x400",
}
"""Minutes: series and their values. Long polls take long."""

FAULTS: dict[str, tuple[dict[str, str], set[tuple[str, str]]]] = {
    "none": ({}, set()),
    "absent": (dict.fromkeys(HEALTHY, "_x400"), {("ImageJobsAbsent", "critical")}),
    "engine": ({"image_builder_engine_up": "0x400"}, {("ImageJobsEngineDown", "critical")}),
    "workers": (
        {
            'image_builder_worker_pending_jobs{type="convert",tenant=""}': "3x400",
            'image_builder_worker_running_jobs{type="convert",tenant=""}': "0x400",
            'image_builder_worker_active_workers{tenant="",arch="x86_64"}': "_x400",
        },
        {("ImageJobsNoWorkers", "critical")},
    ),
    "waiting": (
        {'image_builder_worker_pending_jobs{type="convert",tenant=""}': "3x400"},
        {("ImageJobsWait", "warning")},
    ),
    "kind-without-workers": (
        {'image_builder_worker_pending_jobs{type="upload",tenant=""}': "1x400"},
        {("ImageJobsWait", "warning")},
    ),
    "ec2-requests": (
        {'image_builder_ec2_request_count{path="DescribeConversionTasks",code="503"}': "0+1x400"},
        {("ImageJobsEc2RequestsFail", "warning")},
    ),
    "requests": (
        {"image_builder_composer_total_failed_compose_requests": "0+8x400"},
        {("ImageJobsComposeRequestsFail", "critical"), ("ImageJobsComposeRequestsFail", "warning")},
    ),
    "few-requests": (
        {"image_builder_composer_total_failed_compose_requests": "0+1x400"},
        {("ImageJobsComposeRequestsFail", "warning")},
    ),
    "composer-slow": (
        {'image_builder_composer_http_duration_seconds_bucket{path="/compose",le="0.2"}': "0+9x400"},
        {("ImageJobsComposerSlow", "warning")},
    ),
    "worker-slow": (
        {'image_builder_worker_http_duration_seconds_bucket{path="/workers",le="0.2"}': "0+9x400"},
        {("ImageJobsWorkerApiSlow", "warning")},
    ),
    "jobs": (
        {'image_builder_worker_total_jobs{type="convert",status="5xx"}': "0+1x400"},
        {("ImageJobsFail", "warning")},
    ),
}


def test_each_alert_has_a_fault() -> None:
    fired = set().union(*(alerts for _, alerts in FAULTS.values()))
    assert fired == {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}


@pytest.mark.acceptance
def test_alerts_fire_at_their_fault_alone(tmp_path: Path) -> None:
    order = [group["name"] for group in yaml.safe_load(FILE.read_text())["groups"]]
    document = {
        "rule_files": [str(FILE)],
        "evaluation_interval": "5m",
        "group_eval_order": order,
        "tests": [alerts_test(fault) for fault in FAULTS],
    }
    file = tmp_path / "test.json"
    file.write_text(json.dumps(document))
    run_client("promtool", "test", "rules", file)


def alerts_test(fault: str) -> dict[str, Any]:
    """Return promtool's test of a fault."""
    changed, alerts = FAULTS[fault]
    values = {**HEALTHY, **changed}

    def with_target(name: str) -> str:
        labels = 'job="jobs",instance="a:1"'
        return f"{name[:-1]},{labels}}}" if "{" in name else f"{name}{{{labels}}}"

    query = 'group by (alertname, severity) (ALERTS{alertstate="firing"})'
    expected = [
        {"labels": f'{{alertname="{name}",severity="{level}"}}', "value": 1} for name, level in alerts
    ]
    return {
        "name": fault,
        "interval": "1m",
        "input_series": [{"series": with_target(name), "values": each} for name, each in values.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "390m", "exp_samples": expected}],
    }
