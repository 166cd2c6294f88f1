"""``python -m tests.toolkit.customization.interrupted SIGNAL STEP ARGUMENTS``: a call that gets a signal.

Runs ``image-toolkit customize ARGUMENTS`` and sends itself a signal before the system call of that number,
counted from the creation of the redo file on; a write is done in part before. A step beyond the last is none.
The start of qemu-io is a step, and the moments after it are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from image_service.toolkit.commands import main

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS = ("open", "pwrite", "fsync", "unlink")
_DELAYS_SECONDS = (0, 0.1, 0.2)


class Interruption:
    """Counts steps, and sends the signal at one of them."""

    def __init__(self, number: int, step: int) -> None:
        self.number = number
        self.left = step
        self.has_begun = False

    def take_step(self) -> bool:
        """Count a step; True if the signal is due."""
        if self.has_begun:
            self.left -= 1
        return self.has_begun and self.left == 0

    def send(self) -> None:
        """Send the signal to this process."""
        os.kill(os.getpid(), self.number)

    def wrap(self, name: str) -> None:
        """Replace a function of `os` by one that counts."""
        real: Callable[..., Any] = getattr(os, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            makes_redo = name == "open" and str(arguments[0]).endswith("-redo") and arguments[1] & os.O_CREAT
            self.has_begun |= bool(makes_redo)
            if (makes_redo or name != "open") and self.take_step():
                if name == "pwrite":
                    descriptor, data, offset = arguments
                    real(descriptor, data[: len(data) // 2 // 512 * 512], offset)
                self.send()
            return real(*arguments, **options)

        setattr(os, name, counted)

    def wrap_popen(self) -> None:
        """Send the signal shortly after a child process was started."""
        real = subprocess.Popen.__init__

        def counted(popen: Any, *arguments: Any, **options: Any) -> None:
            real(popen, *arguments, **options)
            for delay in _DELAYS_SECONDS if any("qemu-io" in word for word in arguments[0]) else ():
                if self.take_step():
                    time.sleep(delay)
                    self.send()

        subprocess.Popen.__init__ = counted  # type: ignore[assignment] # same arguments


def run(words: list[str]) -> int:
    """Run a call that is interrupted."""
    interruption = Interruption(signal.Signals[words[0]], int(words[1]))
    for name in _STEPS:
        interruption.wrap(name)
    interruption.wrap_popen()
    return main(["customize", *words[2:]])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
