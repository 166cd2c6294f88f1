"""The reactor of a process of the service."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, cast

from image_service.common.command_line.messages import tell

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor


def use_asyncio_reactor() -> None:
    """Install asyncio's reactor unless it is installed.

    Raises:
        SystemExit: another one is installed, and cannot be replaced; the status is that of a configuration
            that is not valid.
    """
    from twisted.internet.asyncioreactor import AsyncioSelectorReactor, install  # noqa: PLC0415 - as below

    if (installed := sys.modules.get("twisted.internet.reactor")) is None:
        install()
    elif not isinstance(installed, AsyncioSelectorReactor):
        tell(
            f"image-service: the jobs role needs asyncio's reactor, and this is {type(installed).__name__};"
            " run twistd --reactor=asyncio … image-service-jobs"
        )
        raise SystemExit(os.EX_CONFIG)


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
