from __future__ import annotations

import pytest
from twisted.internet import error as network
from twisted.python.failure import Failure
from twisted.web.client import ResponseFailed, ResponseNeverReceived
from twisted.web.http_headers import Headers

from image_service.server.assisted.failures import RETRY_AFTER_SECONDS, error_of_exception, error_of_status
from image_service.server.http.problem import status_of


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        (400, 400),
        (401, 401),
        (403, 403),
        (404, 404),
        (405, 502),
        (406, 502),
        (408, 502),
        (409, 409),
        (410, 404),
        (422, 422),
        (429, 503),
        (500, 502),
        (502, 502),
        (503, 502),
        (504, 502),
        (204, 502),
        (206, 502),
        (301, 502),
        (304, 502),
        (999, 502),
    ],
)
def test_upstream_statuses_are_mapped(received: int, expected: int) -> None:
    error = error_of_status(received, Headers(), "it")
    assert status_of(error) == expected
    assert error.detail.startswith(f"assisted-service answered {received} for it")
    assert (error.retry_after_seconds is not None) == (expected in {502, 503})


@pytest.mark.parametrize(
    ("received", "expected"),
    [("7", 7), ("0", 1), ("86400", 3600), ("Sun, 06 Nov 1994 08:49:37 GMT", None), ("-1", None), ("٣", None)],
)
def test_retry_after_is_passed_on_within_bounds(received: str, expected: int | None) -> None:
    for status in (429, 503):
        error = error_of_status(status, Headers({"Retry-After": [received]}), "it")
        assert error.retry_after_seconds == (expected or RETRY_AFTER_SECONDS)


def test_challenge_of_upstream_is_passed_on() -> None:
    received = ['Basic realm="a"', "Bearer"]
    error = error_of_status(401, Headers({"WWW-Authenticate": received}), "it")
    assert error.fields == tuple(("WWW-Authenticate", value) for value in received)


@pytest.mark.parametrize("received", [[], [b"\xff"], [b""], [b"x" * 5000], [b"a\x1bb"]])
def test_unusable_challenge_is_replaced_by_bearer(received: list[bytes]) -> None:
    headers = Headers()
    headers.setRawHeaders(b"WWW-Authenticate", received)
    assert error_of_status(401, headers, "it").fields == (("WWW-Authenticate", "Bearer"),)


@pytest.mark.parametrize(
    ("cause", "status", "text"),
    [
        (
            network.DNSLookupError("secret.test"),
            502,
            "its host name does not resolve; check ASSISTED_SERVICE_HOST and DNS",
        ),
        (network.ConnectionRefusedError(), 502, "it refuses the connection"),
        (network.TimeoutError(), 504, "no connection in time"),
        (network.ConnectionLost(), 502, "the connection ended"),
        (ValueError("secret bytes of the answer"), 502, "the answer is not HTTP"),
    ],
)
def test_wrapped_causes_are_found_and_described(cause: Exception, status: int, text: str) -> None:
    for wrapped in (
        cause,
        ResponseNeverReceived([Failure(cause)]),
        ResponseFailed([Failure(ResponseFailed([Failure(cause)]))]),
    ):
        error = error_of_exception(wrapped, "it")
        assert status_of(error) == status
        assert text in error.detail
        assert "secret" not in error.detail
        assert error.retry_after_seconds == RETRY_AFTER_SECONDS
