"""What connections tell to whoever counts: each thing once, and all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from image_service.images.extents import FileExtent
from image_service.observability.declarations import ABORT_REASONS, REFUSAL_REASONS
from image_service.transport.factory import CROWD_RESERVE, Limits
from image_service.transport.observer import NOBODY, Abort
from tests.pytwisted import ensure_deferred
from tests.transport.client import request
from tests.transport.image import MIB, SUBJECT, ImageApplication
from tests.transport.serving import SMALL_BUFFER
from tests.transport.slow_disk import SlowDisk
from tests.transport.turns import turns, until

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from image_service.transport.observer import Observer
    from tests.conftest import LoggedFailures
    from tests.transport.client import Client
    from tests.transport.conftest import Serve
    from tests.transport.image import Image
    from tests.transport.serving import Server

LIMITS = Limits()
HANDLER = SUBJECT.handler


def test_the_metrics_know_every_reason_and_no_other() -> None:
    assert {reason.value for reason in Abort} == set(ABORT_REASONS)
    assert {"queue-full", "queue-wait", "connections"} == set(REFUSAL_REASONS)


def test_who_does_not_count_takes_everything() -> None:
    nobody: Observer = NOBODY
    nobody.answer_began("", 0)
    nobody.request_ended("", "", 0, 0, 0)
    nobody.counter("", "", 206)(0, 0)
    nobody.aborted("")
    nobody.sent.copy += 1
    nobody.refused("")


@ensure_deferred
async def test_a_request_is_told_with_its_answer(server: Server, application: ImageApplication) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: application.waiting)
    await server.pass_seconds(2)
    assert (server.counted.answers, server.counted.requests) == ([], [])
    application.answer_next()
    await client.answer()
    assert server.counted.answers == [(HANDLER, 2)]
    assert server.counted.requests == [(HANDLER, "GET", 200, 2, 9)]


@ensure_deferred
async def test_a_refused_head_is_a_request_too(server: Server) -> None:
    client = await server.client()
    await client.send(request("no target"))
    await client.answers()
    ((handler, method, status, seconds, body_bytes),) = server.counted.requests
    assert (handler, method, status, seconds) == ("", "", 400, 0)
    assert body_bytes > 0
    assert server.counted.answers == [("", 0)]


@ensure_deferred
async def test_all_bytes_are_told_by_their_path(server: Server, image: Image) -> None:
    client = await server.client()
    await client.send(request("/image") + request(f"/image/{MIB}-{MIB + 9}", "Connection: close"))
    received = len(await client.until_end())
    sent = attrs.asdict(server.counted.sent)
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
    await until(server.reactor, lambda: server.counted.answers)
    return client


@ensure_deferred
async def test_a_client_that_leaves(server: Server) -> None:
    (await begun(server)).reset()
    await server.all_gone()
    assert server.counted.aborts == ["client-gone"]
    assert len(server.counted.requests) == 1


@ensure_deferred
async def test_a_client_that_leaves_before_the_answer(server: Server, application: ImageApplication) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: application.waiting)
    await server.pass_seconds(1)
    client.reset()
    await server.all_gone()
    application.answer_next()
    assert server.counted.aborts == ["client-gone"]
    assert server.counted.requests == [("", "GET", 0, 1, 0)]
    assert server.counted.answers == []


@ensure_deferred
async def test_a_client_that_stops_reading(server: Server) -> None:
    await begun(server)
    await server.pass_until_gone(LIMITS.stall_seconds)
    assert server.counted.aborts == ["no-progress"]


@ensure_deferred
async def test_the_first_reason_is_the_one_that_is_told(plain: Server) -> None:
    client = await begun(plain)
    connection = await plain.connection_of(client)
    connection.failed(Abort.NO_PROGRESS, "first")
    connection.failed(Abort.GOING_AWAY, "second")
    await plain.all_gone()
    assert plain.counted.aborts == ["no-progress"]
    assert [line["ended"] for line in plain.lines] == ["first"]


@ensure_deferred
async def test_an_application_that_fails(
    server: Server, application: ImageApplication, logged_failures: LoggedFailures
) -> None:
    client = await server.client()
    await client.send(request("/later/0-9"))
    await until(server.reactor, lambda: application.waiting)
    deferred, _ = application.waiting.pop()
    deferred.errback(ValueError("it promised never to"))
    await client.until_cut()
    assert server.counted.aborts == ["own-fault"]
    assert len(logged_failures.flush(ValueError)) == 1


@ensure_deferred
async def test_a_disk_that_fails(serve_both: Serve, reactor: EPollReactor) -> None:
    disk = SlowDisk(reactor)
    server = await serve_both(page_cache=disk)
    client = await server.client()
    await client.send(request("/image"))
    await until(reactor, lambda: disk.loads)
    disk.loads.pop().done.errback(OSError(5, "Input/output error"))
    await client.until_cut()
    assert server.counted.aborts == ["disk-failed"]


@ensure_deferred
async def test_a_crowd_beyond_the_reserve(serve: Serve) -> None:
    server = await serve(limits=Limits(connections=1))
    for _ in range(1 + CROWD_RESERVE + 2):
        server.connect()
    await until(reactor := server.reactor, lambda: len(server.counted.refusals) == 2)
    await turns(reactor)
    assert server.counted.refusals == ["connections"] * 2


@ensure_deferred
async def test_requests_are_listed_by_handler_while_they_last(
    server: Server, application: ImageApplication
) -> None:
    await begun(server)
    waiting, _idle = await server.client(), await server.client()
    await waiting.send(request("/later/0-9"))
    await until(server.reactor, lambda: application.waiting)
    assert sorted(server.factory.handlers()) == ["", HANDLER]
    application.answer_next()
    await waiting.answer()
    assert list(server.factory.handlers()) == [HANDLER]


@ensure_deferred
async def test_the_service_going_away(server: Server) -> None:
    await begun(server)
    going = Deferred.fromCoroutine(server.factory.drain(1))
    await server.pass_seconds(1)
    await going
    assert server.counted.aborts == ["going-away"]
