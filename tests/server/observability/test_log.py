from __future__ import annotations

import enum
import io
import json
import os
import re
import unicodedata
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import Logger, LogLevel, globalLogPublisher
from twisted.python import log as legacy_log

from image_service.server.observability.log import (
    JournalLines,
    JsonLines,
    ProcessTag,
    ReadableLines,
    describe,
    log_through_observer,
    observer,
    present_level,
    set_level,
)

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
    ProcessTag(JsonLines(out), 3)(event(log_format="hello"))
    (line,) = out.lines()
    assert (line["message"], line["worker"], len(out.pieces)) == ("hello", 3, 1)
    readable = Written()
    ProcessTag(ReadableLines(readable), 3)(event(log_format="hello"))
    assert "[worker 3: x#info] hello" in readable.getvalue()


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


@pytest.mark.parametrize("lowest", LEVELS)
def test_level_can_be_set_while_the_process_runs(lowest: str) -> None:
    out = Written()
    log = Logger(observer=ProcessTag(observer(out, {"LOGLEVEL": "error"}), 1))
    assert present_level() is not None
    set_level(lowest)
    assert present_level() == lowest
    for level in LEVELS:
        log.emit(LogLevel.lookupByName(level), "x")
    assert [line["level"] for line in out.lines()] == LEVELS[LEVELS.index(lowest) :]


def test_level_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "level").write_text("error\n")
    assert told({"LOGLEVEL": f"@{tmp_path / 'level'}"}) == ["error", "critical"]
    assert told({"LOGLEVEL": f"@{tmp_path / 'missing'}"}) == LEVELS[1:]


def test_observer_defaults_to_the_environment_and_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``twistd --logger`` calls it."""
    monkeypatch.setenv("LOGLEVEL", "error")
    log = Logger(namespace="x", observer=observer())
    log.info("not told")
    log.error("told")
    assert json.loads(capsys.readouterr().out)["message"] == "told"


@pytest.mark.parametrize("level", ["debug", "info"])
def test_events_of_twisted_below_warning_are_dropped(level: str) -> None:
    out = Written()
    lines = observer(out, {"LOGLEVEL": level})
    legacy, ours = Logger(namespace="log_legacy", observer=lines), Logger(namespace="x", observer=lines)
    factory = Logger(namespace="twisted.web.client._HTTP11ClientFactory", observer=lines)
    legacy.info("ApiSite starting on 8090")
    legacy.error("an old-style error")
    for log in (factory, ours):
        log.info("Starting factory {factory!r}", factory="f")
        log.info("Stopping factory {factory!r}", factory="f")
    factory.info("something else")
    factory.warn("a warning")
    ours.info("ours")
    assert [line["message"] for line in out.lines()] == ["an old-style error", "a warning", "ours"]


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
        second = ""
        while "the disk is on fire" not in second:  # a terminal passes on what it has, in parts
            second += screen.read(4096).decode()
    assert first.count("\n") == 1
    assert "[catalog#info] ä.iso is ready" in first
    assert "[catalog#critical] no image" in second


# Formats.


def format_of(out: Written, **environ: str) -> str:
    """Return the format of a line, as a reader recognizes it."""
    Logger(namespace="x", observer=observer(out, environ)).warn("hello")
    if out.getvalue() == "<4>[x#warn] hello\n":
        return "journal"
    if re.fullmatch(r"\d{4}-\d\d-\d\dT\S+ \[x#warn\] hello\n", out.getvalue()):
        return "text"
    (line,) = out.lines()
    assert (line["level"], line["message"]) == ("warn", "hello")
    return "json"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("text", "text"),
        ("json", "json"),
        ("journal", "journal"),
        ("auto", "json"),
        ("", "json"),
        ("x", "json"),
    ],
)
def test_format_is_the_variables(value: str, expected: str) -> None:
    assert format_of(Written(), LOG_FORMAT=value) == expected


def test_auto_is_journal_only_on_the_journals_stream(tmp_path: Path) -> None:
    with (tmp_path / "a").open("w") as journal, (tmp_path / "b").open("w") as file:
        status = os.fstat(journal.fileno())
        stream = f"{status.st_dev}:{status.st_ino}"
        for out in (journal, file):
            Logger(observer=observer(out, {"JOURNAL_STREAM": stream})).info("hello")
    assert (tmp_path / "a").read_text().startswith("<6>[")
    assert (tmp_path / "b").read_text().startswith("{")
    assert format_of(Written(), JOURNAL_STREAM=stream) == "json"


def test_each_line_for_the_journal_begins_with_its_priority() -> None:
    out = io.StringIO()
    log = Logger(namespace="x", observer=observer(out, {"LOG_FORMAT": "journal", "LOGLEVEL": "debug"}))
    for level in LEVELS:
        log.emit(LogLevel.lookupByName(level), "two\nlines")
    try:
        burn()
    except OSError:
        log.failure("no image")
    lines = out.getvalue().splitlines()
    assert lines[:10:2] == [
        f"<{7 - index - (index > 1)}>[x#{level}] two" for index, level in enumerate(LEVELS)
    ]
    assert lines[1:10:2] == [f"<{number}>\tlines" for number in (7, 6, 4, 3, 2)]
    assert len(lines) > 12
    assert {line[:4] for line in lines[11:]} == {"<2>\t"}


@given(st.text(), st.sampled_from([ReadableLines, JournalLines]))
def test_any_text_makes_lines_without_control_characters(text: str, kind: type[ReadableLines]) -> None:
    out = io.StringIO()
    kind(out)(event(log_format="{text}", text=text))
    *lines, end = out.getvalue().split("\n")
    categories = {unicodedata.category(character) for line in lines for character in line.replace("\t", "")}
    assert not categories & {"Cc", "Cs", "Zl", "Zp"}
    assert end == ""
    assert all(line.removeprefix("<6>").startswith("\t") for line in lines[1:])


# twistd.

TWISTD = {"logger": None, "syslog": 0, "logfile": None, "nodaemon": 1}


def test_twistd_uses_the_observer_on_standard_output() -> None:
    for path in (None, "-"):
        options: dict[str, object] = {**TWISTD, "logfile": path}
        log_through_observer(options)
        assert options["logger"] == "image_service.server.observability.log.observer"


@pytest.mark.parametrize("given_options", [{"logger": print}, {"syslog": 1}, {"nodaemon": 0, "logfile": "-"}])
def test_twistd_keeps_another_log_that_was_asked_for(given_options: dict[str, object]) -> None:
    options: dict[str, object] = {**TWISTD, **given_options}
    log_through_observer(options)
    assert options["logger"] == given_options.get("logger")
