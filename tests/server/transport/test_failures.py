"""The requests in the list of recent failures."""

from __future__ import annotations

import pytest

from image_service.core.errors import NotFound
from image_service.server.http.head import Request
from image_service.server.http.problem import problem
from image_service.server.http.response import Response
from image_service.server.transport.exchanges.access_log import COMPLETE
from image_service.server.transport.exchanges.exchange import Exchange, PreparedResponse
from image_service.server.transport.exchanges.failures import (
    MAX_FAILURES,
    WARNING_SECONDS,
    FailureList,
    RecentFailures,
)
from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure

TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


def refused(target: str) -> Exchange:
    request = Request("GET", target, {"user-agent": f"iDRAC/9 {TOKEN} \x1b"}, keep_alive=True)
    response = problem(NotFound(f"no image for {TOKEN}"), {})
    return Exchange("GET", request, 0.0, prepared=PreparedResponse(response), request_id="4f2a")


def test_refused_request_is_listed_without_its_token() -> None:
    failures, listed = RecentFailures(lambda: 1.0), FailureList()
    failures.record_exchange(refused(f"/bytoken/{TOKEN}/4.20/x86_64/full.iso"), "192.0.2.1", COMPLETE)
    listed.merge(failures.collect(), failures.collect_counts())
    assert failures.collect() == []
    (failure,) = listed.after()
    assert (failure.path, failure.status) == ("/bytoken/***/4.20/x86_64/full.iso", 404)
    assert (failure.client, failure.time) == ("192.0.2.1", 1.0)
    assert failure.reason == "no image for ***"
    assert failure.cause == "not-found"
    assert listed.after(listed.revision) == []


@pytest.mark.parametrize(
    ("outcome", "reason"), [(COMPLETE, "x"), ("the client is gone", "x; the client is gone")]
)
def test_reason_names_the_refusal_and_the_abort(outcome: str, reason: str) -> None:
    failures = RecentFailures()
    exchange = Exchange("GET", None, 0.0, prepared=PreparedResponse(problem(NotFound("x"), {})))
    failures.record_exchange(exchange, "192.0.2.1", outcome)
    ((_, _, listed, cause, path, *_),) = failures.collect()
    assert (listed, cause, path) == (reason, "not-found", None)


def test_abort_and_handshake_say_their_cause() -> None:
    failures, listed = RecentFailures(), FailureList()
    failures.record_exchange(
        answered("/images/a"), "192.0.2.1", "the client is gone", AbortReason.CLIENT_GONE
    )
    failures.record_handshake("192.0.2.1", HandshakeFailure.NOT_TRUSTED, "TLS handshake: not trusted")
    listed.merge(failures.collect(), failures.collect_counts())
    assert [failure.cause for failure in listed.after()] == ["aborted-client-gone", "tls-not-trusted"]


def test_request_is_known_by_identifier_and_user_agent_without_a_token() -> None:
    failures = RecentFailures()
    failures.record_exchange(refused("/images/a"), "192.0.2.1", COMPLETE)
    assert failures.collect()[0][-2:] == ("4f2a", "iDRAC/9 *** \\x1b")


def test_failures_are_counted_by_cause_though_only_the_latest_are_listed() -> None:
    failures, listed = RecentFailures(), FailureList()
    for _ in range(2):
        for _ in range(MAX_FAILURES):
            failures.record_exchange(refused("/images/a"), "192.0.2.1", COMPLETE)
        failures.record_warnings(answered("/images/a"), "192.0.2.1", ["x"])
        listed.merge(failures.collect(), failures.collect_counts())
    assert len(listed.after()) == MAX_FAILURES
    assert listed.counts == {"not-found": 2 * MAX_FAILURES, "warning": 1}


def test_failed_probe_is_not_listed() -> None:
    failures = RecentFailures()
    failures.record_exchange(refused("/health"), "192.0.2.1", COMPLETE)
    assert failures.collect() == []


def test_warning_is_listed_with_the_status_and_without_the_token() -> None:
    failures = RecentFailures(lambda: 1.0)
    failures.record_warnings(answered(f"/bytoken/{TOKEN}/4.20/x86_64/full.iso"), "192.0.2.1", ["a", "b"])
    assert failures.collect() == [
        (1.0, "192.0.2.1", reason, "warning", "/bytoken/***/4.20/x86_64/full.iso", 200, "", "")
        for reason in ("a", "b")
    ]


def test_warning_is_repeated_after_a_while_and_for_other_clients_and_images() -> None:
    now = 0.0
    failures = RecentFailures(lambda: now)
    one, other = answered("/images/a"), answered("/images/b")
    for exchange, client in (
        (one, "192.0.2.1"),
        (one, "192.0.2.1"),
        (one, "192.0.2.2"),
        (other, "192.0.2.1"),
    ):
        failures.record_warnings(exchange, client, ["x"])
    assert [(client, path) for _, client, _, _, path, *_ in failures.collect()] == [
        ("192.0.2.1", "/images/a"),
        ("192.0.2.2", "/images/a"),
        ("192.0.2.1", "/images/b"),
    ]
    for now in (WARNING_SECONDS - 1, WARNING_SECONDS, WARNING_SECONDS + 1):  # noqa: B007 - the clock reads it
        failures.record_warnings(one, "192.0.2.1", ["x"])
    assert [time for time, *_ in failures.collect()] == [WARNING_SECONDS]


def answered(target: str) -> Exchange:
    request = Request("GET", target, {}, keep_alive=True)
    return Exchange("GET", request, 0.0, prepared=PreparedResponse(Response(200, b"")))
