"""What the commands that work on files have in common: their arguments, and how they end."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    AddParser: TypeAlias = Callable[..., argparse.ArgumentParser]

STATUS_OF_SIGNALS = 128  # and the signal's number, as a shell has it


def add_base(parser: argparse.ArgumentParser) -> None:
    """Declare the base image."""
    parser.add_argument("base", metavar="BASE.iso", help="a CoreOS live ISO; it is only read")


def add_output(parser: argparse.ArgumentParser) -> None:
    """Declare where the result goes."""
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to write; - is standard output"
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it is there")


def end_in_order() -> None:
    """Let the signals that end a process remove what is half written first."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, _end)


@contextmanager
def signals_interrupt(interrupt: Callable[[], None]) -> Iterator[None]:
    """Let signals end a block by its own means, and then the command as ever.

    An exception out of a signal could come when a program is started, and nobody could end it any more.

    Args:
        interrupt: makes the block end.
    """
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        came.append(number)
        interrupt()

    before = {
        number: signal.signal(number, note)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(signal.Signals(came[0]))


def _end(number: int, _frame: object) -> None:
    sys.exit(STATUS_OF_SIGNALS + number)
