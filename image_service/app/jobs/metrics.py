"""Starts the metrics of the jobs role."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.metrics.row_counts import SAMPLE_SECONDS, RowCounts

if TYPE_CHECKING:
    from image_service.app.jobs.engine import StartedEngine
    from image_service.app.jobs.rows import JobsRows
    from image_service.common.concurrency.parts import PartsStack


def start_metrics(
    parts: PartsStack, rows: JobsRows, engine: StartedEngine, heartbeat_seconds: float
) -> JobsMetrics:
    """Return the metrics, and update those of engine and rows from now on."""
    metrics = JobsMetrics()
    metrics.watch_engine(lambda: engine.connection.is_available)
    counts = RowCounts(
        metrics,
        rows.composes,
        rows.jobs,
        rows.workers,
        rows.tasks,
        heartbeat_seconds,
        parts.in_thread_pool(1, "metrics"),
    )
    parts.call_every(SAMPLE_SECONDS, counts.sample, now=True)
    return metrics
