"""Common arguments, signals and exit statuses of the commands, and text for terminals."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    AddParser: TypeAlias = Callable[..., argparse.ArgumentParser]

EXIT_FAILURE = 1
STATUS_OF_SIGNALS = 128  # plus the signal's number, as in a shell


def add_file_command(
    add_parser: AddParser,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    writes: bool = False,
    **texts: object,
) -> argparse.ArgumentParser:
    """Declare a command that reads a base image; `texts` are arguments of the parser."""
    parser = add_parser(name, **texts)
    parser.add_argument("base", metavar="BASE.iso", help="a CoreOS live ISO; it is only read")
    if writes:
        parser.add_argument(
            "-o", "--output", required=True, metavar="FILE", help="output file; - is standard output"
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(run=run)
    return parser


def exit_on_signals() -> None:
    """Let SIGHUP and SIGTERM raise SystemExit, so that temporary files are removed."""
    for number in (signal.SIGHUP, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup has it ignored
            signal.signal(number, lambda received, _: sys.exit(STATUS_OF_SIGNALS + received))


@contextmanager
def interrupt_on_signals(interrupt: Callable[[], None]) -> Iterator[None]:
    """Let signals interrupt a block that runs a child process; they are raised again when it has ended.

    An exception raised by a handler while the child is started would leave it running.
    """
    received: list[int] = []

    def handle(number: int, _frame: object) -> None:
        received.append(number)
        interrupt()

    before = {
        number: signal.signal(number, handle)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(signal.Signals(received[0]))


def printable(text: str) -> str:
    """Escape control characters."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
