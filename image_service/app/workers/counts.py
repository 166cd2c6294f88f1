"""What a worker has counted, as the supervisor knows it: it is asked when somebody wants to see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed

from image_service.observability.merging import cumulative

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.observability.merging import Exported

ANSWER_SECONDS = 1.0
"""How long a worker that is busy, or stuck, is waited for."""


class Counts:
    """The counts of the worker in one place.

    Args:
        clock: the reactor's.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._known: Exported = []
        self._answer: Deferred[None] = succeed(None)

    def ask(self, ask: Callable[[], None]) -> Deferred[None]:
        """Ask the worker.

        Args:
            ask: does so.

        Returns:
            fires when it has answered, or is not waited for any longer.
        """
        self._answer = Deferred(self._give_up)
        self._answer.addTimeout(ANSWER_SECONDS, self._clock)
        ask()
        return self._answer

    def take(self, exported: Exported) -> None:
        """Take its answer."""
        self._known = exported
        if not self._answer.called:
            self._answer.callback(None)

    def part(self) -> Exported:
        """Forget it, for it is gone.

        Returns:
            what stays of it.
        """
        self._answer.cancel()
        left, self._known = cumulative(self._known), []
        return left

    @property
    def latest(self) -> Exported:
        """What it has counted; of one that did not answer, what it had counted when it last did."""
        return self._known

    def _give_up(self, answer: Deferred[None]) -> None:
        self._known = cumulative(self._known)
        if not answer.called:
            answer.callback(None)
