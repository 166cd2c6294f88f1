"""The client request on whose behalf assisted-service is called."""

from __future__ import annotations

from contextvars import ContextVar

import attrs


@attrs.define(eq=False)
class Caller:
    """A request of a client. Its calls to assisted-service belong together.

    Args:
        address: the client's, or its IPv6 network; behind a trusted proxy the forwarded one.
        came_at: when the request came, the clock's seconds.
        has_started: one of its calls has had a slot.
        waiting: how many of its calls wait for one.
        is_refused: one of its calls got none in time.
    """

    address: str
    came_at: float
    request_id: str = ""
    has_started: bool = False
    waiting: int = 0
    is_refused: bool = False


CALLER: ContextVar[Caller] = ContextVar("CALLER")
"""Whom the running coroutine works for. A coroutine inherits it from the one that starts it, so an attempt
that several requests share is the first one's."""
