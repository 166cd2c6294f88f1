"""A limit on how often something is done: for log lines that would repeat one cause, and for guesses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

import attrs

from image_service.common.concurrency.lru import LruCache

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
    """Admits some events of a key at once, and another one for each interval that passes.

    Args:
        burst: events that are admitted at once.
        max_keys: beyond that, the key that was used least recently is forgotten, with its count.
    """

    def __init__(
        self,
        clock: IReactorTime,
        burst: int = BURST,
        interval_seconds: float = INTERVAL_SECONDS,
        max_keys: int = MAX_KEYS,
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._interval_seconds = interval_seconds
        self._buckets: LruCache[_Key, _Bucket] = LruCache(max_keys)

    def is_exhausted(self, key: _Key) -> bool:
        """Return True if the next event of a key would be suppressed."""
        bucket = self._buckets.get(key)
        return bucket is not None and self._fill(bucket) < 1

    def admit(self, key: _Key) -> int | None:
        """Return how many events of a key were suppressed since the last one; None: this one is too."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self._burst, self._clock.seconds())
        if self._fill(bucket) < 1:
            bucket.suppressed += 1
            return None
        bucket.tokens -= 1
        suppressed, bucket.suppressed = bucket.suppressed, 0
        return suppressed

    def _fill(self, bucket: _Bucket) -> float:
        """Add the tokens of the time that has passed, and return how many there are."""
        now = self._clock.seconds()
        bucket.tokens = min(self._burst, bucket.tokens + (now - bucket.filled_at) / self._interval_seconds)
        bucket.filled_at = now
        return bucket.tokens
