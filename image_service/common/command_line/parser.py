"""Arguments, signals and exit statuses of the commands, and text for terminals."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from image_service.common.command_line.messages import tell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, NoReturn

    AddParser: TypeAlias = Callable[..., argparse.ArgumentParser]

EXIT_FAILURE = 1
EXIT_USAGE = 2
STATUS_OF_SIGNALS = 128  # plus the signal's number, as in a shell
_STDOUT = 1


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of a command. It reports a fault in two lines, with the nearest valid word.

    Without any argument, where a command is to be chosen, it prints its help.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(
        self,
        args: Iterable[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - as in the base class
    ) -> tuple[Any, list[str]]:
        """Parse the arguments; all of them must be known."""
        words = sys.argv[1:] if args is None else list(args)
        if self._subparsers and not words:
            self.exit(EXIT_USAGE, self.format_help())
        # First, because an option that is spelled wrongly also makes a required one missing.
        for word in words:
            name = word.partition("=")[0]
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break  # no options follow, or those of a subcommand
            if name.startswith("--") and " " not in word and name not in self._option_string_actions:
                self.error(f"unknown option {name}{_suggest(name, self._option_string_actions)}")
        if not self._subparsers:
            words = self._put_options_first(words)
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        return parsed, unknown

    def _put_options_first(self, words: list[str]) -> list[str]:
        """Return the words with all options before the others.

        argparse gives an optional positional argument its default as soon as it sees an option.
        """
        options: list[str] = []
        others: list[str] = []
        left = iter(words)
        for word in left:
            if word == "--":
                others += [word, *left]
            elif word.startswith("-") and word != "-":
                options.append(word)
                action = self._option_string_actions.get(word)
                if action and action.nargs is None:
                    value = next(left, None)
                    if value is None:
                        return words  # argparse reports it
                    options.append(value)
            else:
                others.append(word)
        return options + others

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:  # noqa: ANN401 - same
        """Return the value of an option or argument.

        The value of ``--option=--`` is --, which argparse drops before Python 3.13.
        """
        if not action.option_strings or arg_strings != ["--"]:
            return super()._get_values(action, arg_strings)
        value = self._get_value(action, "--")
        self._check_value(action, value)
        return value

    def error(self, message: str) -> NoReturn:
        """Print the fault of the arguments, and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: {printable(message)}\nTry '{self.prog} --help'.\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Print a message, and exit."""
        if message:
            tell(message.removesuffix("\n"))
        sys.exit(status)

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            raise argparse.ArgumentError(
                action, f"must be one of {', '.join(choices)}, not {value}{_suggest(value, choices)}"
            )


def _suggest(word: str, words: Iterable[str]) -> str:
    nearest = get_close_matches(word, words, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


def open_missing_output() -> None:
    """Open /dev/null for reading as standard output if the caller has closed it: each write fails then.

    Otherwise the next file to be opened would get its descriptor.
    """
    if sys.stdout is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        if descriptor != _STDOUT:  # standard input is closed too
            os.dup2(descriptor, _STDOUT)
        sys.stdout = open(_STDOUT, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - a descriptor


def write_output(text: str = "") -> OSError | None:
    """Print the end of the output; return why standard output cannot be written.

    The rest of the output is discarded then: Python would write it again at exit, and report the failure.
    """
    try:
        print(text, end="", flush=True)  # noqa: T201 - the command's output
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        error.filename = "standard output"
        return error
    return None


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
