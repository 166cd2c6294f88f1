"""What the log says while the engine does not answer."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from twisted.logger import LogLevel, capturedLogs, formatEvent

from image_service.jobs.engine import connection
from image_service.jobs.engine.connection import EngineConnection
from image_service.settings.jobs.engine import EngineSettings
from tests.jobs.engine.driver import RecordingActions
from tests.ports import free_port


class EndOfTest(Exception):
    """The connection was tried often enough."""


class Twice:
    """Delays nothing, and ends the test after the second failure."""

    min_seconds = 1.0

    def delay_seconds(self, failures: int) -> float:
        if failures == 2:
            raise EndOfTest
        return 0.0


def logged_without_engine() -> list[tuple[LogLevel, str]]:
    """Try twice to connect to a port on which nothing listens."""
    with closing(asyncio.new_event_loop()) as loop, capturedLogs() as events:
        engine = EngineConnection(f"127.0.0.1:{free_port()}", EngineSettings(), loop)
        engine.start(RecordingActions())
        work, check = engine._tasks
        with pytest.raises(EndOfTest):
            loop.run_until_complete(work)
        check.cancel()
    texts = [(event["log_level"], formatEvent(event)) for event in events]
    return [(level, text) for level, text in texts if "job engine" in text]


def test_engine_that_starts_is_waited_for_without_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BACKOFF", Twice())
    assert logged_without_engine() == [(LogLevel.info, "waiting for the job engine, 30 s at most")]


def test_silence_beyond_that_is_a_fault_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_BACKOFF", Twice())
    monkeypatch.setattr(connection, "_START_SECONDS", 0.0)
    line = "the job engine cannot be used: no connection: Connection refused"
    assert logged_without_engine() == [(LogLevel.warn, line)] * 2
