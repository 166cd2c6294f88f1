from __future__ import annotations

from http import HTTPStatus

import pytest

from image_service.core import errors
from image_service.core.errors import ImageServiceError
from image_service.server.http.problem import status_of
from image_service.server.http.response import STATUS_LINES, Response, render_fields


def test_fields_are_rendered_as_lines() -> None:
    assert render_fields() == b""
    assert render_fields(("ETag", '"e"'), ("A", "")) == b'ETag: "e"\r\nA: \r\n'
    assert render_fields(("A", "\xe4")) == b"A: \xe4\r\n"


@pytest.mark.parametrize("value", ["a\r\nB: c", "a\nB: c", "a\rB: c", "a\0", "\n", "\r\n"])
def test_value_with_a_line_end_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="the value of Location contains a line end or NUL"):
        render_fields(("A", "b"), ("Location", value))


def test_value_beyond_latin_1_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        render_fields(("A", "\u2028"))


def test_status_lines_are_rendered() -> None:
    assert STATUS_LINES[206] == b"HTTP/1.1 206 Partial Content\r\n"
    assert STATUS_LINES[416].startswith(b"HTTP/1.1 416 ")
    assert set(STATUS_LINES) == {status.value for status in HTTPStatus}


def test_every_error_has_a_status_line() -> None:
    statuses = {
        status_of(error("x"))
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, ImageServiceError)
    }
    assert {400, 422, 503} < statuses
    assert statuses <= set(STATUS_LINES)


def test_response_is_empty_by_default() -> None:
    response = Response(304, b"")
    assert (response.body, response.length, response.code) == ((), 0, "")
