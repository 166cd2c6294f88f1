"""The log: one JSON object per line, or readable lines on a terminal."""

from __future__ import annotations

import json
import math
import os
import sys
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, TextIO

from twisted.logger import (
    ILogObserver,
    LogLevel,
    formatEvent,
    formatEventAsClassicLogText,
)
from twisted.python.reflect import safe_str
from zope.interface import implementer

from image_service.settings.parsers import log_level

if TYPE_CHECKING:
    from collections.abc import Mapping

    from twisted.logger import LogEvent

# Fields that Twisted puts into events, and that repeat others.
_INTERNAL = frozenset({"isError", "format", "failure", "why", "message", "system", "time", "logLevel"})
_NOISE = frozenset({"Starting factory {factory!r}", "Stopping factory {factory!r}"})
_COMMON_TYPES = frozenset({str, int, bool, type(None)})

# The encoder behind `json.dumps`, which makes one for each call: half of the time of an access log line.
_encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]  # not in typeshed
    markers=None,
    default=json.JSONEncoder().default,
    encoder=json.encoder.encode_basestring_ascii,
    indent=None,
    key_separator=": ",
    item_separator=", ",
    sort_keys=False,
    skipkeys=False,
    allow_nan=True,
)


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
        line = "".join(_encode(describe(event), 0)) + "\n"
        self._out.write(line)  # in one piece: threads log too
        self._out.flush()


@implementer(ILogObserver)
class ReadableLines:
    """Writes events to a stream as Twisted's readable lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        text = formatEventAsClassicLogText(event)
        if text is not None:
            self._out.write(text)
            self._out.flush()


@implementer(ILogObserver)
class WorkerTag:
    """Adds the worker's number to every event, and passes it on."""

    def __init__(self, lines: ILogObserver, number: int) -> None:
        self._lines = lines
        self._number = number

    def __call__(self, event: LogEvent) -> None:
        """Write one event."""
        system = f"worker {self._number}: {event.get('log_namespace', '')}"
        self._lines({**event, "worker": self._number, "log_system": system})


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
    if fields is not None:  # of the access log: values that JSON has, and no others but the worker's number
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
    """Drops events below a level, and the info events of Twisted's factories and ports: nobody acts on those.

    Args:
        lines: writes the others.
        lowest: name of the lowest level written.
    """

    def __init__(self, lines: ILogObserver, lowest: str) -> None:
        self._lines = lines
        lowest_level = LogLevel.levelWithName(lowest)
        self._levels = frozenset(level for level in LogLevel.iterconstants() if level >= lowest_level)

    def __call__(self, event: LogEvent) -> None:
        """Write one event, or drop it."""
        level = event.get("log_level")
        if level not in self._levels:
            return
        if level is LogLevel.info and (
            event.get("log_namespace") == "log_legacy" or event.get("log_format") in _NOISE
        ):
            return
        self._lines(event)


def observer(out: TextIO | None = None, environ: Mapping[str, str] | None = None) -> ILogObserver:
    """Return the log's observer; `twistd --logger` calls this without arguments.

    Args:
        out: None: standard output.
        environ: has the lowest level in `LOGLEVEL` or `LOG_LEVEL`; None: the process's environment.
    """
    out = out or sys.stdout
    environ = os.environ if environ is None else environ
    try:
        level = log_level(environ.get("LOGLEVEL") or environ.get("LOG_LEVEL") or "info")
    except ValueError:  # reported with the settings' other errors, which need a log
        level = "info"
    lines: ILogObserver = ReadableLines(out) if out.isatty() else JsonLines(out)
    return LevelFilter(lines, level)
