"""The service, which sends itself a signal before it reads its settings, and SIGTERM later."""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from typing import Any

from image_service.app.reactor import get_reactor
from image_service.cli import main
from image_service.settings.settings import Settings

_read = Settings.from_environment


def signaled(number: int, *arguments: Any, **options: Any) -> Settings:
    """Return the settings, after both are sent."""
    os.kill(os.getpid(), number)
    reactor = get_reactor()
    reactor.callWhenRunning(reactor.callLater, 0, os.kill, os.getpid(), signal.SIGTERM)
    return _read(*arguments, **options)


if __name__ == "__main__":
    Settings.from_environment = partial(signaled, int(sys.argv.pop(1)))  # type: ignore[method-assign] # of this process
    sys.exit(main())
