from __future__ import annotations

import io
import json
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.logger import LogLevel, formatEvent, globalLogPublisher

from image_service.server.http.head import Request
from image_service.server.http.request_id import valid_request_id
from image_service.server.http.response import Problem, Response
from image_service.server.observability.log import JsonLines
from image_service.server.transport.exchanges.access_log import (
    COMPLETE,
    SUMMARY_SECONDS,
    AccessLog,
    ConnectionLog,
)
from image_service.server.transport.exchanges.exchange import NO_SUBJECT, Exchange, PreparedResponse, Subject
from image_service.server.transport.sending.observer import AbortReason

IMAGE = Subject("/byid/:token", "a6c0ff12-3456-4789-8abc-def012345678", "full-iso")
ROOTFS = Subject("/boot-artifacts/rootfs", kind="rootfs")
OTHER = attrs.evolve(IMAGE, infra_env="b7d1ff12-3456-4789-8abc-def012345678")


@attrs.frozen
class Over:
    """A request that is over, and how it went."""

    request_id: str
    method: str
    user_agent: str
    range: str
    subject: Subject
    status: int
    code: str
    body_bytes: int
    seconds: float
    ended: str
    abort: AbortReason | None = None
    detail: str = ""
    retry: bool = False
    target: str = "/"
    is_repeated: bool = False


RANGE = Over(
    request_id="",
    method="GET",
    user_agent="httpfs2",
    range="bytes=0-4095",
    subject=IMAGE,
    status=206,
    code="",
    body_bytes=4096,
    seconds=0.25,
    ended=COMPLETE,
)
GONE = AbortReason.CLIENT_GONE
HEAD = attrs.evolve(RANGE, method="HEAD", status=200, body_bytes=0, range="")


def add(log: ConnectionLog, request: Over) -> None:
    headers = {"user-agent": request.user_agent, "range": request.range}
    problem = Problem(request.code, request.detail, "r-1", request.retry) if request.code else None
    exchange = Exchange(
        request.method,
        Request(request.method, request.target, headers, keep_alive=True),
        0,
        prepared=PreparedResponse(Response(request.status, b"", problem=problem), request.subject),
        request_id=request.request_id,
        is_repeated=request.is_repeated,
    )
    log.add(exchange, request.body_bytes, request.seconds, request.ended, request.abort)


class Kept:
    """A connection's log, and the lines that it wrote."""

    def __init__(self, *, each_range: bool = False) -> None:
        self.clock = Clock()
        self.clock.advance(1000)
        self.events: list[dict[str, Any]] = []
        self.log = AccessLog(self.clock, each_range, self._keep)  # type: ignore[arg-type] # a method is an observer
        self.connection = ConnectionLog(self.log, "192.0.2.1")

    def _keep(self, event: dict[str, Any]) -> None:
        self.events.append({**event, **event["log_fields"]})

    def add(self, *requests: Over) -> None:
        for request in requests:
            add(self.connection, request)

    def told(self, name: str) -> list[object]:
        return [event[name] for event in self.events]


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_request_has_one_line_with_its_fields(kept: Kept) -> None:
    kept.add(attrs.evolve(HEAD, request_id="r-1", seconds=0.123456789))
    (event,) = kept.events
    assert event["log_level"] is LogLevel.info
    assert event["log_namespace"] == "access"
    facts = {name: value for name, value in event.items() if not name.startswith("log_")}
    assert facts == {
        "id": "r-1",
        "client": "192.0.2.1",
        "method": "HEAD",
        "user_agent": "httpfs2",
        "handler": IMAGE.handler,
        "infra_env": IMAGE.infra_env,
        "kind": "full-iso",
        "range": "",
        "status": 200,
        "code": "",
        "bytes": 0,
        "seconds": 0.123457,
        "ended": "complete",
    }
    assert kept.clock.getDelayedCalls() == []


def test_ranges_are_summed_into_one_line(kept: Kept) -> None:
    """A mount: HEAD, then thousands of ranges on one connection."""
    kept.add(HEAD, *[RANGE] * 3000)
    assert kept.told("method") == ["HEAD"]
    kept.connection.close()
    _, event = kept.events
    facts = {name: value for name, value in event.items() if not name.startswith("log_")}
    assert re.fullmatch("[0-9a-f]{32}", facts.pop("id"))
    assert facts == {
        "client": "192.0.2.1",
        "method": "GET",
        "user_agent": "httpfs2",
        "handler": IMAGE.handler,
        "infra_env": IMAGE.infra_env,
        "kind": "full-iso",
        "status": 206,
        "ranges": 3000,
        "bytes": 3000 * 4096,
        "seconds": 0.25,
        "ended": "complete",
    }
    assert kept.clock.getDelayedCalls() == []


def test_summary_is_logged_every_ten_seconds(kept: Kept) -> None:
    assert SUMMARY_SECONDS == 10
    for _ in range(35):
        kept.add(RANGE)
        kept.clock.advance(1)
    assert kept.told("ranges") == [10, 10, 10]
    assert kept.told("seconds") == [10.25] * 3
    kept.connection.close()
    assert kept.told("ranges") == [10, 10, 10, 5]


def test_idle_connection_logs_nothing(kept: Kept) -> None:
    kept.add(RANGE)
    kept.clock.advance(9.9)
    assert kept.events == []
    kept.clock.advance(0.1)
    assert kept.told("ranges") == [1]
    assert kept.clock.getDelayedCalls() == []
    kept.clock.advance(1000)
    kept.connection.close()
    assert kept.told("ranges") == [1]


def test_close_logs_the_summary_and_stops_the_timer(kept: Kept) -> None:
    kept.connection.close()
    assert kept.events == []
    kept.add(RANGE, RANGE)
    kept.connection.close()
    kept.connection.close()
    assert kept.told("ranges") == [2]
    assert kept.clock.getDelayedCalls() == []


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(RANGE, subject=OTHER),
        attrs.evolve(RANGE, subject=attrs.evolve(IMAGE, kind="disconnected-iso")),
        attrs.evolve(RANGE, subject=attrs.evolve(IMAGE, handler="/images/:imageID")),
        attrs.evolve(RANGE, user_agent="curl/8"),
    ],
)
def test_other_subject_or_user_agent_starts_a_new_summary(kept: Kept, other: Over) -> None:
    kept.add(RANGE, RANGE)
    kept.clock.advance(4)
    kept.add(other)
    assert kept.told("ranges") == [2], "the line of the first is written at once"
    assert len(kept.clock.getDelayedCalls()) == 1
    kept.clock.advance(10)
    kept.add(RANGE)
    kept.connection.close()
    assert kept.told("ranges") == [2, 1, 1]
    assert kept.told("user_agent") == [RANGE.user_agent, other.user_agent, RANGE.user_agent]
    assert kept.told("infra_env") == [IMAGE.infra_env, other.subject.infra_env, IMAGE.infra_env]


@pytest.mark.parametrize(
    "over",
    [
        attrs.evolve(RANGE, ended="the client is gone", abort=GONE),
        attrs.evolve(RANGE, status=200),
        attrs.evolve(RANGE, status=304, body_bytes=0),
        attrs.evolve(RANGE, status=416, code="range-not-satisfiable"),
        attrs.evolve(RANGE, status=503, code="unavailable"),
        attrs.evolve(RANGE, status=0, ended="the client is gone", abort=GONE),
    ],
)
def test_requests_other_than_complete_ranges_are_logged_at_once(kept: Kept, over: Over) -> None:
    kept.add(RANGE, over, RANGE)
    assert kept.told("status") == [over.status]
    assert kept.told("ended") == [over.ended]
    assert kept.told("code") == [over.code or (over.abort.value if over.abort else "")]
    kept.connection.close()
    assert kept.events[-1]["ranges"] == 2


def test_each_range_is_logged_with_log_ranges_each() -> None:
    kept = Kept(each_range=True)
    kept.add(*[RANGE] * 5)
    assert kept.told("range") == ["bytes=0-4095"] * 5
    assert kept.told("bytes") == [4096] * 5
    assert len(set(kept.told("id"))) == 5
    kept.connection.close()
    assert len(kept.events) == 5
    assert kept.clock.getDelayedCalls() == []


@pytest.mark.parametrize(("each_range", "expected"), [(False, False), (True, True)])
def test_only_complete_ranges_have_no_own_line(*, each_range: bool, expected: bool) -> None:
    log = Kept(each_range=each_range).log
    request, repeated = Exchange("GET", None, 0), Exchange("HEAD", None, 0, is_repeated=True)
    assert log.has_own_line(request, 206) is expected
    assert log.has_own_line(repeated, 200) is expected
    assert all(log.has_own_line(request, status) for status in (200, 304, 404, 412, 416, 500))


def test_repeated_heads_are_summed_apart_from_ranges(kept: Kept) -> None:
    repeated = attrs.evolve(HEAD, is_repeated=True)
    kept.add(HEAD, repeated, repeated, repeated, RANGE, RANGE, repeated)
    kept.connection.close()
    assert kept.told("method") == ["HEAD", "HEAD", "GET", "HEAD"]
    assert kept.told("status") == [200, 200, 206, 200]
    assert [(event.get("heads"), event.get("ranges")) for event in kept.events[1:]] == [
        (3, None),
        (None, 2),
        (1, None),
    ]
    assert str(kept.events[1]["log_text"]).startswith(
        f"3 HEADs of {IMAGE.infra_env} full-iso to 192.0.2.1, 0"
    )


def test_repeated_head_that_is_not_sent_has_its_own_line(kept: Kept) -> None:
    kept.add(attrs.evolve(HEAD, is_repeated=True, ended="the client is gone", abort=GONE))
    assert kept.told("ended") == ["the client is gone"]


def test_lines_have_a_readable_text(kept: Kept) -> None:
    target = f"/byid/{IMAGE.infra_env}/4.20/x86_64/ful.iso"
    kept.add(
        attrs.evolve(HEAD, request_id="r-1"),
        attrs.evolve(RANGE, request_id="r-2", ended="the client is gone", abort=GONE),
        attrs.evolve(RANGE, request_id="r-3"),
    )
    kept.connection.close()
    kept.add(
        attrs.evolve(RANGE, request_id="r-4", subject=ROOTFS),
        attrs.evolve(RANGE, request_id="r-5", subject=ROOTFS),
        attrs.evolve(RANGE, request_id="r-6", subject=Subject("/streams/:stream/:document")),
    )
    kept.connection.close()
    kept.add(
        attrs.evolve(
            HEAD,
            request_id="r-7",
            method="GET",
            subject=NO_SUBJECT,
            status=404,
            code="not-found",
            detail="no such\nfile",
            target=target,
        ),
        attrs.evolve(
            HEAD,
            request_id="r-8",
            subject=NO_SUBJECT,
            status=0,
            ended="the client is gone",
            abort=GONE,
            target=target,
        ),
        attrs.evolve(HEAD, request_id="r-9", method="OPTIONS", subject=NO_SUBJECT, status=204, target="*"),
    )
    whose = f"{IMAGE.infra_env} full-iso to 192.0.2.1"
    assert [formatEvent(event) for event in kept.events] == [
        f"HEAD /byid/:token {whose}: 200, 0 bytes in 0.250 s (id r-1)",
        f"GET /byid/:token {whose}: 206, 4096 bytes in 0.250 s, the client is gone (id r-2)",
        f"1 range of {whose}, 4096 bytes in 0.250 s (id r-3)",
        "2 ranges of rootfs to 192.0.2.1, 8192 bytes in 0.250 s (id r-4)",
        "1 range of /streams/:stream/:document to 192.0.2.1, 4096 bytes in 0.250 s (id r-6)",
        f"GET {target} to 192.0.2.1: 404 not-found: no such\\nfile (id r-7)",
        f"HEAD {target} to 192.0.2.1: no response in 0.250 s, the client is gone (id r-8)",
        "OPTIONS *** to 192.0.2.1: 204, 0 bytes in 0.250 s (id r-9)",
    ]


def test_failed_request_has_its_path_and_detail_in_fields(kept: Kept) -> None:
    kept.add(
        attrs.evolve(
            HEAD, status=404, code="not-found", detail="no such file", target="/bytoken/s3cr3t/x/y/z"
        ),
        attrs.evolve(HEAD, status=200),
    )
    failed, succeeded = kept.events
    assert (failed["path"], failed["detail"]) == ("/bytoken/***/x/y/z", "no such file")
    assert not {"path", "detail"} & set(succeeded)


FAILED = attrs.evolve(HEAD, code="some-code")


@pytest.mark.parametrize(
    ("over", "level"),
    [
        (HEAD, "info"),
        (attrs.evolve(HEAD, status=304), "info"),
        *((attrs.evolve(FAILED, status=status), "warn") for status in (400, 401, 404, 408, 412, 416, 431)),
        *((attrs.evolve(FAILED, status=status), "error") for status in (500, 502, 503, 504)),
        *((attrs.evolve(FAILED, status=status, retry=True), "warn") for status in (503, 504)),
        *((attrs.evolve(FAILED, status=status), "warn") for status in (501, 505)),
        *((attrs.evolve(HEAD, subject=Subject(path)), "debug") for path in ("/health", "/live", "/metrics")),
        (attrs.evolve(HEAD, subject=Subject("/images")), "info"),
        (attrs.evolve(FAILED, subject=Subject("/health"), status=503, retry=True), "warn"),
        (attrs.evolve(RANGE, abort=AbortReason.CLIENT_GONE), "info"),
        (attrs.evolve(RANGE, status=0, abort=AbortReason.CLIENT_GONE), "info"),
        (attrs.evolve(RANGE, subject=Subject("/metrics"), abort=AbortReason.SHUTDOWN), "warn"),
        *(
            (attrs.evolve(RANGE, abort=reason), "warn")
            for reason in (AbortReason.NO_PROGRESS, AbortReason.TOO_SLOW)
        ),
        *(
            (attrs.evolve(RANGE, abort=reason), "error")
            for reason in (AbortReason.DISK_FAILED, AbortReason.SHORT_READ, AbortReason.INTERNAL_ERROR)
        ),
    ],
)
def test_level_says_who_has_failed(kept: Kept, over: Over, level: str) -> None:
    kept.add(attrs.evolve(over, ended="the reason" if over.abort else COMPLETE))
    assert [event["log_level"].name for event in kept.events] == [level]


def test_access_log_defaults_to_summaries_and_the_global_log() -> None:
    log = AccessLog(Clock())
    assert not log.each_range
    assert log.observer is globalLogPublisher


def test_connections_do_not_share_summaries(kept: Kept) -> None:
    other = ConnectionLog(kept.log, "192.0.2.2")
    kept.add(RANGE)
    add(other, RANGE)
    kept.connection.close()
    other.close()
    assert kept.told("client") == ["192.0.2.1", "192.0.2.2"]
    assert kept.told("ranges") == [1, 1]


# Nothing unsafe, nothing without end.


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("bytes=0-1", "bytes=0-1"),
        ("bytes=0-1, 5-,-7", "bytes=0-1, 5-,-7"),
        ("bytes=" + "0-1," * 60, ""),
        ("bytes=0-1\n", ""),
        ("s3cr3t", ""),
        ("bytes=s3cr3t", ""),
        ("Bytes=0-1", ""),
        ("", ""),
    ],
)
def test_range_with_other_characters_is_not_logged(kept: Kept, value: str, expected: str) -> None:
    kept.add(attrs.evolve(RANGE, status=416, range=value))
    assert kept.told("range") == [expected]


def test_user_agent_is_truncated(kept: Kept) -> None:
    kept.add(attrs.evolve(HEAD, user_agent="x" * 30_000), attrs.evolve(RANGE, user_agent="y" * 30_000))
    kept.connection.close()
    assert kept.told("user_agent") == ["x" * 200, "y" * 200]


def test_invalid_request_is_logged(kept: Kept) -> None:
    kept.add(Over("", "", "", "", NO_SUBJECT, 400, "request-invalid", 120, 0.0, COMPLETE))
    (event,) = kept.events
    assert (event["status"], event["code"], event["method"], event["handler"]) == (
        400,
        "request-invalid",
        "",
        "",
    )


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from([200, 206]))
def test_any_text_makes_one_line_of_json(user_agent: str, field: str, status: int) -> None:
    out = io.StringIO()
    log = AccessLog(Clock(), each_range=True, observer=JsonLines(out))
    add(ConnectionLog(log, "::1"), attrs.evolve(RANGE, user_agent=user_agent, range=field, status=status))
    (line,) = out.getvalue().splitlines()
    assert json.loads(line)["user_agent"] == user_agent
    assert "{" not in json.loads(line)["message"]


def test_line_without_a_request_id_gets_one_and_a_summary_has_its_first(kept: Kept) -> None:
    kept.add(HEAD, attrs.evolve(RANGE, request_id="first"), attrs.evolve(RANGE, request_id="second"))
    kept.connection.close()
    made, first = kept.told("id")
    assert valid_request_id(str(made))
    assert first == "first"
