from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

from image_service.core.errors import NotFound, UpstreamError, UpstreamTimeout
from image_service.server.assisted.failure_log import UpstreamHealth

BEGIN = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def at(seconds: int) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def test_failures_are_counted_from_the_last_answer() -> None:
    seconds = count()
    health = UpstreamHealth("http://assisted", lambda: at(next(seconds)))
    assert (health.answered_at, health.failed_at, health.failures) == (None, None, 0)
    health.record(UpstreamError("connection refused"))
    assert (health.failing_since, health.failure_status) == (at(0), 502)
    health.record(UpstreamTimeout("took more than 30 s"))
    assert (health.failing_since, health.failure_status) == (at(0), 504)
    assert (health.answered_at, health.failed_at, health.failures) == (None, at(1), 2)
    assert health.failure == "took more than 30 s"
    health.record(None)
    assert (health.answered_at, health.failed_at, health.failures) == (at(2), at(1), 0)
    assert health.failing_since is None


def test_refusal_is_an_answer() -> None:
    health = UpstreamHealth("http://assisted", lambda: BEGIN)
    health.record(NotFound("no such infra-env"))
    assert (health.answered_at, health.failed_at, health.failure) == (BEGIN, None, "")


def test_failure_is_redacted() -> None:
    token = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
    health = UpstreamHealth("http://assisted", lambda: BEGIN)
    health.record(UpstreamError(f"cannot read {token}"))
    assert token not in health.failure
