from __future__ import annotations

import json

import pytest
from twisted.logger import LogLevel, capturedLogs

from image_service.core.errors import (
    BudgetExceeded,
    ImageServiceError,
    MethodNotAllowed,
    NotFound,
    Unavailable,
    UnknownBaseImage,
)
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.api.errors import ErrorEntry, ErrorList

ENTRIES = [
    ErrorEntry(15, 404, "there is no such compose"),
    ErrorEntry(21, 404, "there is no such path"),
    ErrorEntry(22, 405, "the path does not allow this method"),
    ErrorEntry(503, 503, "try again later"),
    ErrorEntry(507, 507, "there is no room"),
    ErrorEntry(10000, 500, "unspecified"),
]
NUMBERS = {
    ImageServiceError: 10000,
    NotFound: 21,
    MethodNotAllowed: 22,
    Unavailable: 503,
    BudgetExceeded: 507,
}


def error_list(*, has_message: bool = False) -> ErrorList:
    return ErrorList("/api/x", "X-", ENTRIES, NUMBERS, has_message=has_message)


@pytest.mark.parametrize(
    ("error", "number", "status"),
    [
        (ApiError("why", number=15), 15, 404),
        (NotFound("why"), 21, 404),
        (UnknownBaseImage("why"), 21, 404),
        (Unavailable("why"), 503, 503),
        (ImageServiceError("why"), 10000, 500),
        (BudgetExceeded("why"), 507, 507),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_error_is_rendered_with_its_number(error: ImageServiceError, number: int, status: int) -> None:
    response = error_list().render(error)
    document = json.loads(response.body)
    assert response.status == status
    assert len(document.pop("operation_id")) == (32 if status in {500, 503} else 0)  # if it is logged
    assert document == {
        "id": str(number),
        "kind": "Error",
        "href": f"/api/x/errors/{number}",
        "code": f"X-{number}",
        "reason": next(entry.reason for entry in ENTRIES if entry.number == number),
        "details": "why",
    }


@pytest.mark.parametrize(
    ("error", "levels"),
    [
        (NotFound("why"), []),
        (BudgetExceeded("why"), []),
        (Unavailable("why"), [LogLevel.warn]),
        (ImageServiceError("why"), [LogLevel.error]),
    ],
    ids=lambda value: getattr(value, "code", None),
)
def test_only_failures_of_the_service_are_logged_as_errors(
    error: ImageServiceError, levels: list[LogLevel]
) -> None:
    with capturedLogs() as events:
        error_list().render(error)
    assert [event["log_level"] for event in events] == levels


def test_details_are_a_string_even_without_any() -> None:
    assert json.loads(error_list().render(ApiError(number=15)).body)["details"] == ""


def test_message_equals_the_reason() -> None:
    document = json.loads(error_list(has_message=True).render(ApiError(number=15)).body)
    assert document["message"] == document["reason"]


def test_fields_and_retry_after_are_sent() -> None:
    allow = ("Allow", "GET")
    assert error_list().render(MethodNotAllowed("x", fields=(allow,))).fields == (allow,)
    assert error_list().render(Unavailable("x", retry_after_seconds=5)).fields == (("Retry-After", "5"),)
    assert error_list().render(Unavailable("x")).fields == (("Retry-After", "10"),)


def test_list_has_all_errors_by_number() -> None:
    assert [each["id"] for each in error_list().documents()] == ["15", "21", "22", "503", "507", "10000"]
    assert 15 in error_list()
    assert 16 not in error_list()
