"""Waiting for a service that has said when it may have the answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from image_service.common.command_line.messages import tell
from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

_Answer = TypeVar("_Answer")
PATIENCE_SECONDS = 600.0
"""A base image of some GB is hashed meanwhile."""


def wait_for(name: str, ask: Callable[[], _Answer]) -> _Answer:
    """Return what `ask` returns; it is called again as long as its error says when to retry.

    Args:
        name: the thing that the command waits for, for its message.
        ask: sends a request.

    Raises:
        Unavailable: the last one of `ask`.
    """
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return ask()
        except Unavailable as error:
            seconds = error.retry_after_seconds
            if seconds is None or time.monotonic() + seconds >= end:
                raise
            tell(f"image-service: waiting for {name}: {error.detail}", "info")
            time.sleep(seconds)
