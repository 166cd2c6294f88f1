"""The connection of the service to assisted-service."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import deferLater
from twisted.logger import capturedLogs, formatEvent

from image_service.app.upstream import connect_assisted_service
from image_service.common.concurrency.process_parts import PartsStack
from image_service.server.observability.metrics import Metrics
from image_service.settings.parsers import address
from image_service.settings.settings import Settings
from image_service.settings.upstream import UpstreamSettings
from tests.ports import free_port
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor


def settings_of(port: int) -> Settings:
    return Settings(upstream=UpstreamSettings(host=address(f"127.0.0.1:{port}")))


@pytest.mark.parametrize("seconds", [0, 0.1], ids=["connecting", "waiting for the response"])
@ensure_deferred
async def test_stop_within_the_test_request_logs_nothing(reactor: EPollReactor, seconds: float) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, capturedLogs() as events:
        async with PartsStack(reactor) as parts:
            connect_assisted_service(
                parts, settings_of(silent.getsockname()[1]), None, Metrics(), record_name=lambda *_: None
            )
            await deferLater(reactor, seconds)
    assert [formatEvent(event) for event in events if event["log_level"].name != "info"] == []


@ensure_deferred
async def test_unreachable_assisted_service_is_logged_at_the_start(reactor: EPollReactor) -> None:
    with capturedLogs() as events:
        async with PartsStack(reactor) as parts:
            assisted = connect_assisted_service(
                parts, settings_of(free_port()), None, Metrics(), record_name=lambda *_: None
            )
            while not events:
                await deferLater(reactor, 0.01)
    assert (assisted.health.failures, assisted.health.failure_status) == (1, 502)
    (text,) = (formatEvent(event) for event in events)
    assert text.startswith("cannot reach assisted-service: assisted-service: no answer for a test request")
