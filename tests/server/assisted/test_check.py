"""The one try to reach assisted-service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.core.errors import ConfigurationError
from image_service.server.assisted.check import TIMEOUT_SECONDS, check_upstream
from image_service.settings.parsers import address
from image_service.settings.upstream import UpstreamSettings
from tests.ports import free_port
from tests.pytwisted import ensure_deferred
from tests.server.assisted.calling import response, target
from tests.server.assisted.clocked import ClockedReactor
from tests.server.assisted.upstream import upstream

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor


def settings_of(port: int, **others: Any) -> UpstreamSettings:
    return UpstreamSettings(host=address(f"127.0.0.1:{port}"), **others)


@pytest.mark.parametrize("head", ["200 OK", "401 Unauthorized", "404 Not Found", "503 Busy", "302 Found"])
@ensure_deferred
async def test_any_http_response_is_a_success(reactor: EPollReactor, head: str) -> None:
    async with upstream(reactor) as server:
        server.answer = response(head, b"{}")
        assert await check_upstream(reactor, settings_of(server.port)) is None
        (request,) = server.requests
    path = "/api/assisted-install/v2/infra-envs/00000000-0000-0000-0000-000000000000"
    assert target(request) == (path, {})
    assert b"Authorization" not in request


@ensure_deferred
async def test_refused_connection_is_one_sentence_with_the_host(reactor: EPollReactor) -> None:
    port = free_port()
    assert await check_upstream(reactor, settings_of(port)) == (
        "assisted-service: no answer for a test request: it refuses the connection; check"
        f" ASSISTED_SERVICE_HOST and that it is running (http://127.0.0.1:{port})"
    )


@ensure_deferred
async def test_wrong_scheme_is_named(reactor: EPollReactor) -> None:
    async with upstream(reactor) as server:
        server.greeting = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        fault = await check_upstream(reactor, settings_of(server.port, scheme="https"))
    assert fault is not None
    assert "set ASSISTED_SERVICE_SCHEME=http" in fault


@ensure_deferred
async def test_silent_server_is_given_some_seconds(reactor: EPollReactor) -> None:
    clocked: Any = ClockedReactor(reactor)
    async with upstream(reactor) as server:
        server.answer = b""
        checking = Deferred.fromCoroutine(check_upstream(clocked, settings_of(server.port)))
        while not server.requests:
            await deferLater(reactor, 0.005)
        clocked.clock.advance(TIMEOUT_SECONDS)
        fault = await checking
    assert fault is not None
    assert "no answer within 5 s; check ASSISTED_SERVICE_HOST" in fault


@ensure_deferred
async def test_unusable_ca_file_is_a_fault_of_the_configuration(
    reactor: EPollReactor, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"ca\.pem"):
        await check_upstream(reactor, settings_of(1, scheme="https", ca_file=tmp_path / "ca.pem"))
