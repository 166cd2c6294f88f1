"""The log as tests read it: the state changes of base images are there to be waited for."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import DeferredQueue
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, formatEvent
from zope.interface import implementer

from image_service.server.catalog.lifecycle.status import BaseImageState

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime
    from twisted.logger import LogEvent

_OUTCOMES = {
    BaseImageState.READY,
    BaseImageState.DEGRADED,
    BaseImageState.FAILED,
    BaseImageState.REFUSED,
}


@implementer(ILogObserver)
@attrs.define(eq=False)
class Lines:
    """Everything that was logged, and each image's changes of state that were not waited for yet."""

    reactor: IReactorTime
    events: list[LogEvent] = attrs.field(factory=list)
    _changes: dict[str, DeferredQueue[BaseImageState]] = attrs.field(
        factory=lambda: defaultdict(DeferredQueue)
    )

    def __call__(self, event: LogEvent) -> None:
        """Take note of an event."""
        self.events.append(event)
        if "state" in event:
            self._changes[event["image"]].put(BaseImageState(event["state"]))

    async def until(self, image: str, state: BaseImageState) -> None:
        """Wait until an image comes to a state; another outcome ends the test instead of the wait."""
        while (reached := await self._changes[image].get()) is not state:
            assert reached not in _OUTCOMES, self.text
        await deferLater(self.reactor, 0.0)  # the change is logged before its operation ends

    @property
    def text(self) -> str:
        """All lines, formatted."""
        return "\n".join(formatEvent(event) for event in self.events)
