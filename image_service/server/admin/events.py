"""Server-sent events: the changes since the last events that a client has got.

A stream keeps no events. When its client has read the last ones, the stream looks for the changes since
then, so that a slow client misses intermediate states and takes no memory.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

import attrs
from twisted.internet.task import deferLater

from image_service.core.errors import Unavailable
from image_service.server.admin.activity import COLLECT_SECONDS
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.openapi.document import Json

MAX_STREAMS = 32
MAX_SECONDS = 600.0
"""A stream ends then, because its client may have signed out; browsers open another one."""
KEEP_ALIVE_SECONDS = 15.0
"""After so long without an event a comment is sent, so that proxies do not close the connection."""
CONTENT_TYPE = "text/event-stream"


@attrs.define
class Seen:
    """The state that a client has got: revisions of mounts and failures, and base images by name."""

    mounts: int = 0
    failures: int = 0
    images: dict[str, Json] = attrs.field(factory=dict)


Changes: TypeAlias = "Callable[[Seen], Awaitable[list[Json]]]"
"""Returns the changes since the last events of a client, and records in `Seen` that it gets them."""


class EventStream:
    """The content of one response (see `ContentStream`)."""

    def __init__(self, changes: Changes, clock: IReactorTime, closed: Callable[[EventStream], None]) -> None:
        self._changes = changes
        self._clock = clock
        self._closed = closed
        self._seen = Seen()
        self._ends_at = clock.seconds() + MAX_SECONDS

    async def read(self) -> bytes:
        """Wait for events, and return them; a comment if there are none for a while, nothing at the end."""
        if self._clock.seconds() >= self._ends_at:
            return b""
        keep_alive = self._clock.seconds() + KEEP_ALIVE_SECONDS
        while self._clock.seconds() < keep_alive:
            if events := await self._changes(self._seen):
                return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)
            await deferLater(self._clock, COLLECT_SECONDS, lambda: None)
        return b":\n\n"

    def close(self) -> None:
        """Make room for another stream."""
        self._closed(self)


class EventStreams:
    """The open streams."""

    def __init__(self, changes: Changes, clock: IReactorTime) -> None:
        self._changes = changes
        self._clock = clock
        self._open: WeakSet[EventStream] = WeakSet()

    def open(self) -> ApiResponse:
        """Return the response with a new stream; raises Unavailable if too many are open."""
        if len(self._open) >= MAX_STREAMS:
            raise Unavailable(f"{MAX_STREAMS} clients read events already", retry_after_seconds=60)
        stream = EventStream(self._changes, self._clock, self._open.discard)
        self._open.add(stream)
        fields = (("Content-Type", CONTENT_TYPE), ("Cache-Control", "no-store"))
        return ApiResponse(200, content_type=CONTENT_TYPE, fields=fields, stream=stream)
