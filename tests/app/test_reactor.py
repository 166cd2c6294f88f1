"""The reactor of a process."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

LATE = """
from twisted.internet import reactor
reactor.callLater(60, print)
from image_service.app.reactor import get_reactor
get_reactor()
"""


def test_step_of_the_wall_clock_neither_fires_nor_delays_a_call(
    reactor: EPollReactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    pending = reactor.callLater(60, called.append, "in a minute")
    for stepped in (0.0, 4e9):
        monkeypatch.setattr("time.time", lambda stepped=stepped: stepped)
        reactor.runUntilCurrent()
        assert called == []
        assert pending.getTime() == pytest.approx(time.monotonic() + 60, abs=30)
    pending.cancel()


def test_clock_is_not_changed_under_a_scheduled_call() -> None:
    done = subprocess.run([sys.executable, "-c", LATE], check=False, capture_output=True, text=True)
    assert "RuntimeError: calls are scheduled by the wall clock" in done.stderr
