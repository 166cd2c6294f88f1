from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from jsonschema import Draft202012Validator

from image_service.app.admin.process_status import ProcessStatus, merge_statuses
from image_service.common.openapi.document import reference
from image_service.core.errors import UpstreamError
from image_service.server.admin.status_api import STATUS_SCHEMAS
from image_service.server.assisted.failure_log import UpstreamHealth

if TYPE_CHECKING:
    from collections.abc import Mapping

NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
NOW_TEXT = "2026-03-04T05:06:07Z"


@attrs.frozen
class FakeListeners:
    connections: int = 3
    shutting_down: bool = False

    def handlers(self) -> list[str]:
        return ["/byid", "/images"]


@attrs.frozen
class FakeDatabase:
    was_reached: bool = True
    failing_seconds: float | None = None
    round_trip_seconds: float = 0.001


@attrs.frozen
class FakeStreams:
    failures: Mapping[str, int] = attrs.field(factory=lambda: {"stable": 2})
    ages_seconds: Mapping[str, float] = attrs.field(factory=lambda: {"stable": 60.0})


@attrs.frozen
class FakeCertificate:
    """A certificate and its loaded form in one."""

    not_after: datetime
    file: str = "/etc/tls.crt"

    def get(self) -> FakeCertificate:
        return self


def process(**parts: Any) -> ProcessStatus:
    upstream = UpstreamHealth("http://assisted", lambda: NOW)
    given = {"upstream": upstream, "listeners": FakeListeners(), "now": lambda: NOW, **parts}
    return ProcessStatus(**{"get_base_url": lambda: "http://localhost:8080", "standalone": False, **given})


def checked(status: Mapping[str, Any]) -> Mapping[str, Any]:
    schema = {**reference("Status"), "components": {"schemas": STATUS_SCHEMAS}}
    others: Mapping[str, Any] = {
        "verdict": {"level": "good", "text": ""},
        "base_address": {"decided_by": "LISTEN_ADDRESS", "chosen": None, "is_present": True, "addresses": []},
        "replicas": [],
        "totals": None,
    }
    Draft202012Validator(schema).validate({**others, **status})
    return status


def test_process_without_any_part_is_described() -> None:
    status = checked(process().describe("", ""))
    assert (status["ready"], status["reason"], status["impairment"]) == (True, None, None)
    assert (status["connections"], status["requests"], status["workers"]) == (3, 2, 1)
    assert status["started_at"] == NOW_TEXT
    assert (status["database"], status["streams"], status["certificates"]) == (None, [], [])


def test_parts_are_described() -> None:
    certificate = FakeCertificate(datetime(2026, 3, 10, tzinfo=UTC))
    described = process(database=FakeDatabase(), streams=FakeStreams(), certificate=certificate)
    status = checked(described.describe("no image", ""))
    assert (status["ready"], status["reason"]) == (False, "no image")
    assert status["streams"] == [{"name": "stable", "refreshed_at": "2026-03-04T05:05:07Z", "failures": 2}]
    assert status["certificates"] == [
        {"file": "/etc/tls.crt", "not_after": "2026-03-10T00:00:00Z", "state": "ending"}
    ]
    assert status["database"] == {"was_reached": True, "failing_seconds": None, "round_trip_seconds": 0.001}


@pytest.mark.parametrize(
    ("not_after", "state"),
    [
        (datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC), "ended"),
        (datetime(2026, 3, 18, 5, 6, 7, tzinfo=UTC), "ending"),
        (datetime(2026, 3, 18, 5, 6, 8, tzinfo=UTC), "valid"),
    ],
    ids=["ended", "ending", "valid"],
)
def test_certificate_is_reported_two_weeks_before_its_end(not_after: datetime, state: str) -> None:
    (certificate,) = process(certificate=FakeCertificate(not_after)).describe("", "")["certificates"]
    assert certificate["state"] == state


def test_processes_are_added_up() -> None:
    failing = process()
    failing.upstream.record(UpstreamError("refused"))
    answered = process()
    answered.upstream.record(None)
    unready = failing.describe("not ready yet", "")
    merged = checked(merge_statuses([unready, answered.describe("", ""), process().describe("", "")]))
    assert (merged["ready"], merged["reason"]) == (True, None)
    assert (merged["workers"], merged["connections"], merged["requests"]) == (3, 9, 6)
    assert merged["upstream"] == {
        "url": "http://assisted",
        "answered_at": NOW_TEXT,
        "failed_at": NOW_TEXT,
        "failing_since": NOW_TEXT,
        "failure": "refused",
        "failure_status": 502,
        "failures": 1,
    }


def test_answer_to_one_process_ends_the_failure_of_another() -> None:
    failing, answered = process(), process()
    failing.upstream.record(UpstreamError("refused"))
    answered.upstream.answered_at = NOW + timedelta(seconds=1)
    upstream = merge_statuses([each.describe("", "") for each in (failing, answered)])["upstream"]
    assert (upstream["failing_since"], upstream["failures"]) == (None, 0)


def test_service_is_not_ready_if_no_process_is() -> None:
    merged = merge_statuses([process().describe("one reason", ""), process().describe("another", "")])
    assert (merged["ready"], merged["reason"]) == (False, "one reason")
