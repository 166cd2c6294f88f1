"""Crowds of connections without credentials, beside a long poll and probes."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import count
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.connections import LimitedFactory
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.resource import ApiResource, ApiSite
from image_service.tools.loadtest.command import raise_descriptor_limit
from tests.pytwisted import ensure_deferred
from tests.server.standalone.running import ApiClient

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.web_api.messages import ApiRequest, ApiResponse

LIMIT = 64
TOKEN = "token-of-a-worker"
UNFINISHED = b"GET /poll HTTP/1.1\r\nHost: localhost\r\n"
REFUSED = UNFINISHED + b"\r\n"  # by 401


@pytest.fixture(autouse=True)
def _descriptors() -> None:
    """Let this process open more files than users may at first."""
    raise_descriptor_limit(2048)


def open_crowd(port: int, opened: ExitStack, addresses: int = 50) -> None:
    """Open five times as many connections as there may be, silent ones and others."""
    for number in range(5 * LIMIT):
        address = f"127.0.1.{1 + number % addresses}" if addresses > 1 else "127.0.0.1"
        client = socket.create_connection(("127.0.0.1", port), timeout=10, source_address=(address, 0))
        opened.enter_context(client)
        client.send((b"", UNFINISHED, REFUSED)[number % 3])


@ensure_deferred
async def test_long_poll_and_probes_survive_a_crowd(reactor: EPollReactor) -> None:
    job: Deferred[ApiResponse] = Deferred()
    begun: Deferred[None] = Deferred()

    async def respond(request: ApiRequest) -> ApiResponse:
        if request.path == "/health":
            return json_response({"number": next(numbers)})
        begun.callback(None)
        return await job

    numbers = count()
    guard = RequestGuard(lambda: TOKEN, public_paths={"/health"})
    factory = LimitedFactory(ApiSite(ApiResource(guard, respond), reactor, 1000), reactor, LIMIT)
    port = reactor.listenTCP(0, factory, backlog=5 * LIMIT, interface="127.0.0.1")
    number = port.getHost().port
    client = ApiClient(reactor, f"http://127.0.0.1:{number}")
    poll = Deferred.fromCoroutine(client("GET", "/poll", Authorization=f"Bearer {TOKEN}"))
    await begun
    with ExitStack() as opened:
        for probe in range(3):
            await deferToThread(open_crowd, number, opened)
            assert (await client("GET", "/health")).document == {"number": probe}
        job.callback(json_response({"job": 1}))
        assert (await poll).document == {"job": 1}
    await port.stopListening()
    factory.abort_all()


@ensure_deferred
async def test_probe_is_answered_whatever_its_address_sends_meanwhile(reactor: EPollReactor) -> None:
    checked: Deferred[ApiResponse] = Deferred()
    begun: Deferred[None] = Deferred()

    async def respond(_: ApiRequest) -> ApiResponse:
        begun.callback(None)
        return await checked

    guard = RequestGuard(lambda: TOKEN, public_paths={"/health"})
    factory = LimitedFactory(ApiSite(ApiResource(guard, respond), reactor, 1000), reactor, LIMIT)
    port = reactor.listenTCP(0, factory, backlog=5 * LIMIT, interface="127.0.0.1")
    number = port.getHost().port
    probe = Deferred.fromCoroutine(ApiClient(reactor, f"http://127.0.0.1:{number}")("GET", "/health"))
    await begun
    with ExitStack() as opened:
        await deferToThread(open_crowd, number, opened, addresses=1)
        checked.callback(json_response({"is": "healthy"}))
        assert (await probe).document == {"is": "healthy"}
    await port.stopListening()
    factory.abort_all()
