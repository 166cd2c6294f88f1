"""The resource and the site of a management API."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from twisted.internet.defer import maybeDeferred
from twisted.web.test.requesthelper import DummyChannel

from image_service.management.authentication import RequestGuard
from image_service.management.resource import ApiResource, ApiSite, BoundedRequest
from tests.pytwisted import ensure_deferred
from tests.standalone.running import ApiClient

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor
    from twisted.web.http import HTTPChannel

    from image_service.management.messages import ApiRequest, ApiResponse
    from tests.conftest import LoggedFailures

CHUNK = b"x" * 65_536
MAX_BODY_BYTES = 1024 * 1024


@pytest.mark.parametrize("length", [None, 20 * 1024 * 1024])
def test_body_memory_is_bounded(length: int | None) -> None:
    request = BoundedRequest(cast("HTTPChannel", DummyChannel()), max_body_bytes=MAX_BODY_BYTES)
    request.gotLength(length)
    for _ in range(20 * 1024 * 1024 // len(CHUNK)):
        request.handleContentChunk(CHUNK)
    assert MAX_BODY_BYTES < len(request.body.getvalue()) <= MAX_BODY_BYTES + len(CHUNK)


@ensure_deferred
async def test_unexpected_error_is_500_without_details_and_logged(
    reactor: EPollReactor, logged_failures: LoggedFailures
) -> None:
    async def fail(_: ApiRequest) -> ApiResponse:
        raise ZeroDivisionError("s3cret")

    site = ApiSite(ApiResource(RequestGuard(), fail), reactor, MAX_BODY_BYTES)
    port = reactor.listenTCP(0, site, interface="127.0.0.1")
    reply = await ApiClient(reactor, f"http://127.0.0.1:{port.getHost().port}")("GET", "/")
    await maybeDeferred(port.stopListening)
    assert (reply.status, reply.document["code"]) == (500, "internal-error")
    assert b"s3cret" not in reply.body
    assert len(logged_failures.flush(ZeroDivisionError)) == 1
