"""The metrics of the jobs role, and their page. Recording happens in the reactor's thread."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, Gauge, Histogram, generate_latest

from image_service import __version__
from image_service.jobs.metrics.families import PREFIX, EventCounts, ReadGauges
from image_service.server.observability.process import ProcessMetrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.jobs.model import Job, JobError

COMPOSER = "composer"
WORKER = "worker"
REGISTRY = "registry"
EC2 = "ec2"
"""The APIs whose requests are counted."""

COMPOSE_PATH = "/compose"
HTTP_BOUNDS_SECONDS = (
    *(0.025, 0.05, 0.075, 0.1, 0.2, 0.5, 0.75, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20),
)
JOB_BOUNDS_SECONDS = (
    *(0.1, 0.2, 0.5, 1, 2, 4, 8, 16, 32, 40, 48, 64, 96, 128, 160, 192, 224, 256, 320, 382, 448, 512, 640),
    *(768, 896, 1024, 1280, 1536, 1792, 2049, 3072, 4096, 8192, 16384, 32768, 86400),
)
_USER_ERRORS = frozenset({1, 2, 3, 4, 5, 9, 19, 20, 21, 24, 26})
"""Numbers of job errors that osbuild-composer counts as the user's."""


@attrs.frozen
class MeasuredRequest:
    """A request that was authenticated and answered.

    Args:
        path: of the route, below the API's; the name of the operation of EC2.
        seconds: until there was a response; not until its content was sent.
    """

    method: str
    path: str
    status: int
    tenant: str
    seconds: float


class JobsMetrics:
    """All metrics of the process."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now
        self._registry = registry = CollectorRegistry()
        ProcessMetrics(registry=registry)
        build = Gauge(f"{PREFIX}build_info", "Always 1.", ["version"], registry=registry)
        build.labels(__version__).set(1)

        def count(name: str, description: str, *labels: str) -> EventCounts:
            counts = EventCounts(name, description, *labels)
            registry.register(counts)
            return counts

        def gauge(name: str, description: str, *labels: str) -> ReadGauges:
            gauges = ReadGauges(name, description, *labels)
            registry.register(gauges)
            return gauges

        def histogram(name: str, description: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(PREFIX + name, description, labels, buckets=bounds, registry=registry)

        self._requests = count("composer_total_requests", "Requests to the composer API.")
        self._compose_requests = count("composer_total_compose_requests", "Requests for a compose.")
        self._failed_compose_requests = count(
            "composer_total_failed_compose_requests",
            "Requests for a compose that ended with a 5xx but 507, which is the tenant's.",
        )
        of_request = ("method", "path", "code", "subsystem", "tenant")
        self._request_counts = {
            api: count(f"{api}_request_count", "Requests by route and status.", *of_request)
            for api in (COMPOSER, WORKER, EC2, REGISTRY)
        }
        self._request_seconds = {
            api: histogram(
                f"{api}_http_duration_seconds",
                "Seconds from a request's head to its response.",
                HTTP_BOUNDS_SECONDS,
                "path",
                "tenant",
            )
            for api in (COMPOSER, WORKER, EC2, REGISTRY)
        }
        self.pending_jobs = gauge("worker_pending_jobs", "Jobs that wait for a worker.", "type", "tenant")
        self.running_jobs = gauge("worker_running_jobs", "Jobs that a worker has.", "type", "tenant")
        self.active_workers = gauge(
            "worker_active_workers", "Workers seen within the heartbeat limit.", "tenant", "arch"
        )
        self.worker_isolation = gauge(
            "worker_isolation",
            "Workers seen within the heartbeat limit, by what keeps their programs from the host.",
            *("tenant", "arch", "isolation"),
        )
        self.composes = gauge("composes", "Composes by state.", "state")
        self.tasks = gauge("ec2_tasks", "Imports and exports by kind and state.", "kind", "state")
        self.tenant_bytes = gauge(
            "tenant_bytes", "Bytes of rows, artifacts and images, of the tenants with the most.", "tenant"
        )
        self.tenant_max_bytes = gauge("tenant_max_bytes", "Bytes that these tenants may have.", "tenant")
        self._refused_requests = count(
            "ec2_refused_requests", "Requests without a valid signature, by EC2's error code.", "code"
        )
        self._ended_jobs = count("worker_total_jobs", "Jobs that ended.", "type", "status", "tenant", "arch")
        self._job_seconds = histogram(
            "worker_job_duration_seconds",
            "Seconds from a job's start to its end.",
            JOB_BOUNDS_SECONDS,
            *("type", "status", "tenant", "arch"),
        )
        self._wait_seconds = histogram(
            "worker_job_wait_duration_seconds",
            "Seconds for which a job waited for a worker.",
            JOB_BOUNDS_SECONDS,
            *("type", "tenant", "arch"),
        )
        self._engine = Gauge(
            f"{PREFIX}engine_up", "1 if the job engine has answered to the latest check.", registry=registry
        )

    def watch_engine(self, is_available: Callable[[], bool]) -> None:
        """Show the availability of the job engine from now on."""
        self._engine.set_function(lambda: float(is_available()))

    def record_request(self, api: str, request: MeasuredRequest) -> None:
        """Record a request to `COMPOSER`, `WORKER`, `EC2` or `REGISTRY`."""
        labels = request.method, request.path, str(request.status), api, request.tenant
        self._request_counts[api].increment(*labels)
        self._request_seconds[api].labels(request.path, request.tenant).observe(request.seconds)
        if api == COMPOSER:
            self._requests.increment()
            if (request.method, request.path) == ("POST", COMPOSE_PATH):
                self._record_compose_request(request.status)

    def _record_compose_request(self, status: int) -> None:
        self._compose_requests.increment()
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.INSUFFICIENT_STORAGE:
            self._failed_compose_requests.increment()

    def record_refused_request(self, code: str) -> None:
        """Record a request to `EC2` without a valid signature, by EC2's code of the error."""
        self._refused_requests.increment(code)

    def record_job_start(self, job: Job) -> None:
        """Record that a worker got an attempt of a job; only the first has waited since it was queued."""
        if job.attempt == 1 and job.queued_at is not None and job.started_at is not None:
            waited = (job.started_at - job.queued_at).total_seconds()
            self._wait_seconds.labels(job.type, job.tenant, job.architecture).observe(waited)

    def record_job_end(self, job: Job, error: JobError | None) -> None:
        """Record that a job has ended; None: it has succeeded."""
        kind = (job.type, status_of_job(error), job.tenant, job.architecture)
        self._ended_jobs.increment(*kind)
        if job.started_at is not None:
            self._job_seconds.labels(*kind).observe((self._now() - job.started_at).total_seconds())

    def render(self) -> tuple[bytes, str]:
        """Return the page and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_PLAIN_0_0_4


def status_of_job(error: JobError | None) -> str:
    """Return ``2xx`` for success, ``4xx`` for an error of the user, ``5xx`` for one of the service."""
    if error is None:
        return "2xx"
    return "4xx" if error.id in _USER_ERRORS else "5xx"
