"""The log events and metrics of calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.logger import ILogObserver, LogLevel, formatEvent, globalLogPublisher
from zope.interface import implementer

from image_service.assisted.client import AssistedService
from image_service.errors import ImageServiceError
from tests.assisted.upstream import OK, upstream
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twisted.internet.epollreactor import EPollReactor
    from twisted.logger import LogEvent

ID = "5a3b1e00-0000-4000-8000-000000000009"
CHECK_URL = "check ASSISTED_SERVICE_HOST and ASSISTED_SERVICE_SCHEME"
CONFIG = f"the Ignition config of infra-env {ID}"


@implementer(ILogObserver)
@attrs.frozen
class Reports:
    """What a client logs and records."""

    events: list[LogEvent] = attrs.field(factory=list)
    records: list[tuple[str, str]] = attrs.field(factory=list)

    def __call__(self, event: LogEvent) -> None:
        self.events.append(event)

    def record(self, kind: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.records.append((kind, outcome))


@pytest.fixture
def reports() -> Iterator[Reports]:
    reports = Reports()
    globalLogPublisher.addObserver(reports)
    yield reports
    globalLogPublisher.removeObserver(reports)


@attrs.frozen
class Case:
    """A response, the log line that it causes and its outcome."""

    head: str
    body: bytes
    level: object
    text: str
    outcome: str


CASES = (
    Case(
        "503 No",
        b"",
        LogLevel.warn,
        f"assisted-service answered 503 for {CONFIG}; see the log of assisted-service",
        "failed",
    ),
    Case(
        "302 Found",
        b"",
        LogLevel.warn,
        f"assisted-service answered 302 for {CONFIG}; {CHECK_URL}",
        "refused",
    ),
    Case("404 No", b"", LogLevel.info, f"assisted-service answered 404 for {CONFIG}", "not-found"),
    Case("200 OK", b"<html>", LogLevel.warn, f"assisted-service: {CONFIG}, 6 bytes, is not JSON", "failed"),
    Case(
        "200 OK",
        b'{"ignition": 1}',
        LogLevel.info,
        f"assisted-service sent {CONFIG}: the Ignition config's 'ignition' is not an object",
        "refused",
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
@ensure_deferred
async def test_failed_call_is_logged_and_recorded_once(
    reactor: EPollReactor, reports: Reports, case: Case
) -> None:
    async with upstream(reactor) as server:
        head = f"HTTP/1.1 {case.head}\r\nContent-Length: {len(case.body)}\r\n\r\n"
        server.answer = head.encode() + case.body
        assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}", record=reports.record)
        with pytest.raises(ImageServiceError):
            await assisted.fetch_ignition(ID, None, None)
        await assisted.close()
    logged = [(event["log_level"], formatEvent(event)) for event in reports.events if "code" in event]
    assert logged == [(case.level, case.text)]
    assert reports.records == [("ignition", case.outcome)]


@ensure_deferred
async def test_successful_call_is_recorded_and_logs_nothing(reactor: EPollReactor, reports: Reports) -> None:
    async with upstream(reactor) as server:
        server.answer = OK
        reports.events.clear()
        assisted = AssistedService(reactor, f"http://127.0.0.1:{server.port}", record=reports.record)
        await assisted.fetch_ignition(ID, None, None)
        await assisted.close()
        assert list(map(formatEvent, reports.events)) == []
    assert reports.records == [("ignition", "ok")]
