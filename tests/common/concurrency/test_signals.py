from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from image_service.common.concurrency.signals import UNUSED, handle_signal, ignore_signals

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    numbers = (signal.SIGHUP, *UNUSED)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_ignored_signals_end_child_processes_as_usual() -> None:
    ignore_signals(*UNUSED)
    for number in UNUSED:
        os.kill(os.getpid(), number)
        child = subprocess.run(["sh", "-c", f"kill -{number} $$"], check=False)
        assert child.returncode == -number


def test_handler_is_called_at_each_signal() -> None:
    received: list[str] = []
    handle_signal(signal.SIGHUP, lambda: received.append("SIGHUP"))
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGHUP)
    assert received == ["SIGHUP", "SIGHUP"]
