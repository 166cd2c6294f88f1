"""Exit of a process at the second signal, even if its shutdown hangs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SIGNALED_TWICE = """
import os, signal, sys, time
from twisted.internet import epollreactor
epollreactor.install()
from twisted.internet import reactor
from image_service.app import shutdown

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)

def send_sigterm(seconds=0):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(seconds)

shutdown.FORCED_EXIT_SECONDS = 1
reactor.callWhenRunning(shutdown.ShutdownHandler(reactor, lambda: None).handle_signals)
reactor.callWhenRunning(send_sigterm)
"""
HANGING_SHUTDOWN = "reactor.addSystemEventTrigger('before', 'shutdown', send_sigterm, 900)"
SLOW_INTERPRETER_EXIT = "reactor.addSystemEventTrigger('before', 'shutdown', send_sigterm); sys.slow = Slow()"


@pytest.mark.parametrize("shutdown", [HANGING_SHUTDOWN, SLOW_INTERPRETER_EXIT])
def test_second_signal_exits_with_status_0(shutdown: str) -> None:
    """Even if the interpreter, which has removed the signal handlers, does not exit in time."""
    command = [sys.executable, "-c", f"{SIGNALED_TWICE}\n{shutdown}\nreactor.run()\n"]
    done = subprocess.run(command, check=False, cwd=Path(__file__).parents[2], timeout=100)
    assert done.returncode == 0
