"""Requests and responses over real sockets: in order, however the bytes arrive."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import Unavailable
from image_service.server.http.dates import parse_http_date
from image_service.server.http.problem import problem
from image_service.server.transport.exchanges.exchange import PreparedResponse
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, ImageHandler
from tests.server.transport.reactor_turns import turns, until
from tests.server.transport.server import serving

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor

    from tests.server.transport.conftest import Serve
    from tests.server.transport.image_handler import Image
    from tests.server.transport.server import Server


@ensure_deferred
async def test_connection_persists(server: Server, image: Image) -> None:
    client = await server.client()
    for start, stop in [(0, 1), (50, 200), (MIB, 3 * MIB), (0, len(image.content))]:
        answer = await client.ask(f"/image/{start}-{stop}")
        assert (answer.status, answer.body) == (200, image.content[start:stop])
        assert "connection" not in answer.fields
    assert (await server.connection_of(client))._tcp.producer is None


@ensure_deferred
async def test_each_response_has_the_wall_clocks_date(server: Server) -> None:
    client = await server.client()
    before = datetime.now(UTC).replace(microsecond=0)
    date = parse_http_date((await client.ask("/image/0-9")).fields["date"])
    assert date is not None
    assert before <= date <= datetime.now(UTC)


@ensure_deferred
async def test_head_has_the_fields_of_the_get_and_no_content(server: Server, image: Image) -> None:
    client = await server.client()
    got = await client.ask("/image")
    for _ in range(2):  # what followed the first one would be taken for the second
        answer = await client.ask("/image", method="HEAD")
        assert answer.fields.keys() == got.fields.keys()
        assert answer.fields["content-length"] == str(len(image.content))
    assert await client.is_silent()


@ensure_deferred
async def test_pipelined_requests_are_answered_in_order(server: Server, image: Image) -> None:
    client = await server.client()
    parts = [(index * 1000, index * 1000 + (index % 40) ** 3) for index in range(300)]
    wanted = b"".join(request(f"/image/{start}-{stop}") for start, stop in parts)
    await client.send(wanted + request("/image/0-0", "Connection: close"))
    answers = await client.answers()
    assert [answer.body for answer in answers] == [image.content[start:stop] for start, stop in parts] + [b""]


@ensure_deferred
async def test_later_requests_wait_for_a_slow_response(
    server: Server, handler: ImageHandler, image: Image
) -> None:
    client = await server.client()
    targets = ["/later/0-10", "/image/10-20", "/later/20-30", "/later/30-40"]
    await client.send(b"".join(request(target) for target in targets))
    assert await client.is_silent()
    assert handler.targets == targets[:1]  # one at a time
    handler.answer_next()
    assert (await client.answer()).body == image.content[:10]
    assert (await client.answer()).body == image.content[10:20]
    handler.answer_next()
    assert (await client.answer()).body == image.content[20:30]
    await turns(server.reactor)
    handler.answer_next()
    assert (await client.answer()).body == image.content[30:40]


@ensure_deferred
async def test_small_response_is_sent_in_the_turn_of_its_request(plain: Server) -> None:
    client = await plain.client()
    transport = (await plain.connection_of(client)).transport
    await client.ask("/image/0-0")
    registrations: list[None] = []
    transport.startWriting = lambda: registrations.append(None)
    for target in ("/image/0-70000", "/image/200-2000", "/nowhere"):
        await client.ask(target)
    assert registrations == []


@ensure_deferred
async def test_responses_do_not_wait_for_nagle(server: Server) -> None:
    client = await server.client()
    tcp = (await server.connection_of(client)).transport
    assert tcp.getTcpNoDelay()


@ensure_deferred
async def test_requests_may_arrive_byte_by_byte(server: Server, image: Image) -> None:
    client = await server.client()
    heads = request("/image/5-55", "X-Some: thing") + b"\r\n" + request("/image/55-66", "Connection: close")
    await client.send_in_pieces([bytes([byte]) for byte in heads])
    assert [answer.body for answer in await client.answers()] == [image.content[5:55], image.content[55:66]]


@pytest.mark.parametrize("empty_lines", [1, 2, 3, 40])
@pytest.mark.parametrize("in_pieces", [False, True])
@ensure_deferred
async def test_empty_lines_before_a_request_are_ignored(
    plain: Server,
    empty_lines: int,
    in_pieces: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    client = await plain.client()
    await client.ask("/image/0-1")
    data = b"\r\n" * empty_lines + request("/image/0-1")
    await client.send_in_pieces([data[at : at + 1] for at in range(len(data))] if in_pieces else [data])
    assert (await client.answer()).status == 200


@ensure_deferred
async def test_http_1_0_closes_after_its_response(server: Server, image: Image) -> None:
    client = await server.client()
    await client.send(request("/image/0-99", version="1.0") + request("/image/1-2", version="1.0"))
    (answer,) = await client.answers()
    assert (answer.status, answer.body, answer.closes) == (200, image.content[:99], True)


@ensure_deferred
async def test_http_1_0_persists_with_keep_alive(server: Server) -> None:
    client = await server.client()
    for _ in range(2):
        await client.send(request("/image/0-9", "Connection: Keep-Alive", version="1.0"))
        assert (await client.answer()).fields["connection"] == "keep-alive"
    await client.send(request("/image/0-9", version="1.0"))
    assert [answer.closes for answer in await client.answers()] == [True]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("options", ["close", "Close", "keep-alive, close", "close,Keep-Alive", " x,\tclose"])
@ensure_deferred
async def test_connection_close_is_honored(plain: Server, version: str, options: str) -> None:
    client = await plain.client()
    await client.send(request("/image/0-9", f"Connection: {options}", version=version))
    await client.send(request("/image/1-2"))
    assert [answer.closes for answer in await client.answers()] == [True]


@ensure_deferred
async def test_connection_closes_after_an_error_that_requires_it(
    server: Server, handler: ImageHandler
) -> None:
    class AskAnother(Unavailable):
        must_close = True

    client = await server.client()
    await client.send(request("/later/0-9") + request("/image/1-2"))
    await until(server.reactor, lambda: handler.waiting)
    deferred, _ = handler.waiting.pop()
    deferred.callback(PreparedResponse(problem(AskAnother("not here"), {})))
    (answer,) = await client.answers()
    assert (answer.status, answer.closes, answer.fields["connection"]) == (503, True, "close")


@pytest.mark.parametrize(
    ("target", "taken_as"),
    [
        ("http://x/image/0-9", "/image/0-9"),
        ("HTTPS://other:81/nowhere?a=b", "/nowhere?a=b"),
        ("http://x", "/"),
        ("http://x?a", "/?a"),
    ],
)
@ensure_deferred
async def test_absolute_form_is_accepted(
    plain: Server, handler: ImageHandler, target: str, taken_as: str
) -> None:
    client = await plain.client()
    await client.ask(target)
    assert handler.targets == [taken_as]


@ensure_deferred
async def test_expect_without_content_is_ignored(server: Server) -> None:
    client = await server.client()
    answer = await client.ask("/image/0-9", "Expect: 100-continue")
    assert answer.status == 200
    assert await client.is_silent()


@ensure_deferred
async def test_upgrade_is_ignored(server: Server) -> None:
    client = await server.client()
    upgrade = request("/image/0-9", "Connection: Upgrade", "Upgrade: websocket")
    await client.send(upgrade + request("/image/9-12"))
    assert [(await client.answer()).status for _ in range(2)] == [200, 200]


@ensure_deferred
async def test_half_closed_client_receives_every_response(plain: Server, image: Image) -> None:
    """Like ``printf … | nc``: also responses that start after the half-close was received."""
    client = await plain.client(receive_buffer=65536)
    await client.send(request("/image") + request("/image/3-5") + b"GET /cut")
    client.finish_sending()
    await turns(plain.reactor)
    assert [answer.body for answer in await client.answers()] == [image.content, image.content[3:5]]
    await plain.wait_until_closed()


@ensure_deferred
async def test_half_closed_client_may_wait_for_the_request_handler(
    plain: Server, handler: ImageHandler, image: Image
) -> None:
    client = await plain.client()
    await client.send(request("/later/0-77"))
    client.finish_sending()
    assert await client.is_silent()
    handler.answer_next()
    (answer,) = await client.answers()
    assert (answer.body, answer.closes) == (image.content[:77], True)


@pytest.mark.parametrize("start", [b"", b"\r\n", b"GET / HT"])
@ensure_deferred
async def test_half_close_without_a_request_closes_the_connection(plain: Server, start: bytes) -> None:
    client = await plain.client()
    await client.send(start)
    client.finish_sending()
    assert await client.read_until_close() == b""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@ensure_deferred
async def test_listener_accepts_ipv4_and_ipv6(
    reactor: EPollReactor, handler: ImageHandler, image: Image, host: str
) -> None:
    listener = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    async with serving(reactor, handler, listener=listener) as server:
        client = server.connect(host=host)
        answer = await client.ask("/image/0-999")
        assert answer.body == image.content[:999]


@ensure_deferred
async def test_pipelined_requests_are_buffered_up_to_a_limit(server: Server, handler: ImageHandler) -> None:
    """Input is paused while a response is awaited, and resumed after it; nothing is lost."""
    client = await server.client()
    await client.send(request("/later/0-1"))
    await turns(server.reactor)
    count = 2500
    requests = request("/image/0-1", "X-Filler: " + "x" * 8000) * count
    requests += request("/image/0-0", "Connection: close")
    sent = await client.send_until_blocked(requests)
    assert sent < len(requests)
    assert len((await server.connection_of(client))._reader.buffer) < 256 * 1024
    handler.answer_next()
    sending = Deferred.fromCoroutine(client.send(requests[sent:]))
    answers = await client.answers()
    await sending
    assert [len(answer.body) for answer in answers] == [1] * (1 + count) + [0]


@ensure_deferred
async def test_each_request_has_one_line_in_the_log(serve: Serve, image: Image) -> None:
    server = await serve()
    client = await server.client()
    await client.ask("/image/0-50000")
    await client.ask("/image", method="HEAD")
    await client.ask("/nowhere")
    lines = [(line["method"], line["status"], line["bytes"], line["ended"]) for line in server.lines]
    assert lines[:2] == [("GET", 200, 50000, "complete"), ("HEAD", 200, 0, "complete")]
    assert (lines[2][:2], lines[2][3]) == (("GET", 404), "complete")
    assert len(image.content) > 50000


@ensure_deferred
async def test_ranges_of_a_connection_are_summarized_at_its_end(server: Server) -> None:
    client = await server.client()
    for _ in range(5):
        assert (await client.ask("/part/100-300")).status == 206
    assert server.lines == []
    client.close()
    await server.wait_until_closed()
    assert [(line["ranges"], line["bytes"], line["ended"]) for line in server.lines] == [
        (5, 1000, "complete")
    ]
