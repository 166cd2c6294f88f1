"""The reactor of a process of the service."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor


def get_reactor() -> EPollReactor:
    """Return the installed reactor, which is to measure time by `time.monotonic` from now on.

    Twisted's own clock is the wall clock. A step of it would stop, or end, every deadline and lifetime.
    """
    from twisted.internet import reactor  # noqa: PLC0415, TID251 - here and nowhere else

    installed = cast("EPollReactor", reactor)
    if installed.seconds is not time.monotonic:
        if pending := installed.getDelayedCalls():
            raise RuntimeError(f"calls are scheduled by the wall clock: {pending}")
        installed.seconds = time.monotonic
    return installed
