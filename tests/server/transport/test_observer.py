"""What connections report to the observer: each event once, and all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from image_service.core.extents import FileExtent
from image_service.server.transport.admission import connection_limit
from image_service.server.transport.sending.observer import AbortReason, RefusalReason
from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, SUBJECT, ImageHandler
from tests.server.transport.null_observer import NULL_OBSERVER
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import SMALL_BUFFER
from tests.server.transport.slow_disk import SlowDisk

if TYPE_CHECKING:
    import pytest
    from twisted.internet.epollreactor import EPollReactor

    from image_service.server.transport.sending.observer import Observer
    from tests.conftest import LoggedFailures
    from tests.server.transport.client import Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image
    from tests.server.transport.server import Server

LIMITS = LimitSettings()
HANDLER = SUBJECT.handler


def test_null_observer_accepts_every_call_and_returns_nothing() -> None:
    observer: Observer = NULL_OBSERVER
    observer.record_first_byte("", 0)
    observer.record_request("", "", 0, 0, 0)
    observer.get_recorder("", "", 206)(0, 0)
    observer.record_abort(AbortReason.CLIENT_GONE)
    observer.record_refusal(RefusalReason.CONNECTIONS)
    before = observer.sent.copy
    observer.sent.copy += 1
    assert NULL_OBSERVER.sent.copy == before + 1


@ensure_deferred
async def test_request_is_recorded_with_its_response(server: Server, handler: ImageHandler) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    await server.advance(2)
    assert (server.recorded.answers, server.recorded.requests) == ([], [])
    handler.answer_next()
    await client.answer()
    assert server.recorded.answers == [(HANDLER, 2)]
    assert server.recorded.requests == [(HANDLER, "GET", 200, 2, 9)]


@ensure_deferred
async def test_refused_head_is_recorded_as_a_request(server: Server) -> None:
    client = await server.client()
    await client.send(request("no target"))
    await client.answers()
    ((handler, method, status, seconds, body_bytes),) = server.recorded.requests
    assert (handler, method, status, seconds) == ("", "", 400, 0)
    assert body_bytes > 0
    assert server.recorded.answers == [("", 0)]


@ensure_deferred
async def test_sent_bytes_are_counted_by_path(server: Server, image: Image) -> None:
    client = await server.client()
    await client.send(request("/image") + request(f"/image/{MIB}-{MIB + 9}", "Connection: close"))
    received = len(await client.read_until_close())
    sent = attrs.asdict(server.recorded.sent)
    if server.factory.secure:
        assert sent == {"sendfile": 0, "copy": 0, "tls": received}
    else:
        in_file = sum(extent.length for extent in image.extents.extents if isinstance(extent, FileExtent))
        assert sent == {
            "sendfile": in_file,
            "copy": received - in_file,
            "tls": 0,
        }  # the small range is copied


async def begun(server: Server) -> Client:
    client = await server.client(receive_buffer=SMALL_BUFFER)
    await client.send(request("/image"))
    await until(server.reactor, lambda: server.recorded.answers)
    return client


@ensure_deferred
async def test_client_that_leaves_is_recorded_as_an_abort(server: Server) -> None:
    (await begun(server)).reset()
    await server.wait_until_closed()
    assert server.recorded.aborts == ["client-gone"]
    assert len(server.recorded.requests) == 1


@ensure_deferred
async def test_client_that_leaves_before_the_response_is_recorded_as_an_abort(
    server: Server, handler: ImageHandler
) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    await server.advance(1)
    client.reset()
    await server.wait_until_closed()
    handler.answer_next()
    assert server.recorded.aborts == ["client-gone"]
    assert server.recorded.requests == [("", "GET", 0, 1, 0)]
    assert server.recorded.answers == []


@ensure_deferred
async def test_client_that_stops_reading_is_recorded_as_no_progress(server: Server) -> None:
    await begun(server)
    await server.advance_until_closed(LIMITS.stall_seconds)
    assert server.recorded.aborts == ["no-progress"]


@ensure_deferred
async def test_first_abort_reason_is_the_recorded_one(plain: Server) -> None:
    client = await begun(plain)
    connection = await plain.connection_of(client)
    connection.abort(AbortReason.NO_PROGRESS, "first")
    connection.abort(AbortReason.SHUTDOWN, "second")
    await plain.wait_until_closed()
    assert plain.recorded.aborts == ["no-progress"]
    assert [line["ended"] for line in plain.lines] == ["first"]


@ensure_deferred
async def test_failing_request_handler_is_recorded_as_an_internal_error(
    server: Server, handler: ImageHandler, logged_failures: LoggedFailures
) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    deferred, _ = handler.waiting.pop()
    deferred.errback(ValueError("it promised never to"))
    await client.read_until_abort()
    assert server.recorded.aborts == ["internal-error"]
    assert len(logged_failures.flush(ValueError)) == 1


@ensure_deferred
async def test_failing_disk_is_recorded_as_an_abort(serve_both: Serve, reactor: EPollReactor) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    disk.loads.pop().done.errback(OSError(5, "Input/output error"))
    await client.read_until_abort()
    assert server.recorded.aborts == ["disk-failed"]


@ensure_deferred
async def test_connections_beyond_the_reserve_are_recorded_as_refusals(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_limit, "OVERLOAD_RESERVE", 0)
    server = await serve(limits=LimitSettings(connections=1))
    for _ in range(3):
        server.connect()
    await until(reactor := server.reactor, lambda: len(server.recorded.refusals) == 2)
    await turns(reactor)
    assert server.recorded.refusals == ["connections"] * 2


@ensure_deferred
async def test_requests_in_progress_are_listed_by_handler(server: Server, handler: ImageHandler) -> None:
    await begun(server)
    waiting, _idle = await server.client(), await server.client()
    await waiting.send(request("/later/0-9"))
    await until(server.reactor, lambda: handler.waiting)
    assert sorted(server.factory.handlers()) == ["", HANDLER]
    handler.answer_next()
    await waiting.answer()
    assert list(server.factory.handlers()) == [HANDLER]


@ensure_deferred
async def test_probe_in_progress_is_not_listed(server: Server, handler: ImageHandler) -> None:
    """The scrape that shows the requests in progress would always show itself."""
    listed: list[list[str]] = []
    handler.asked = lambda _: listed.append(list(server.factory.handlers()))
    client = await server.client()
    for path in ("/health", "/image/0-9", "/metrics?name=x", "/below/a/path/metrics"):
        await client.ask(path)
    assert listed == [[], [""], [], []]


@ensure_deferred
async def test_shutdown_is_recorded_as_an_abort(server: Server) -> None:
    await begun(server)
    going = Deferred.fromCoroutine(server.factory.drain(1))
    await server.advance(1)
    await going
    assert server.recorded.aborts == ["shutdown"]
