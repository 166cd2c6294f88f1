"""Exponential back-off with jitter."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_DOUBLINGS = 60  # any delay has reached its limit by then; more would overflow


@attrs.frozen
class Backoff:
    """Delays between retries.

    Args:
        min_seconds: upper bound after the first failure.
        max_seconds: upper bound after many.
    """

    min_seconds: float = 1.0
    max_seconds: float = 300.0
    jitter: Callable[[float, float], float] = random.uniform

    def delay_seconds(self, failures: int, retry_after_seconds: int | None = None) -> float:
        """Return how long to wait before the next attempt.

        Args:
            failures: in a row, at least one; each doubles the upper bound.
            retry_after_seconds: the peer's ``Retry-After``, a lower bound.
        """
        doubled = self.min_seconds * 2.0 ** min(failures - 1, _MAX_DOUBLINGS)
        seconds = min(self.max_seconds, doubled)
        return max(self.jitter(seconds / 2, seconds), retry_after_seconds or 0)
