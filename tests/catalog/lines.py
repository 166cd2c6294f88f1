"""The log as tests read it: the state changes of base images are there to be waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.logger import ILogObserver, formatEvent
from zope.interface import implementer

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime
    from twisted.logger import LogEvent

    from image_service.catalog.catalog import State


@implementer(ILogObserver)
@attrs.define(eq=False)
class Lines:
    """Everything that was logged, and who waits for what."""

    reactor: IReactorTime
    events: list[LogEvent] = attrs.field(factory=list)
    _waiting: list[tuple[str, str, Deferred[None]]] = attrs.field(factory=list)

    def __call__(self, event: LogEvent) -> None:
        """Take note of an event."""
        self.events.append(event)
        for waiting in [item for item in self._waiting if _is_change(event, *item[:2])]:
            self._waiting.remove(waiting)
            waiting[2].callback(None)

    async def until(self, image: str, state: State) -> None:
        """Wait until an image has been, or is now, in a state; each change is waited for once."""
        for event in self.events:
            if _is_change(event, image, state.value):
                self.events.remove(event)
                return
        arrived: Deferred[None] = Deferred()
        self._waiting.append((image, state.value, arrived))
        await arrived
        await deferLater(self.reactor, 0.0)  # the change is told from the middle of what it belongs to
        await self.until(image, state)

    @property
    def text(self) -> str:
        """All lines, formatted."""
        return "\n".join(formatEvent(event) for event in self.events)


def _is_change(event: LogEvent, image: str, state: str) -> bool:
    return bool(event.get("image") == image and event.get("state") == state)
