from __future__ import annotations

import pytest

from image_service import errors
from image_service.errors import (
    ConfigurationError,
    ImageServiceError,
    MethodNotAllowed,
    NotFound,
    Unauthorized,
    Unavailable,
)
from image_service.http.problem import problem
from tests.http.reading import body_of, fields_of, problem_of

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
def test_every_error_is_a_problem_of_its_own_code(error: type[ImageServiceError]) -> None:
    response = problem(error("what was wrong"))
    assert response.status == error.status
    assert response.what == error.code
    members = problem_of(response)
    assert members.pop("title")
    assert members == {"status": error.status, "code": error.code, "detail": "what was wrong"}


@pytest.mark.parametrize("error", ERRORS)
def test_no_error_keeps_a_field_of_the_success(error: type[ImageServiceError]) -> None:
    fields = fields_of(problem(error("x")))
    assert not STALE & set(fields)
    assert fields["cache-control"] == "no-store"


def test_codes_are_stable() -> None:
    """Whoever reads them relies on them: a new one is added here, none is ever changed."""
    assert {error.code for error in ERRORS} == {
        "base-image-refused",
        "base-image-unknown",
        "configuration-invalid",
        "conflict",
        "content-not-accepted",
        "content-type-unsupported",
        "customization-invalid",
        "expectation-failed",
        "forbidden",
        "head-too-large",
        "host-misdirected",
        "http-version-unsupported",
        "ignition-invalid",
        "ignition-too-large",
        "internal-error",
        "kernel-argument-invalid",
        "kernel-arguments-too-large",
        "method-not-allowed",
        "not-found",
        "not-implemented",
        "parameter-invalid",
        "precondition-failed",
        "ramdisk-too-large",
        "range-not-satisfiable",
        "request-invalid",
        "request-timeout",
        "snapshot-unreadable",
        "store-failed",
        "stream-metadata-invalid",
        "target-too-long",
        "unauthorized",
        "unavailable",
        "upstream-failed",
        "upstream-timeout",
    }


@pytest.mark.parametrize("detail", ["", "line\nend", 'quote "', "ä \u2028", "\ud800", "\0", "</script>"])
def test_any_text_is_well_formed(detail: str) -> None:
    response = problem(NotFound(detail))
    assert problem_of(response)["detail"] == detail
    assert fields_of(response)["content-length"] == str(len(body_of(response)))


def test_head_has_the_fields_and_no_content() -> None:
    error = NotFound("x", retry_after_seconds=3)
    get, head = problem(error), problem(error, head_only=True)
    assert (head.status, head.fields, head.what) == (get.status, get.fields, get.what)
    assert (head.body, head.length) == ((), 0)


@pytest.mark.parametrize(("seconds", "expected"), [(None, None), (0, "0"), (5, "5")])
def test_when_to_ask_again(seconds: int | None, expected: str | None) -> None:
    assert fields_of(problem(Unavailable("x", retry_after_seconds=seconds))).get("retry-after") == expected


def test_the_error_s_own_fields_are_there() -> None:
    assert fields_of(problem(MethodNotAllowed("x", fields=(("Allow", "GET, HEAD"),))))["allow"] == "GET, HEAD"
    challenge = 'Bearer realm="a b", error="invalid_token"'
    unauthorized = Unauthorized("x", fields=(("WWW-Authenticate", challenge),))
    assert fields_of(problem(unauthorized))["www-authenticate"] == challenge


@pytest.mark.parametrize(
    "hostile", ["Bearer\r\nSet-Cookie: a=b", "Bearer\0", "Bearer\x7f\u2028", "Be\nar\rer"]
)
def test_a_value_from_elsewhere_cannot_make_another_field(hostile: str) -> None:
    fields = fields_of(problem(Unauthorized("x", fields=(("WWW-Authenticate", hostile),))))
    assert "set-cookie" not in fields
    assert fields["www-authenticate"].startswith("Bearer")


def test_extra_fields_come_as_they_are() -> None:
    assert fields_of(problem(ConfigurationError("x"), extra=b'ETag: "e"\r\n'))["etag"] == '"e"'
