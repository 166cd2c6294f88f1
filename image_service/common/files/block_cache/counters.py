"""The counts of the block cache, for the metrics."""

from __future__ import annotations

import attrs


@attrs.define
class CacheCounters:
    """Sums since the start of the process. Threads add to them without a lock, so a few may get lost.

    Args:
        asked_bytes: that senders found present.
        missed_bytes: that senders had to wait for.
        fetch_seconds: of all fetches together.
        failed_fetches: of these, no bytes came.
        changed_origins: fetches that found another version.
        digest_faults: granules that did not have their digest.
        evicted_granules: of all versions.
        refetched_granules: fetched after they had been evicted.
        waiting: readers that wait for a fetch now.
    """

    asked_bytes: int = 0
    missed_bytes: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    fetch_seconds: float = 0.0
    failed_fetches: int = 0
    changed_origins: int = 0
    digest_faults: int = 0
    evicted_granules: int = 0
    refetched_granules: int = 0
    waiting: int = 0
    in_flight_bytes: int = 0
