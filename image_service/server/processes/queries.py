"""Queries to a serving process about its state, each with its response."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, NoReturn

from twisted.internet.defer import Deferred

from image_service.core.errors import Unavailable
from image_service.server.processes.process_counts import TIMEOUT_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime
    from twisted.python.failure import Failure

NO_RESPONSE = "no serving process responds"


class Queries:
    """The queries that a serving process has not responded to."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._numbers = count()
        self._pending: dict[int, Deferred[Any]] = {}

    def add(
        self,
        name: str,
        send: Callable[[object], None],
        *arguments: object,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> Deferred[Any]:
        """Call `send` with a query, and return the serving process's response.

        Raises:
            Unavailable: the serving process does not respond in time, or has exited.
        """
        number = next(self._numbers)
        response: Deferred[Any] = Deferred()
        self._pending[number] = response

        def give_up(_: Failure) -> NoReturn:
            self._pending.pop(number, None)
            raise Unavailable(NO_RESPONSE, retry_after_seconds=1)

        response.addTimeout(timeout_seconds, self._clock).addErrback(give_up)
        send([number, name, *arguments])
        return response

    def response_received(self, response: tuple[int, object]) -> None:
        """Pass on the response to a query, unless it comes too late."""
        number, value = response
        if number in self._pending:
            self._pending.pop(number).callback(value)

    def cancel(self) -> None:
        """Give up all queries: the serving process has exited."""
        for response in tuple(self._pending.values()):
            response.cancel()
