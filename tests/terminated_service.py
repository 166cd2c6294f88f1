"""The service, which sends itself SIGTERM as soon as its handler is installed for the given time."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from image_service.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable


def terminating(install: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Return `signal.signal` with that effect."""
    left = times

    def install_and_terminate(number: int, handler: object) -> object:
        nonlocal left
        previous = install(number, handler)
        if number == signal.SIGTERM:
            left -= 1
            if not left:
                os.kill(os.getpid(), number)
        return previous

    return install_and_terminate


if __name__ == "__main__":
    signal.signal = terminating(signal.signal, int(sys.argv.pop(1)))
    sys.exit(main())
