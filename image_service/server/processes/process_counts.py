"""A serving process's metrics, as the supervisor knows them: it collects them when a page is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred, succeed

from image_service.server.observability.merging import cumulative

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.server.observability.merging import Exported

TIMEOUT_SECONDS = 1.0
"""Of a serving process's response; a busy or stuck one is not waited for any longer."""


class ProcessCounts:
    """The metrics of one slot."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._response: Deferred[None] = succeed(None)
        self.latest: Exported = []
        """The latest metrics; of a serving process that did not respond in time, only the cumulative ones."""

    def collect(self, request: Callable[[], None]) -> Deferred[None]:
        """Call `request`; fires when the serving process has responded, or the timeout is over."""

        def time_out(response: Deferred[None]) -> None:
            self.latest = cumulative(self.latest)
            if not response.called:
                response.callback(None)

        self._response = Deferred(time_out)
        self._response.addTimeout(TIMEOUT_SECONDS, self._clock)
        request()
        return self._response

    def update(self, exported: Exported) -> None:
        """Take the serving process's response."""
        self.latest = exported
        if not self._response.called:
            self._response.callback(None)

    def drain(self) -> Exported:
        """Forget the metrics of a serving process that has exited, and return the cumulative ones."""
        self._response.cancel()
        left, self.latest = cumulative(self.latest), []
        return left
