"""The requests and TLS handshakes that failed last, for those who run the service.

Among them are warnings: reasons for which a boot may fail although the response is right.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.server.http.redaction import redact_detail, redact_target
from image_service.server.transport.exchanges.access_log import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from image_service.server.transport.exchanges.exchange import Exchange

MAX_FAILURES = 200
MAX_WARNED = 1024
WARNING_SECONDS = 600.0
"""How long a warning is not repeated: a machine that reads by sectors sends thousands of such requests."""


@attrs.frozen
class Failure:
    """A request that was refused or aborted, a TLS handshake that failed, or a warning.

    Args:
        time: seconds since the epoch.
        client: its address, as trusted proxies report it.
        reason: in words, without credentials.
        path: without credentials; None: there was no request, or none that could be read.
        status: of the response; None: there was none.
    """

    time: float
    client: str
    reason: str
    path: str | None = None
    status: int | None = None


class RecentFailures:
    """The latest `MAX_FAILURES` failures.

    Args:
        wall_clock: returns seconds since the epoch.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._failures: deque[Failure] = deque(maxlen=MAX_FAILURES)
        self._warned: LruCache[tuple[str, str, str], float] = LruCache(MAX_WARNED)

    def record_exchange(self, exchange: Exchange, client: str, outcome: str) -> None:
        """Record a request with an error as response, or whose response was aborted; a probe is neither.

        Args:
            outcome: `COMPLETE`, or the reason of the abort in words.
        """
        if exchange.is_probe:
            return
        problem = exchange.problem
        reasons = [] if problem is None else [redact_detail(problem.detail)]
        if outcome != COMPLETE:
            reasons.append(outcome)
        path = redact_target(exchange.target) if exchange.target else None
        self.record(client, "; ".join(reasons), path, exchange.status or None)

    def record_warnings(self, exchange: Exchange, client: str, warnings: Iterable[str]) -> None:
        """Record reasons for which a boot may fail, each once in `WARNING_SECONDS`."""
        path, now = redact_target(exchange.target), self._wall_clock()
        for warning in warnings:
            key = client, path, warning
            warned_at = self._warned.get(key)
            if warned_at is None or abs(now - warned_at) >= WARNING_SECONDS:
                self._warned[key] = now
                self.record(client, warning, path, exchange.status)

    def record(self, client: str, reason: str, path: str | None = None, status: int | None = None) -> None:
        """Record a failure of now."""
        self._failures.append(Failure(self._wall_clock(), client, reason, path, status))

    def collect(self) -> list[tuple[float, str, str, str | None, int | None]]:
        """Return the fields of each failure, for JSON, and forget them."""
        collected = [attrs.astuple(failure) for failure in self._failures]
        self._failures.clear()
        return collected


class FailureList:
    """The latest `MAX_FAILURES` failures of all processes, in the order in which they were collected."""

    def __init__(self) -> None:
        self._failures: deque[tuple[int, Failure]] = deque(maxlen=MAX_FAILURES)
        self.revision = 0
        """Number of the latest."""

    def merge(self, collected: Iterable[Iterable[object]]) -> None:
        """Add the result of `RecentFailures.collect`."""
        for fields in collected:
            self.revision += 1
            self._failures.append((self.revision, Failure(*fields)))  # type: ignore[arg-type]  # by `collect`

    def after(self, revision: int = 0) -> list[Failure]:
        """Return the failures after a revision, in order."""
        return [failure for number, failure in self._failures if number > revision]
