"""What all clients of a load test share: what they are to do, what they count, and when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.task import deferLater

from image_service.loadtest.objectives import Timing
from image_service.loadtest.tally import Tally
from image_service.loadtest.verification import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.loadtest.connection import Connection
    from image_service.loadtest.dialer import Dialer
    from image_service.loadtest.plan import Plan
    from image_service.loadtest.targets import Origin, Target

LONGEST_HEAD_START_SECONDS = 2.0
"""Over this the clients begin one after the other: a server's backlog is no part of what is tested."""


class Course:
    """The state of a load test.

    Args:
        reactor: times what waits.
        plan: what is done.
        dialer: makes connections.
        clock: seconds, for measuring.
    """

    def __init__(self, reactor: IReactorTime, plan: Plan, dialer: Dialer, clock: Callable[[], float]) -> None:
        self.plan = plan
        self.clock = clock
        self.tally = Tally(Timing.REQUEST if plan.profile.is_mount else Timing.FIRST_BYTE)
        self.blocks = Blocks()
        self.begun_at = clock()
        self._reactor = reactor
        self._dialer = dialer
        self._ends_at = self.begun_at + plan.seconds
        self._asked_for: set[int] = set()
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in plan.fields)
        self._is_overdue = False

    @property
    def elapsed_seconds(self) -> float:
        """Since its beginning."""
        return self.clock() - self.begun_at

    @property
    def is_over(self) -> bool:
        """Whether nothing more is asked for."""
        return self.clock() >= self._ends_at

    def end(self, *, overdue: bool) -> None:
        """End it now.

        Args:
            overdue: whether requests that had no answer until now had time for one.
        """
        self._ends_at = min(self._ends_at, self.clock())
        self._is_overdue = overdue

    async def connect(self, origin: Origin, number: int) -> Connection:
        """Connect a client, as ``Dialer.connect`` does."""
        return await self._dialer.connect(origin, number, self._take, self.plan.bytes_per_second)

    async def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the end."""
        seconds = min(seconds, self._ends_at - self.clock())
        if seconds > 0:
            await deferLater(self._reactor, seconds)

    def head_start(self, number: int) -> float:
        """Tell how many seconds a client waits before it begins."""
        longest = min(LONGEST_HEAD_START_SECONDS, self.plan.seconds / 10)
        return longest * number / self.plan.clients

    def request(self, target: Target, method: str, fields: str) -> bytes:
        """Make the head of a request.

        Args:
            target: what it is for.
            method: HEAD or GET.
            fields: further lines, each with its end.

        Returns:
            what is sent.
        """
        lines = f"{method} {target.path} HTTP/1.1\r\nHost: {target.origin.netloc}\r\n"
        return f"{lines}User-Agent: image-service-loadtest\r\n{self._fields}{fields}\r\n".encode("ascii")

    def is_first(self, image: int) -> bool:
        """Tell, once, that an image is asked for by nobody before."""
        if image in self._asked_for:
            return False
        self._asked_for.add(image)
        return True

    def tell_unanswered(self) -> None:
        """Count a request whose answer nobody waits for any more."""
        if self._is_overdue:
            self.tally.errors["unanswered"] += 1

    def _take(self, count: int) -> None:
        self.tally.byte_count += count
