"""The end of a process at the second signal, whatever is in its way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

IS_TOLD_TWICE = """
import os, signal, sys, time
from twisted.internet import epollreactor
epollreactor.install()
from twisted.internet import reactor
from image_service.app import shutdown

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)

def tell(seconds=0):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)

shutdown.HASTE_SECONDS = 1
reactor.callWhenRunning(shutdown.ShutdownHandler(reactor, lambda: None).on_signals)
reactor.callWhenRunning(tell)
"""
HANGS = "reactor.addSystemEventTrigger('before', 'shutdown', tell, 900)"
IS_SLOW_TO_GO = "reactor.addSystemEventTrigger('before', 'shutdown', tell); sys.slow = Slow()"


@pytest.mark.parametrize("what", [HANGS, IS_SLOW_TO_GO])
def test_the_second_signal_ends_it_with_status_0(what: str) -> None:
    """Also where the interpreter, which has taken the handlers of signals away, is not gone in time."""
    command = [sys.executable, "-c", f"{IS_TOLD_TWICE}\n{what}\nreactor.run()\n"]
    done = subprocess.run(command, check=False, cwd=Path(__file__).parents[2], timeout=100)
    assert done.returncode == 0
