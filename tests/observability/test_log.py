from __future__ import annotations

import enum
import io
import json
import os
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger, LogLevel, globalLogPublisher
from twisted.python import log as legacy_log

from image_service.observability.log import JsonLines, ReadableLines, WorkerTag, describe, observer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.logger import LogEvent


class Written(io.StringIO):
    """What was written, piece by piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def write(self, text: str) -> int:
        self.pieces.append(text)
        return super().write(text)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line, parse_constant=_refuse) for line in self.getvalue().splitlines()]


def _refuse(constant: str) -> None:
    pytest.fail(f"{constant} is not JSON")


def event(**fields: object) -> LogEvent:
    return {"log_level": LogLevel.info, "log_namespace": "x", "log_format": "", "log_time": 0.0, **fields}


def test_worker_tag_is_in_each_line() -> None:
    out = Written()
    WorkerTag(JsonLines(out), 3)(event(log_format="hello"))
    (line,) = out.lines()
    assert (line["message"], line["worker"], len(out.pieces)) == ("hello", 3, 1)
    readable = Written()
    WorkerTag(ReadableLines(readable), 3)(event(log_format="hello"))
    assert "[worker 3: x] hello" in readable.getvalue()


def test_event_is_one_line_of_json() -> None:
    out = Written()
    before = datetime.now(UTC)
    Logger(namespace="catalog", observer=JsonLines(out)).warn(
        "{image} is {state}", image="a.iso", state="ready", size=5, ratio=0.5, there=True, nothing=None
    )
    (line,) = out.lines()
    told = datetime.fromisoformat(line.pop("time"))
    assert told.utcoffset() == before.utcoffset()
    assert before.replace(microsecond=0) <= told <= datetime.now(UTC)
    assert line == {
        "level": "warn",
        "logger": "catalog",
        "message": "a.iso is ready",
        "image": "a.iso",
        "state": "ready",
        "size": 5,
        "ratio": 0.5,
        "there": True,
        "nothing": None,
    }


def test_members_are_ordered_common_ones_first() -> None:
    assert list(describe(event(b=1, a=2))) == ["time", "level", "logger", "message", "b", "a"]
    assert describe(event(log_time=1.5))["time"] == "1970-01-01T00:00:01.500+00:00"


def test_line_is_written_in_one_piece() -> None:
    """Threads log too; what they write must not come between a line and its end."""
    out = Written()
    for _ in range(3):
        JsonLines(out)(event())
    assert len(out.pieces) == 3
    assert all(piece.endswith("}\n") for piece in out.pieces)


def burn() -> None:
    raise OSError("the disk is on fire")


def test_line_is_flushed_at_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as out:  # buffered, as a pipe is
        JsonLines(out)(event())
        assert path.read_text().endswith("}\n")
        ReadableLines(out)(event(log_format="ready"))
        assert path.read_text().endswith("ready\n")


class Broken:
    def __str__(self) -> str:
        raise OSError

    __repr__ = __str__


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"bytes", "bytes"),
        ((1, 2), "(1, 2)"),
        ({"a": 1}, "{'a': 1}"),
        (Colour.RED, "Colour.RED"),
        (HTTPStatus.OK, 200),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (OSError("no"), "no"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        ("\ud800", "\ud800"),
        ("a\nb\u2028c\x1b[31m", "a\nb\u2028c\x1b[31m"),
        (2**70, 2**70),
    ],
)
def test_any_value_has_a_json_form(value: object, expected: object) -> None:
    out = Written()
    JsonLines(out)(event(value=value))
    assert [line["value"] for line in out.lines()] == [expected]


def test_value_without_a_text_form_loses_no_line() -> None:
    out = Written()
    JsonLines(out)(event(log_format="{value} {other}", value=Broken(), other=1))
    (line,) = out.lines()
    assert "Broken" in line["value"]
    assert line["other"] == 1


@pytest.mark.parametrize("name", ["time", "level", "logger", "message"])
def test_event_field_does_not_replace_a_common_member(name: str) -> None:
    assert describe(event(**{name: "mine"})) == describe(event())


json_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()


@given(st.dictionaries(st.text(max_size=8), json_values), st.text(max_size=20))
def test_any_event_is_one_line_of_json(fields: dict[str, object], text: str) -> None:
    out = Written()
    JsonLines(out)({**event(log_format=text), **fields, "log_level": LogLevel.info, "log_time": 0.0})
    assert out.getvalue().count("\n") == 1
    assert len(out.lines()) == 1
    out.getvalue().encode("ascii")


def test_logged_failure_includes_its_traceback() -> None:
    out = Written()
    log = Logger(namespace="x", observer=JsonLines(out))
    try:
        burn()
    except OSError:
        log.failure("no image for {who}", who="you")
    (line,) = out.lines()
    assert (line["level"], line["message"], line["who"]) == ("critical", "no image for you", "you")
    assert "OSError" in line["traceback"]
    assert "the disk is on fire" in line["traceback"]
    assert ":burn\n" in line["traceback"]


@pytest.mark.parametrize("make", [dict, lambda: {"log_format": None}, lambda: {"message": ("x",)}])
def test_empty_event_is_one_line(make: Callable[[], LogEvent]) -> None:
    line = describe(make())
    assert (line["level"], line["logger"], line["message"]) == ("info", "", "")


def test_legacy_log_messages_are_written() -> None:
    out = Written()
    lines = JsonLines(out)
    globalLogPublisher.addObserver(lines)
    try:
        legacy_log.msg("hello", "there", system="old", number=5)
        legacy_log.err(OSError("no"), "why it failed")
    finally:
        globalLogPublisher.removeObserver(lines)
    said, failed = out.lines()
    assert said.pop("time")
    assert said == {
        "level": "info",
        "logger": "log_legacy",
        "message": "hello there",
        "number": 5,
    }
    assert failed["level"] == "critical"
    assert failed["message"].startswith("why it failed\n")
    assert "OSError: no" in failed["message"]


# Levels.

LEVELS = ["debug", "info", "warn", "error", "critical"]


def told(environ: dict[str, str]) -> list[str]:
    out = Written()
    log = Logger(observer=observer(out, environ))
    for level in LEVELS:
        log.emit(LogLevel.lookupByName(level), "x")
    return [line["level"] for line in out.lines()]


@pytest.mark.parametrize(
    ("environ", "lowest"),
    [
        ({}, "info"),
        ({"LOGLEVEL": "trace"}, "debug"),
        ({"LOGLEVEL": "debug"}, "debug"),
        ({"LOGLEVEL": "info"}, "info"),
        ({"LOGLEVEL": "warning"}, "warn"),
        ({"LOGLEVEL": "WARN"}, "warn"),
        ({"LOGLEVEL": "error"}, "error"),
        ({"LOGLEVEL": "fatal"}, "critical"),
        ({"LOG_LEVEL": "error"}, "error"),
        ({"LOGLEVEL": "debug", "LOG_LEVEL": "error"}, "debug"),
        ({"LOGLEVEL": "", "LOG_LEVEL": "error"}, "error"),
        ({"LOGLEVEL": "loud"}, "info"),
    ],
)
def test_events_below_the_level_are_dropped(environ: dict[str, str], lowest: str) -> None:
    assert told(environ) == LEVELS[LEVELS.index(lowest) :]


def test_observer_defaults_to_the_environment_and_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``twistd --logger`` calls it."""
    monkeypatch.setenv("LOGLEVEL", "error")
    log = Logger(namespace="x", observer=observer())
    log.info("not told")
    log.error("told")
    assert json.loads(capsys.readouterr().out)["message"] == "told"


def test_info_events_of_twisted_factories_are_dropped() -> None:
    out = Written()
    legacy = Logger(namespace="log_legacy", observer=observer(out, {}))
    factory = Logger(namespace="twisted.web.client._HTTP11ClientFactory", observer=observer(out, {}))
    legacy.info("ApiSite starting on 8090")
    factory.info("Starting factory {factory!r}", factory="f")
    factory.info("Stopping factory {factory!r}", factory="f")
    legacy.error("an old-style error")
    factory.info("something else")
    assert [line["message"] for line in out.lines()] == ["an old-style error", "something else"]


# A terminal.


def test_terminal_gets_readable_lines() -> None:
    master, slave = os.openpty()
    with os.fdopen(master, "rb", buffering=0) as screen, os.fdopen(slave, "w", encoding="utf-8") as terminal:
        log = Logger(namespace="catalog", observer=observer(terminal, {}))
        log.debug("not told")
        log.info("{image} is ready", image="ä.iso")
        log.info("")
        first = screen.read(4096).decode()
        try:
            burn()
        except OSError:
            log.failure("no image")
        second = screen.read(4096).decode()
    assert first.count("\n") == 1
    assert "[catalog#info] ä.iso is ready" in first
    assert "[catalog#critical] no image" in second
    assert "the disk is on fire" in second
