from __future__ import annotations

import pytest

from image_service.core import errors
from image_service.core.errors import (
    ConfigurationError,
    ImageServiceError,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    Unavailable,
)
from image_service.server.http.problem import problem, status_of
from image_service.server.http.request_id import valid_request_id
from image_service.server.http.response import Problem
from tests.server.http.reading import body_of, fields_of, problem_of

ERRORS = sorted(
    (
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, ImageServiceError)
    ),
    key=lambda error: error.__name__,
)
STALE = {"etag", "last-modified", "accept-ranges", "content-range", "content-disposition"}


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_problem_details_with_its_code(error: type[ImageServiceError]) -> None:
    response = problem(error("what was wrong"), {})
    assert response.code == error.code
    members = problem_of(response)
    assert members.pop("title")
    assert valid_request_id(str(members.pop("id")))
    assert members == {"status": response.status, "code": error.code, "detail": "what was wrong"}


@pytest.mark.parametrize("error", ERRORS)
def test_error_has_no_field_of_a_success(error: type[ImageServiceError]) -> None:
    fields = fields_of(problem(error("x"), {}))
    assert not STALE & set(fields)
    assert fields["cache-control"] == "no-store"


def test_codes_and_their_statuses_are_stable() -> None:
    """A public contract: new codes are added, none is ever changed."""
    found = {(error.code, status_of(error("x"))) for error in ERRORS}
    assert found == {
        ("arguments-invalid", 500),
        ("base-image-refused", 503),
        ("base-image-unknown", 404),
        ("config-invalid", 422),
        ("configuration-invalid", 500),
        ("conflict", 409),
        ("content-not-accepted", 413),
        ("content-type-unsupported", 415),
        ("conversion-failed", 500),
        ("customization-invalid", 422),
        ("dependency-missing", 500),
        ("expectation-failed", 417),
        ("forbidden", 403),
        ("gone", 410),
        ("head-too-large", 431),
        ("host-misdirected", 421),
        ("http-version-unsupported", 505),
        ("ignition-invalid", 422),
        ("ignition-too-large", 422),
        ("image-not-customizable", 503),
        ("image-unsafe", 503),
        ("internal-error", 500),
        ("job-not-running", 400),
        ("job-token-malformed", 400),
        ("job-token-unknown", 404),
        ("kernel-argument-invalid", 422),
        ("kernel-arguments-too-large", 422),
        ("keyfile-invalid", 422),
        ("method-not-allowed", 405),
        ("no-room", 500),
        ("not-found", 404),
        ("not-implemented", 501),
        ("output-unusable", 500),
        ("parameter-invalid", 400),
        ("precondition-failed", 412),
        ("ramdisk-too-large", 422),
        ("range-not-satisfiable", 416),
        ("request-invalid", 400),
        ("plain-http", 400),
        ("request-timeout", 408),
        ("row-not-authentic", 500),
        ("snapshot-unreadable", 500),
        ("store-denied", 500),
        ("store-failed", 500),
        ("store-full", 500),
        ("stream-metadata-invalid", 502),
        ("target-too-long", 414),
        ("timed-out", 500),
        ("transfer-failed", 500),
        ("transfer-refused", 500),
        ("unauthorized", 401),
        ("unavailable", 503),
        ("upstream-failed", 502),
        ("upstream-queue-full", 503),
        ("upstream-refused", 502),
        ("engine-unavailable", 503),
        ("tenant-missing", 400),
        ("too-many-queued", 429),
        ("task-limit-reached", 429),
        ("budget-exceeded", 507),
        ("too-many-wrong-codes", 429),
        ("upstream-timeout", 504),
    }


@pytest.mark.parametrize("detail", ["", "line\nend", 'quote "', "ä \u2028", "\ud800", "\0", "</script>"])
def test_any_detail_is_well_formed_json(detail: str) -> None:
    response = problem(NotFound(detail), {})
    assert problem_of(response)["detail"] == detail
    assert fields_of(response)["content-length"] == str(len(body_of(response)))


@pytest.mark.parametrize(("requested", "is_kept"), [("r-1", True), ("not valid", False)])
def test_content_has_the_identifier_that_is_logged(requested: str, *, is_kept: bool) -> None:
    response = problem(NotFound("x"), {"x-request-id": requested})
    assert response.problem is not None
    identifier = problem_of(response)["id"]
    assert identifier == response.problem.request_id
    assert (identifier == requested) is is_kept


@pytest.mark.parametrize(("seconds", "expected"), [(None, False), (0, True), (5, True)])
def test_problem_is_temporary_if_a_retry_may_succeed(seconds: int | None, *, expected: bool) -> None:
    error = Unavailable("try later", retry_after_seconds=seconds)
    response = problem(error, {"x-request-id": "r-1"})
    assert response.problem == Problem("unavailable", "try later", "r-1", expected)


def test_head_has_the_fields_and_no_content() -> None:
    error = NotFound("x", retry_after_seconds=3)
    get, head = problem(error, {}), problem(error, {}, head_only=True)
    assert (head.status, head.fields, head.code) == (get.status, get.fields, get.code)
    assert (head.body, head.length) == ((), 0)


@pytest.mark.parametrize(("seconds", "expected"), [(None, None), (0, "0"), (5, "5")])
def test_retry_after_is_rendered(seconds: int | None, expected: str | None) -> None:
    assert (
        fields_of(problem(Unavailable("x", retry_after_seconds=seconds), {})).get("retry-after") == expected
    )


def test_fields_of_the_error_are_rendered() -> None:
    assert (
        fields_of(problem(MethodNotAllowed("x", fields=(("Allow", "GET, HEAD"),)), {}))["allow"]
        == "GET, HEAD"
    )
    challenge = 'Bearer realm="a b", error="invalid_token"'
    unauthorized = Unauthorized("x", fields=(("WWW-Authenticate", challenge),))
    assert fields_of(problem(unauthorized, {}))["www-authenticate"] == challenge


@pytest.mark.parametrize(
    "hostile", ["Bearer\r\nSet-Cookie: a=b", "Bearer\0", "Bearer\x7f\u2028", "Be\nar\rer"]
)
def test_value_cannot_inject_another_field(hostile: str) -> None:
    fields = fields_of(problem(Unauthorized("x", fields=(("WWW-Authenticate", hostile),)), {}))
    assert "set-cookie" not in fields
    assert fields["www-authenticate"].startswith("Bearer")


def test_problem_response_has_the_extra_header_fields() -> None:
    assert fields_of(problem(ConfigurationError("x"), {}, extra=b'ETag: "e"\r\n'))["etag"] == '"e"'
