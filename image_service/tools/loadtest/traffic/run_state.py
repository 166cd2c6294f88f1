"""The state that all clients of a load test share: the plan, the counters, and when the test is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from image_service.tools.loadtest.traffic.counters import LoadCounters
from image_service.tools.loadtest.traffic.objectives import Timing
from image_service.tools.loadtest.traffic.profiles import Profile
from image_service.tools.loadtest.traffic.verification import BlockDigests

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.tools.loadtest.traffic.connection import ClientConnection
    from image_service.tools.loadtest.traffic.dialer import Dialer
    from image_service.tools.loadtest.traffic.plan import ImageTarget, Plan, ServerOrigin
    from image_service.tools.loadtest.traffic.verification import ReadComparer

MAX_RAMP_UP_SECONDS = 2.0
"""Clients start one after the other over this time, so that they do not overflow the listen backlog."""


class RunState:
    """The shared state of one run.

    Args:
        clock: seconds, for measuring.
        blocks: compares what is read; None: with earlier reads.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        plan: Plan,
        dialer: Dialer,
        clock: Callable[[], float],
        blocks: ReadComparer | None = None,
    ) -> None:
        self.plan = plan
        self.clock = clock
        self.counters = LoadCounters(
            Timing.FIRST_BYTE if plan.profile is Profile.DOWNLOAD else Timing.REQUEST
        )
        self.blocks: ReadComparer = blocks or BlockDigests()
        self.started_at = clock()
        self._reactor = reactor
        self._dialer = dialer
        self._ends_at = self.started_at + plan.seconds
        self._requested: set[int] = set()
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in plan.fields)
        self._is_overdue = False

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return self.clock() - self.started_at

    @property
    def is_over(self) -> bool:
        """True when clients send no further requests."""
        return self.clock() >= self._ends_at

    def stop(self, *, overdue: bool) -> None:
        """Let no client send further requests.

        Args:
            overdue: outstanding requests had time for a response, so each counts as an error.
        """
        self._ends_at = min(self._ends_at, self.clock())
        self._is_overdue = overdue

    async def connect(self, origin: ServerOrigin, number: int) -> ClientConnection:
        """Connect a client, as `Dialer.connect` does; its content is counted."""
        return await self._dialer.connect(origin, number, self._count_content, self.plan.bytes_per_second)

    async def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the end of the run."""
        seconds = min(seconds, self._ends_at - self.clock())
        if seconds > 0:
            await deferLater(self._reactor, seconds)

    def start_delay(self, number: int) -> float:
        """Return how many seconds client `number` waits before its first request."""
        return min(MAX_RAMP_UP_SECONDS, self.plan.seconds / 10) * number / self.plan.clients

    def encode_request(self, target: ImageTarget, method: str, fields: str) -> bytes:
        """Return a request head; `fields` are further lines, each with its line end."""
        lines = f"{method} {target.path} HTTP/1.1\r\nHost: {target.origin.netloc}\r\n"
        return f"{lines}User-Agent: image-service-loadtest\r\n{self._fields}{fields}\r\n".encode("ascii")

    def is_first_request(self, image: int) -> bool:
        """Return True at the first call for an image."""
        if image in self._requested:
            return False
        self._requested.add(image)
        return True

    def record_unanswered(self) -> None:
        """Count an outstanding request that was canceled at the end, if it had time for a response."""
        if self._is_overdue:
            self.counters.record_error("unanswered")

    def _count_content(self, byte_count: int) -> None:
        self.counters.byte_count += byte_count
