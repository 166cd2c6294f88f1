"""The gauges of remote base images."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.common.files.block_cache.counters import CacheCounters

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.catalog.remote.opening import RemoteImages
    from image_service.server.observability.metrics import Metrics

SAMPLE_SECONDS = 30
"""Between two measurements of the disk."""


def add_remote_gauges(metrics: Metrics, parts: PartsStack, remote: RemoteImages, *, is_leader: bool) -> None:
    """Have the metrics page show the counts of this process; of all of them, the leader shows the disk.

    Nothing is shown before there is a remote image.
    """

    def count() -> CacheCounters | None:
        return remote.cache.counters if remote.is_started else None

    def by_outcome(counters: CacheCounters) -> dict[str, float]:
        others = counters.changed_origins + counters.digest_faults
        return {
            "fetched": counters.fetches,
            "changed": counters.changed_origins,
            "digest": counters.digest_faults,
            "failed": counters.failed_fetches - others,
        }

    reads: dict[str, Callable[[CacheCounters], dict[str, float]]] = {
        "remote_read_bytes_total": lambda each: {"present": each.asked_bytes, "absent": each.missed_bytes},
        "remote_fetched_bytes_total": lambda each: {"": each.fetched_bytes},
        "remote_fetches_total": by_outcome,
        "remote_fetch_seconds_total": lambda each: {"": each.fetch_seconds},
        "remote_evicted_blocks_total": lambda each: {
            "evicted": each.evicted_granules,
            "fetched-again": each.refetched_granules,
        },
    }
    for name, read in reads.items():
        metrics.read_counts(name, partial(_read, read, count))
    metrics.read_gauge("remote_waiting_readers", lambda: each.waiting if (each := count()) else None)
    metrics.read_gauge("remote_in_flight_bytes", lambda: each.in_flight_bytes if (each := count()) else None)
    if is_leader:
        _add_disk_gauges(metrics, parts, remote)


def _read(
    read: Callable[[CacheCounters], dict[str, float]], count: Callable[[], CacheCounters | None]
) -> dict[str, float]:
    return read(count() or CacheCounters())


def _add_disk_gauges(metrics: Metrics, parts: PartsStack, remote: RemoteImages) -> None:
    in_thread = parts.in_thread_pool(1, "remote cache")
    latest: list[int] = []

    async def measure() -> None:
        if remote.is_started:
            latest[:] = [await in_thread(remote.cache.allocated_bytes)]

    parts.call_every(SAMPLE_SECONDS, measure, now=True)
    metrics.read_gauge("remote_cache_bytes", lambda: latest[0] if latest else None)
    metrics.read_gauge("remote_cache_limit_bytes", lambda: remote.max_bytes if remote.is_started else None)
