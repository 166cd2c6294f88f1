"""Common arguments, input, signals and exit statuses of the commands, and text for terminals."""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from image_service.coreos.names import is_web_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, BinaryIO, NoReturn

    AddParser: TypeAlias = Callable[..., argparse.ArgumentParser]

EXIT_FAILURE = 1
EXIT_USAGE = 2
STATUS_OF_SIGNALS = 128  # plus the signal's number, as in a shell
STANDARD_INPUT = "-"


class CommandParser(argparse.ArgumentParser):
    """Parses the arguments of a command. A fault is told in two lines, with the nearest valid word."""

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of the base class
        super().__init__(**options, allow_abbrev=False)

    def parse_known_args(
        self,
        args: Iterable[str] | None = None,
        namespace: Any = None,  # noqa: ANN401 - as in the base class
    ) -> tuple[Any, list[str]]:
        """Parse the arguments; all of them must be known."""
        words = sys.argv[1:] if args is None else list(args)
        # First, because an option that is spelled wrongly also makes a required one missing.
        for word in words:
            name = word.partition("=")[0]
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break  # what follows has no options, or those of a subcommand
            if name.startswith("--") and " " not in word and name not in self._option_string_actions:
                self.error(f"unknown option {name}{_suggest(name, self._option_string_actions)}")
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unexpected argument {unknown[0]}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Print the fault of the arguments, and exit."""
        self.exit(EXIT_USAGE, f"{self.prog}: {printable(message)}\nTry '{self.prog} --help'.\n")

    def _check_value(self, action: argparse.Action, value: str) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(action.choices)
            raise argparse.ArgumentError(
                action, f"{value} is none of {', '.join(choices)}{_suggest(value, choices)}"
            )


def _suggest(word: str, words: Iterable[str]) -> str:
    nearest = get_close_matches(word, words, n=1)
    return f"; did you mean {nearest[0]}?" if nearest else ""


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
    parser.add_argument(
        "base", metavar="BASE.iso", help="a CoreOS live ISO, which is only read; - is standard input"
    )
    if writes:
        parser.add_argument(
            "-o", "--output", required=True, metavar="FILE", help="output file; - is standard output"
        )
        parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE if it exists")
    parser.set_defaults(run=run)
    return parser


def add_admin_arguments(parser: argparse.ArgumentParser, *other_names: str) -> None:
    """Declare the arguments that say how a running service is reached, for `AdminClient`."""
    parser.add_argument(
        "--admin",
        *other_names,
        type=_parse_url,
        metavar="URL",
        help="base URL of the ADMIN_LISTEN of a running service; of its LISTEN_PORT if that is not set",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file of the token, as in ADMIN_TOKEN_FILE"
    )
    parser.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="PEM file of certificate authorities to trust too"
    )


def _parse_url(url: str) -> str:
    if not is_web_url(url):
        raise argparse.ArgumentTypeError("must be an http or https URL, such as http://localhost:8081")
    return url


def read_input(name: str) -> bytes:
    """Return the content of a file; of standard input for -."""
    with standard_input() if name == STANDARD_INPUT else Path(name).open("rb") as file:
        return file.read()


def standard_input() -> BinaryIO:
    """Return standard input, whose descriptor stays open; raise OSError if there is none."""
    return open(0, "rb", closefd=False)


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
