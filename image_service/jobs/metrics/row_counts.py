"""Counts of rows for the metrics: right after a restart too, and with several replicas."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import StoreFailed
from image_service.jobs.model import JobState

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import InThread
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.database.tasks import TaskRepository
    from image_service.jobs.database.workers import WorkerRepository
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics

SAMPLE_SECONDS = 15.0
MOST_TENANTS = 100
"""That have a series of their bytes."""


@attrs.frozen(eq=False)
class RowCounts:
    """Counts composes, jobs, workers and EC2's tasks; its owner calls `sample` every `SAMPLE_SECONDS`.

    Args:
        metrics: show the counts, and none while the database does not answer.
        heartbeat_seconds: a worker without a request for longer does not count.
    """

    metrics: JobsMetrics
    composes: ComposeRepository
    jobs: JobRepository
    workers: WorkerRepository
    tasks: TaskRepository
    heartbeat_seconds: float
    in_thread: InThread

    async def sample(self) -> None:
        """Count now."""
        metrics = self.metrics
        gauges = (
            *(metrics.composes, metrics.pending_jobs, metrics.running_jobs, metrics.active_workers),
            *(metrics.tasks, metrics.worker_isolation, metrics.tenant_bytes, metrics.tenant_max_bytes),
        )
        try:
            counts = await self.in_thread(self._count)
        except StoreFailed:
            counts = ({},) * len(gauges)
        for gauge, values in zip(gauges, counts, strict=True):
            gauge.values = values

    def _count(self) -> tuple[dict[tuple[str, ...], float], ...]:
        """Return the values of the gauges."""
        by_state: dict[JobState, Counter[tuple[str, ...]]] = {state: Counter() for state in JobState}
        for each in self.jobs.count():
            by_state[each.state][each.type, each.tenant] += each.count
        largest = self.composes.largest_tenants(MOST_TENANTS)
        seen_since = datetime.now(UTC) - timedelta(seconds=self.heartbeat_seconds)
        return (
            {(state,): count for state, count in self.composes.count_by_state().items()},
            {**by_state[JobState.QUEUED]},
            {**by_state[JobState.RUNNING]},
            dict(self.workers.count(seen_since).items()),
            dict(self.tasks.count().items()),
            dict(self.workers.count_by_isolation(seen_since).items()),
            {(tenant,): taken for tenant, (taken, _) in largest.items()},
            {(tenant,): most for tenant, (_, most) in largest.items()},
        )
