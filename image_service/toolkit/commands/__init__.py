"""The console script ``image-toolkit``."""

from __future__ import annotations

import errno
import signal
import sys
import traceback
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from image_service import __version__
from image_service.common.command_line import completion
from image_service.common.command_line.messages import tell
from image_service.common.command_line.parser import (
    EXIT_FAILURE,
    EXIT_USAGE,
    STATUS_OF_SIGNALS,
    CommandParser,
    exit_on_signals,
    open_missing_output,
    printable,
    write_output,
)
from image_service.core.errors import (
    BaseImageError,
    ConfigurationError,
    ConversionFailed,
    ImageServiceError,
    InvalidArguments,
    MissingDependency,
    NoRoom,
    TimedOut,
    TransferFailed,
    TransferRefused,
    Unprocessable,
    UnusableOutput,
    describe_os_error,
)
from image_service.toolkit.commands.report import CallReport

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

_VERBS = {
    "list": "listing",
    "inspect": "inspect",
    "validate": "validate",
    "convert": "convert",
    "customize": "customize",
    "fetch": "fetch",
    "publish": "publish",
    "run": "run",
}
"""The verbs, and the modules of this package that they are in."""
_EXIT_INPUT = 6
_EXIT_NO_ROOM = 7
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Outputs and directories are checked apart, so these are errors of files that are read.
_UNREADABLE = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError)
_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (InvalidArguments, EXIT_USAGE),
    (UnusableOutput, EXIT_USAGE),
    (MissingDependency, 3),
    (TransferRefused, _EXIT_INPUT),
    (TransferFailed, 4),
    (ConversionFailed, 5),
    (BaseImageError, _EXIT_INPUT),
    (ConfigurationError, _EXIT_INPUT),  # of a file
    (Unprocessable, _EXIT_INPUT),
    (NoRoom, _EXIT_NO_ROOM),
    (TimedOut, 8),
)
EXIT_STATUSES = {
    "0": "done",
    "1": "a fault of this program or of the machine",
    "2": "invalid arguments, an unknown workflow, or an output that is not a plain file",
    "3": "a program or Python package is not installed",
    "4": "a download or an upload failed",
    "5": "a conversion failed",
    "6": "the input cannot be read, is damaged, unsafe or not supported, or does not fit its purpose",
    "7": "no room: scratch, a file system or memory",
    "8": "timed out: elapsed or CPU time",
    "129, 130, 141, 143": "ended by SIGHUP, Ctrl-C, a closed pipe, SIGTERM",
}


class _UsageError(Exception):
    """The arguments are invalid; its text is the parser's."""


class _ToolkitParser(CommandParser):
    """Parses the arguments; `main` reports a fault, because the report may be JSON."""

    def exit(self, status: int = 0, message: str | None = None) -> None:  # type: ignore[override]
        """Raise _UsageError for a fault."""
        if status:
            raise _UsageError(message)
        super().exit(status, message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``image-toolkit`` and return its exit status; `arguments` lack the program's name."""
    open_missing_output()
    if arguments is None:
        _leave_out_parser()
    words = sys.argv[1:] if arguments is None else list(arguments)
    report = CallReport()
    status, reason = EXIT_FAILURE, None
    try:
        exit_on_signals()
        options = build_parser(*words[:1]).parse_args(words)
        report.verb = options.verb
        status = options.run(options, report)
    except _UsageError as error:
        status, reason = EXIT_USAGE, str(error).strip()
    except ImageServiceError as error:
        status, reason = _status_of(error), error.detail
    except OSError as error:
        status, reason = _status_of_os_error(error), describe_os_error(error)
    except KeyboardInterrupt:
        status, reason = STATUS_OF_SIGNALS + signal.SIGINT, "interrupted"
    except SystemExit as error:  # a signal, or --help
        status = int(error.code or 0)
        reason = f"ended by signal {status - STATUS_OF_SIGNALS}" if status else None
    except Exception as error:  # noqa: BLE001 - the caller gets a report of a fault of this program too
        place = traceback.extract_tb(error.__traceback__)[-1]
        reason = f"internal error in {Path(place.filename).name}, line {place.lineno}: {error}"
        if not _is_progress_json(words):
            traceback.print_exc()
    return _print(report, words, status, reason)


def _leave_out_parser() -> None:
    """Replace oslo.utils' parser of qemu-img's output in this process, which is the command's own.

    Nothing here needs the parser. It compiles 432 regular expressions when it is imported: a third of the CPU
    time of a short call.
    """
    parser = ModuleType("oslo_utils.imageutils.qemu")
    vars(parser)["__getattr__"] = lambda _: None  # for each name that the package imports of it
    sys.modules.setdefault(parser.__name__, parser)


def _is_progress_json(words: Sequence[str]) -> bool:
    """Return True if standard error has nothing but progress; also for arguments that are invalid."""
    return "--progress=json" in words or ("--progress", "json") in pairwise(words)


def _status_of_os_error(error: OSError) -> int:
    if error.errno in _FULL:
        return _EXIT_NO_ROOM
    if isinstance(error, BrokenPipeError):
        return STATUS_OF_SIGNALS + signal.SIGPIPE
    return _EXIT_INPUT if isinstance(error, _UNREADABLE) else EXIT_FAILURE


def _status_of(error: ImageServiceError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), EXIT_FAILURE)


def _print(report: CallReport, words: Sequence[str], status: int, reason: str | None) -> int:
    """Print the report and return the exit status; --progress json leaves standard error to the progress."""
    output, fault = _printable(report.text), reason
    if "--json" in words and report.verb != "completion":
        output, fault = report.render(status, reason), None
    elif reason is not None and _is_progress_json(words):
        output, fault = "\n".join(filter(None, (output, _name_program(reason)))), None
    if lost := write_output(f"{output}\n" if output else ""):
        status = _status_of_os_error(lost)
        is_silent = isinstance(lost, BrokenPipeError) or _is_progress_json(words)
        fault = None if is_silent else describe_os_error(lost)
    if fault is not None:
        tell(_name_program(fault))
    return status


def _name_program(reason: str) -> str:
    is_named = reason.startswith(("image-toolkit", "usage: image-toolkit"))
    return _printable(reason if is_named else f"image-toolkit: {reason}")


def _printable(text: str) -> str:
    """Return lines without control characters, which names of files and in images may have."""
    return "\n".join(map(printable, text.split("\n")))


def build_parser(verb: str = "") -> CommandParser:
    """Return the parser of one verb, of none for ``--version``, else of all of them.

    To import the modules of all takes half of the time of a short call. Each worker asks for the version.
    """
    parser = _ToolkitParser(
        prog="image-toolkit",
        description="Inspect, validate, convert, customize, fetch and publish disk images.",
    )
    parser.add_argument(
        "--version", action="version", version=f"%(prog)s {__version__}", help="print the version"
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB", dest="verb")
    modules = () if verb == "--version" else (_VERBS[verb],) if verb in _VERBS else _VERBS.values()
    for module in modules:
        import_module(f"{__name__}.{module}").add(verbs.add_parser)
    completing = completion.add(verbs.add_parser, parser)
    completing.set_defaults(run=partial(_complete, parser))
    return parser


def _complete(parser: CommandParser, options: argparse.Namespace, report: CallReport) -> int:
    """Print the completion of the arguments."""
    report.text = completion.render(parser, options.shell)
    return 0
