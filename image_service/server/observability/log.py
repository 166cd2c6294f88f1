"""The log: JSON objects, one per line, or readable lines for a terminal or for the journal (`LOG_FORMAT`)."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from weakref import WeakSet

from twisted.logger import (
    ILogObserver,
    LogLevel,
    eventAsText,
    formatEvent,
)
from twisted.python.reflect import safe_str
from zope.interface import implementer

from image_service.common.command_line.messages import PRIORITIES, is_journal
from image_service.settings.network import LogSettings
from image_service.settings.variables import read_group

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, MutableMapping

    from twisted.logger import LogEvent

# Fields that Twisted puts into events, and that repeat others.
_INTERNAL = frozenset({"isError", "format", "failure", "why", "message", "system", "time", "logLevel"})
# Factories of ours have our namespace.
_NOISE = frozenset({"Starting factory {factory!r}", "Stopping factory {factory!r}"})
_BELOW_WARNING = frozenset({LogLevel.debug, LogLevel.info})
_LIBRARIES = ("twisted.", "log_legacy")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # all but tab and line end
_COMMON_TYPES = frozenset({str, int, bool, type(None)})

_encode_string = json.encoder.encode_basestring_ascii
_ENCODERS: dict[type, Callable[[Any], str]] = {str: _encode_string, int: int.__repr__, float: float.__repr__}
_encode_other = json.JSONEncoder().encode


@implementer(ILogObserver)
class JsonLines:
    """Writes events as JSON lines to a stream.

    A line has `time` (RFC 3339, UTC), `level`, `logger`, `message`, the event's own fields, and `traceback`
    if there was a failure.
    """

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        self._out.write(_encode(describe(event)))  # in one piece: threads log too
        self._out.flush()


@implementer(ILogObserver)
class ReadableLines:
    """Writes events to a stream as readable lines: time, source, level, message; a traceback is indented."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        self._write(eventAsText(event))

    def _write(self, text: str, prefix: str = "") -> None:
        if text:
            text = _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text).replace("\n", f"\n{prefix}\t")
            self._out.write(f"{prefix}{text}\n")
            self._out.flush()


@implementer(ILogObserver)
class JournalLines(ReadableLines):
    """Writes events as readable lines without time, each after its priority: `<4>`, as sd-daemon(3) says."""

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        level = event.get("log_level")
        priority = PRIORITIES[level.name if level is not None else "info"]
        self._write(eventAsText(event, includeTimestamp=False), f"<{priority}>")


@implementer(ILogObserver)
class ProcessTag:
    """Adds the serving process's number to every event, and passes it on."""

    def __init__(self, lines: ILogObserver, number: int) -> None:
        self._lines = lines
        self._number = number

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        level = event.get("log_level")
        source = f"{event.get('log_namespace', '')}#{level.name if level is not None else 'info'}"
        system = f"worker {self._number}: {source}"
        self._lines({**event, "worker": self._number, "log_system": system})


def _encode(members: Mapping[str, object]) -> str:
    """Return a JSON line; `json.dumps` takes half as long again for one of the access log."""
    return _line_format(tuple(members)) % tuple(
        [_ENCODERS.get(type(value), _encode_other)(value) for value in members.values()]
    )


@lru_cache(maxsize=64)
def _line_format(names: tuple[str, ...]) -> str:
    return "{" + ", ".join(_encode_string(name).replace("%", "%%") + ": %s" for name in names) + "}\n"


def describe(event: LogEvent) -> dict[str, object]:
    """Return the members of an event's JSON line, in their order."""
    level = event.get("log_level")
    line: dict[str, object] = {
        "time": _format_time(event.get("log_time", 0.0)),
        "level": level.name if level is not None else "info",
        "logger": event.get("log_namespace", ""),
        "message": event.get("log_text") or formatEvent(event),
    }
    fields = event.get("log_fields")
    if fields is not None:  # of the access log: values that JSON has, and the process's number
        line.update(fields)
        if "worker" in event:
            line["worker"] = event["worker"]
        return line
    for name, value in event.items():
        if not name.startswith("log_") and name not in _INTERNAL and name not in line:
            line[name] = value if type(value) in _COMMON_TYPES or _is_json(value) else safe_str(value)
    failure = event.get("log_failure")
    if failure is not None:
        line["traceback"] = failure.getBriefTraceback()
    return line


def _format_time(seconds: float) -> str:
    """Return a time in RFC 3339, UTC, with milliseconds."""
    whole, fraction = divmod(seconds, 1)
    return f"{_format_second(whole)}.{int(fraction * 1000):03}+00:00"


@lru_cache(maxsize=2)
def _format_second(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _is_json(value: object) -> bool:
    return isinstance(value, int | str) or (isinstance(value, float) and math.isfinite(value))


@implementer(ILogObserver)
class LevelFilter:
    """Drops events below a level, and those of Twisted below warning, such as the start of each connection.

    Args:
        lowest: name of the lowest level written.
    """

    def __init__(self, lines: ILogObserver, lowest: str) -> None:
        self._lines = lines
        self.set_lowest(lowest)

    def set_lowest(self, lowest: str) -> None:
        """Drop events below this level from now on."""
        self.lowest = lowest
        lowest_level = LogLevel.levelWithName(lowest)
        self._levels = frozenset(level for level in LogLevel.iterconstants() if level >= lowest_level)

    def __call__(self, event: LogEvent) -> None:
        """Write one event, or drop it."""
        level = event.get("log_level")
        if level not in self._levels:
            return
        if level in _BELOW_WARNING and (
            event.get("log_namespace", "").startswith(_LIBRARIES) or event.get("log_format") in _NOISE
        ):
            return
        self._lines(event)


_FORMATS = {"json": JsonLines, "text": ReadableLines, "journal": JournalLines}
_STANDARD_OUTPUT = 1
LEVELS = tuple(level.name for level in LogLevel.iterconstants())
"""Names of levels, the lowest first."""
_in_use: WeakSet[LevelFilter] = WeakSet()
_files: list[TextIO] = []  # of `twistd --logfile`, else empty


def observer(out: TextIO | None = None, environ: Mapping[str, str] | None = None) -> ILogObserver:
    """Return the log's observer; `twistd --logger` calls this without arguments.

    Args:
        out: None: the log file of twistd, or standard output.
        environ: has the lowest level and the format (see `LogSettings`); None: the process's environment.
    """
    out = out or (_files[-1] if _files else sys.stdout)
    environ = os.environ if environ is None else environ
    faults: list[str] = []  # reported with the settings' other errors, which need a log
    settings = read_group(LogSettings, environ, faults)
    form = settings.format
    if form == "auto":
        is_journals = is_journal(out, environ.get("JOURNAL_STREAM"))
        form = "text" if out.isatty() else "journal" if is_journals else "json"
    level_filter = LevelFilter(_FORMATS[form](out), settings.level)
    _in_use.add(level_filter)
    return level_filter


def log_through_observer(twistd: MutableMapping[str, Any]) -> None:
    """Make twistd log as `image-service serve` does, to standard output or to its log file.

    Args:
        twistd: its options. Those that have `logger` or `syslog` stay as they are.

    Raises:
        OSError: the log file cannot be opened.
    """
    is_foreground = twistd["nodaemon"]
    path = twistd["logfile"] or ("-" if is_foreground else "twistd.log")
    if twistd["logger"] or twistd["syslog"] or (path == "-" and not is_foreground):  # twistd refuses the last
        return
    if path != "-":
        _files.append(Path(path).open("a", encoding="utf-8"))  # noqa: SIM115 - until the process ends
    twistd["logger"] = f"{__name__}.observer"


def log_descriptor() -> int:
    """Return the descriptor of the log: a serving process's standard output."""
    return _files[-1].fileno() if _files else _STANDARD_OUTPUT


def set_level(name: str) -> None:
    """Set the lowest level that this process writes, as `LOGLEVEL` does at the start.

    Args:
        name: of a level of `twisted.logger`, as `settings.parsers.log_level` returns it.
    """
    for level_filter in _in_use:
        level_filter.set_lowest(name)


def present_level() -> str | None:
    """Return the name of the lowest level that this process writes; None: another observer decides it."""
    return next((level_filter.lowest for level_filter in _in_use), None)
