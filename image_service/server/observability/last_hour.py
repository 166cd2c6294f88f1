"""What the service has done in each minute of the last hour."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTES = 60
_SECONDS = 60


@attrs.define
class MinuteActivity:
    """What the service has done in a minute.

    Args:
        requests: that have ended.
        bytes_sent: those that the kernel has accepted, heads included.
        machines: the most that read an image at a time.
    """

    requests: int = 0
    bytes_sent: int = 0
    machines: int = 0


class LastHour:
    """The activity of the last `MINUTES` that have begun."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[int, MinuteActivity]] = deque(maxlen=MINUTES)

    def add(self, now: float, requests: int, bytes_sent: int) -> None:
        """Add what was done until now, the clock's seconds."""
        minute = self._present(now)
        minute.requests += requests
        minute.bytes_sent += bytes_sent

    def observe_machines(self, now: float, count: int) -> None:
        """Record how many machines read an image now."""
        minute = self._present(now)
        minute.machines = max(minute.machines, count)

    def _present(self, now: float) -> MinuteActivity:
        number = int(now // _SECONDS)
        if not self._minutes or self._minutes[-1][0] != number:
            self._minutes.append((number, MinuteActivity()))
        return self._minutes[-1][1]

    def minutes(self, now: float) -> Sequence[MinuteActivity]:
        """Return all minutes, the oldest first; the last one has not ended."""
        known, last = dict(self._minutes), int(now // _SECONDS)
        return [known.get(each, MinuteActivity()) for each in range(last - MINUTES + 1, last + 1)]
