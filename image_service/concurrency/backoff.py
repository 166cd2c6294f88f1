"""When to try again: later each time, not all at once, and not before the origin wants to be asked."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_DOUBLINGS = 60  # any time has reached its limit by then; more would overflow in the end


@attrs.frozen
class Backoff:
    """Exponential back-off with jitter.

    Args:
        min_seconds: after the first failure.
        max_seconds: after many.
        jitter: gives a number between two others.
    """

    min_seconds: float = 1.0
    max_seconds: float = 300.0
    jitter: Callable[[float, float], float] = random.uniform

    def delay(self, failures: int, retry_after_seconds: int | None = None) -> float:
        """Tell how long to wait.

        Args:
            failures: in a row, at least one.
            retry_after_seconds: what the other side asked for; None: nothing.

        Returns:
            seconds: between half and all of what is twice as long after each further failure, and not less
            than what was asked for.
        """
        doubled = self.min_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS)
        seconds = min(self.max_seconds, doubled)
        return max(self.jitter(seconds / 2, seconds), retry_after_seconds or 0)
