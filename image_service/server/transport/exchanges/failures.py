"""The requests and TLS handshakes that failed last, for those who run the service.

Among them are warnings: reasons for which a boot may fail although the response is right.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.server.http.redaction import redact_detail, redact_target
from image_service.server.transport.exchanges.access_log import COMPLETE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from image_service.server.transport.exchanges.exchange import Exchange
    from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure

MAX_FAILURES = 200
MAX_USER_AGENT = 200
"""Characters of a user agent that are kept."""
MAX_WARNED = 1024
WARNING_SECONDS = 600.0
"""How long a warning is not repeated: a machine that reads by sectors sends thousands of such requests."""


WARNING = "warning"
"""The cause of warnings."""
ABORTED = "aborted-"
"""Before the reason of an abort: its cause."""
TLS = "tls-"
"""Before the reason why a handshake failed: its cause."""


@attrs.frozen
class Failure:
    """A request that was refused or aborted, a TLS handshake that failed, or a warning.

    Args:
        time: seconds since the epoch.
        client: its address, as trusted proxies report it.
        reason: in words, without credentials.
        cause: the kind of the reason: the code of the problem, `WARNING`, or why a response or a TLS
            handshake did not come to its end.
        path: without credentials; None: there was no request, or none that could be read.
        status: of the response; None: there was none.
        request_id: by which the log names the request; empty: it has none.
        user_agent: as sent.
    """

    time: float
    client: str
    reason: str
    cause: str
    path: str | None = None
    status: int | None = None
    request_id: str = ""
    user_agent: str = ""


class RecentFailures:
    """The latest `MAX_FAILURES` failures.

    Args:
        wall_clock: returns seconds since the epoch.
    """

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._failures: deque[Failure] = deque(maxlen=MAX_FAILURES)
        self._counts: Counter[str] = Counter()
        self._warned: LruCache[tuple[str, str, str], float] = LruCache(MAX_WARNED)

    def record_exchange(
        self, exchange: Exchange, client: str, outcome: str, abort: AbortReason | None = None
    ) -> None:
        """Record a request with an error as response, or whose response was aborted; a probe is neither.

        Args:
            outcome: `COMPLETE`, or the reason of the abort in words.
            abort: None: there was none.
        """
        if exchange.is_probe:
            return
        problem = exchange.problem
        reasons = [] if problem is None else [redact_detail(problem.detail)]
        if outcome != COMPLETE:
            reasons.append(outcome)
        ended = "" if abort is None else f"{ABORTED}{abort.value}"
        self._record(client, "; ".join(reasons), ended if problem is None else problem.code, exchange)

    def record_warnings(self, exchange: Exchange, client: str, warnings: Iterable[str]) -> None:
        """Record reasons for which a boot may fail, each once in `WARNING_SECONDS`."""
        path, now = redact_target(exchange.target), self._wall_clock()
        for warning in warnings:
            key = client, path, warning
            warned_at = self._warned.get(key)
            if warned_at is None or abs(now - warned_at) >= WARNING_SECONDS:
                self._warned[key] = now
                self._record(client, warning, WARNING, exchange)

    def _record(self, client: str, reason: str, cause: str, exchange: Exchange) -> None:
        path = redact_target(exchange.target) if exchange.target else None
        failure = Failure(
            self._wall_clock(),
            client,
            reason,
            cause,
            path,
            exchange.status or None,
            exchange.request_id,
            redact_detail(exchange.user_agent, MAX_USER_AGENT),
        )
        self._append(failure)

    def record_handshake(self, client: str, failure: HandshakeFailure, reason: str) -> None:
        """Record a TLS handshake that has failed now."""
        self._append(Failure(self._wall_clock(), client, reason, f"{TLS}{failure.value}"))

    def _append(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._counts[failure.cause] += 1

    def collect(self) -> list[tuple[Any, ...]]:
        """Return the fields of each failure, for JSON, and forget them."""
        collected = [attrs.astuple(failure) for failure in self._failures]
        self._failures.clear()
        return collected

    def collect_counts(self) -> dict[str, int]:
        """Return how many failures of each cause there were since the last call, listed or not."""
        counts, self._counts = dict(self._counts), Counter()
        return counts


class FailureList:
    """The latest `MAX_FAILURES` failures of all processes, in the order in which they were collected."""

    def __init__(self) -> None:
        self._failures: deque[tuple[int, Failure]] = deque(maxlen=MAX_FAILURES)
        self.revision = 0
        """Number of the latest."""
        self.counts: Counter[str] = Counter()
        """By cause, of all since the start: causes are few, and written in the code."""

    def merge(self, collected: Iterable[Iterable[object]], counts: Mapping[str, int]) -> None:
        """Add the results of `RecentFailures.collect` and `collect_counts`."""
        self.counts.update(counts)
        for fields in collected:
            self.revision += 1
            self._failures.append((self.revision, Failure(*fields)))  # type: ignore[arg-type]  # by `collect`

    def after(self, revision: int = 0) -> list[Failure]:
        """Return the failures after a revision, in order."""
        return [failure for number, failure in self._failures if number > revision]
