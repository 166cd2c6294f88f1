from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
import pytest
from prometheus_client.parser import text_string_to_metric_families

from image_service.jobs.metrics.jobs_metrics import COMPOSER, WORKER, JobsMetrics, MeasuredRequest
from image_service.jobs.model import Job, JobError, JobState, JobType

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
JOB = Job(
    id="1",
    compose_id="2",
    tenant="org-42",
    step="convert",
    type=JobType.CONVERT,
    architecture="x86_64",
    state=JobState.RUNNING,
    attempt=1,
    queued_at=NOON,
    started_at=NOON + timedelta(seconds=3),
)


def samples(metrics: JobsMetrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Return the samples that Prometheus reads, by name and labels."""
    page, media_type = metrics.render()
    assert media_type.startswith("text/plain; version=0.0.4")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def value(metrics: JobsMetrics, name: str, **labels: str) -> float | None:
    return samples(metrics).get((f"image_builder_{name}", frozenset(labels.items())))


def test_requests_for_composes_are_counted_by_outcome() -> None:
    metrics = JobsMetrics()
    for status in (201, 400, 503, 507):
        metrics.record_request(COMPOSER, MeasuredRequest("POST", "/compose", status, "org-42", 0.03))
    metrics.record_request(COMPOSER, MeasuredRequest("GET", "/composes/{id}", 500, "org-42", 0.03))
    assert value(metrics, "composer_total_requests") == 5
    assert value(metrics, "composer_total_compose_requests") == 4
    assert value(metrics, "composer_total_failed_compose_requests") == 1


@pytest.mark.parametrize("api", [COMPOSER, WORKER])
def test_requests_have_their_route_and_tenant(api: str) -> None:
    metrics = JobsMetrics()
    metrics.record_request(api, MeasuredRequest("GET", "/status", 200, "", 0.15))
    counted = {"method": "GET", "path": "/status", "code": "200", "subsystem": api, "tenant": ""}
    assert value(metrics, f"{api}_request_count", **counted) == 1
    for bound, count in (("0.1", 0), ("0.2", 1)):
        timed = value(metrics, f"{api}_http_duration_seconds_bucket", path="/status", tenant="", le=bound)
        assert timed == count
    assert (value(metrics, "composer_total_requests") == 1) is (api == COMPOSER)


def test_refused_requests_have_the_code_of_their_error() -> None:
    metrics = JobsMetrics()
    for code in ("AuthFailure", "SignatureDoesNotMatch", "AuthFailure"):
        metrics.record_refused_request(code)
    assert value(metrics, "ec2_refused_requests", code="AuthFailure") == 2


def test_counts_are_there_before_the_first_event() -> None:
    assert value(JobsMetrics(), "composer_total_failed_compose_requests") == 0


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "2xx"), (JobError(5, "manifest"), "4xx"), (JobError(27, "worker stopped"), "5xx")],
    ids=["success", "of-the-user", "of-the-service"],
)
def test_jobs_are_counted_when_they_end(error: JobError | None, status: str) -> None:
    metrics = JobsMetrics(now=lambda: NOON + timedelta(seconds=13))
    metrics.record_job_end(JOB, error)
    labels = {"type": "convert", "status": status, "tenant": "org-42", "arch": "x86_64"}
    assert value(metrics, "worker_total_jobs", **labels) == 1
    assert value(metrics, "worker_job_duration_seconds_sum", **labels) == 10


def test_only_the_first_attempt_of_a_job_has_waited() -> None:
    metrics = JobsMetrics()
    metrics.record_job_start(JOB)
    metrics.record_job_start(attrs.evolve(JOB, attempt=2))
    labels = {"type": "convert", "tenant": "org-42", "arch": "x86_64"}
    assert value(metrics, "worker_job_wait_duration_seconds_sum", **labels) == 3
    assert value(metrics, "worker_job_wait_duration_seconds_count", **labels) == 1


def test_engine_is_up_while_it_answers() -> None:
    metrics = JobsMetrics()
    assert value(metrics, "engine_up") == 0
    metrics.watch_engine(lambda: True)
    assert value(metrics, "engine_up") == 1
