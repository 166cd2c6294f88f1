"""A limit on how often something is done: for log lines that would repeat one cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from image_service.concurrency.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted.internet.interfaces import IReactorTime

MAX_KEYS = 256
BURST = 5
INTERVAL_SECONDS = 60.0

_Key = TypeVar("_Key", bound="Hashable")


@attrs.define
class _Bucket:
    tokens: float
    filled_at: float
    suppressed: int = 0


class RateLimiter(Generic[_Key]):
    """Admits `BURST` events of a key at once, and another one for each `INTERVAL_SECONDS` that pass.

    Beyond `MAX_KEYS` the key that was used least recently is forgotten, with its count.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._buckets: LruCache[_Key, _Bucket] = LruCache(MAX_KEYS)

    def admit(self, key: _Key) -> int | None:
        """Return how many events of a key were suppressed since the last one; None: this one is too."""
        now = self._clock.seconds()
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(BURST, now)
        bucket.tokens = min(BURST, bucket.tokens + (now - bucket.filled_at) / INTERVAL_SECONDS)
        bucket.filled_at = now
        if bucket.tokens < 1:
            bucket.suppressed += 1
            return None
        bucket.tokens -= 1
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed
