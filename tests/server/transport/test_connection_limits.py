"""Refusals, which a client that is still sending can read."""

from __future__ import annotations

import json
from contextlib import suppress
from ipaddress import ip_network
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.server.transport.admission.connection_limit import MIN_IDLE_SECONDS, OVERLOAD_RESERVE
from image_service.server.transport.deadline import LINGER_SECONDS, OVERLOADED_HEAD_SECONDS
from image_service.settings.network import LimitSettings
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import request
from tests.server.transport.image_handler import MIB, PROBES, ImageHandler
from tests.server.transport.reactor_turns import turns, until

if TYPE_CHECKING:
    from tests.server.transport.client import Answer, Client
    from tests.server.transport.conftest import Serve
    from tests.server.transport.server import Server

MAX_HEAD_BYTES = 32 * 1024
MAX_FIELDS = 100
MAX_TARGET_BYTES = 8 * 1024
CONTENT_BYTES = 48 * MIB  # more than any buffer of the kernel holds


def code_of(answer: Answer) -> tuple[int, str]:
    assert answer.fields["content-type"] == "application/problem+json"
    return answer.status, json.loads(answer.body)["code"]


def head_of(length: int) -> bytes:
    """Return a valid head of `size` bytes."""
    bare = len(request("/image/0-9", "X-Filler: "))
    return request("/image/0-9", "X-Filler: " + "x" * (length - bare))


async def refusal(client: Client, *pieces: bytes) -> tuple[int, str]:
    """Return the responses before the server closes; it must close, without a reset."""
    await client.send_in_pieces(pieces)
    (answer,) = await client.answers()
    assert answer.closes
    assert client.error() == 0
    return code_of(answer)


# The head's size.


@ensure_deferred
async def test_head_of_the_maximum_size_is_answered(server: Server) -> None:
    client = await server.client()
    for length in (MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES):
        await client.send(head_of(length))
        assert (await client.answer()).status == 200


@pytest.mark.parametrize("host", [b"[fe80::1%25eth0]:8080", b"[fe80::1%eth0]"])
@ensure_deferred
async def test_host_with_a_zone_is_refused(server: Server, host: bytes) -> None:
    client = await server.client()
    assert await refusal(client, b"GET /image HTTP/1.1\r\nHost: %b\r\n\r\n" % host) == (
        400,
        "request-invalid",
    )


@pytest.mark.parametrize("piece_bytes", [MAX_HEAD_BYTES + 1, 1000, 37])
@ensure_deferred
async def test_head_beyond_the_limit_is_refused(server: Server, piece_bytes: int) -> None:
    client = await server.client()
    head = head_of(MAX_HEAD_BYTES + 1)
    pieces = [head[at : at + piece_bytes] for at in range(0, len(head), piece_bytes)]
    assert await refusal(client, *pieces) == (431, "head-too-large")


@ensure_deferred
async def test_endless_head_is_refused_at_the_limit(plain: Server) -> None:
    client = await plain.client()
    assert await refusal(client, head_of(MAX_HEAD_BYTES + 4)[:MAX_HEAD_BYTES]) == (431, "head-too-large")


@ensure_deferred
async def test_too_many_fields_are_refused(server: Server) -> None:
    client = await server.client()
    fields = [f"X-Field-{number}: x" for number in range(MAX_FIELDS - 1)]  # and Host
    assert (await client.ask("/image/0-9", *fields)).status == 200
    assert await refusal(client, request("/image/0-9", *fields, "X-Last: x")) == (431, "head-too-large")


@ensure_deferred
async def test_overlong_target_is_refused(server: Server) -> None:
    client = await server.client()
    target = "/nowhere?".ljust(MAX_TARGET_BYTES, "x")
    assert (await client.ask(target)).status == 404
    assert await refusal(client, request(target + "x")) == (414, "target-too-long")


@ensure_deferred
async def test_endless_target_is_refused_before_the_head_is_full(plain: Server) -> None:
    client = await plain.client()
    assert await refusal(client, b"GET /" + b"x" * (MAX_TARGET_BYTES + 200)) == (414, "target-too-long")


# What a request may be.


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (request("/", method="POST"), 405),
        (request("/", method="DELETE"), 405),
        (request("x:443", method="CONNECT"), 405),
        (request("/", method="BREW"), 501),
        (request("/", method="get"), 501),
        (b"GET / HTTP/2.0\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
        (b"GET / HTTP/0.9\r\n\r\n", 505),
        (b"GET / RTSP/1.0\r\nHost: x\r\n\r\n", 400),
        (b"GET /\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: user@x\r\n\r\n", 400),
        (b"GET http://x/ HTTP/1.1\r\n\r\n", 400),
        (request("/a#b"), 400),
        (request("image"), 400),
        (request("ftp://x/"), 400),
        (request("/", "Expect: 200-ok"), 417),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),  # a ClientHello
    ],
)
@ensure_deferred
async def test_unsupported_request_is_refused(
    plain: Server, handler: ImageHandler, head: bytes, status: int
) -> None:
    client = await plain.client()
    assert (await refusal(client, head + request("/image/0-9")))[0] == status
    assert handler.targets == []


@ensure_deferred
async def test_refused_method_gets_the_allow_field(server: Server) -> None:
    client = await server.client()
    await client.send(request("/image/0-9", method="PUT"))
    (answer,) = await client.answers()
    assert (answer.status, answer.fields["allow"]) == (405, "GET, HEAD, OPTIONS")


@ensure_deferred
async def test_refusal_of_a_head_request_has_no_content(server: Server) -> None:
    client = await server.client()
    await client.send(request("/a#b", method="HEAD"))
    (answer,) = await client.answers(["HEAD"])
    assert (answer.status, answer.closes) == (400, True)
    assert int(answer.fields["content-length"]) > 0


# Content, and clients that go on sending.


@pytest.mark.parametrize(
    "fields",
    [
        ("Content-Length: 300000000",),
        ("Transfer-Encoding: chunked",),
        ("Content-Length: 300000000", "Expect: 100-continue"),
        ("Transfer-Encoding: chunked", "Expect: 100-continue"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@ensure_deferred
async def test_content_is_refused_before_it_is_read(
    server: Server, method: str, fields: tuple[str, ...]
) -> None:
    """No 100 (Continue) is sent either: the refusal comes first."""
    client = await server.client()
    await client.send(request("/image/0-9", *fields, method=method))
    (answer,) = await client.answers([method])
    assert answer.closes
    assert answer.status == (405 if method == "POST" else 413)


@pytest.mark.parametrize(
    "head",
    [
        request("/image", "Content-Length: 300000000", method="POST"),
        request("/image", "Content-Length: 300000000"),
        request("/image", "Transfer-Encoding: chunked"),
        request("/a#b"),
        request("/image/0-9", "Connection: close"),
    ],
)
@ensure_deferred
async def test_endless_sender_can_read_the_response(plain: Server, head: bytes) -> None:
    """The client reads only when it can send no more, which must not be caused by a reset."""
    client = await plain.client()
    sent = await client.send_until_blocked(head + bytes(CONTENT_BYTES))
    assert sent < CONTENT_BYTES / 2
    assert client.error() == 0
    (answer,) = await client.answers()
    assert answer.closes
    assert answer.status in {200, 400, 405, 413}
    await plain.advance(LINGER_SECONDS)
    await plain.wait_until_closed()


@ensure_deferred
async def test_endless_sender_can_read_the_response_over_tls(tls: Server) -> None:
    client = await tls.client()
    head = request("/image", "Content-Length: 300000000", method="POST")
    sent = await client.send_until_blocked(head + bytes(CONTENT_BYTES))
    assert sent < CONTENT_BYTES / 2
    (answer,) = await client.answers()
    assert answer.status == 405
    await tls.advance(LINGER_SECONDS)
    await tls.wait_until_closed()


@ensure_deferred
async def test_bytes_behind_a_refusal_are_dropped(plain: Server) -> None:
    client = await plain.client()
    await client.send_until_blocked(request("/a#b") + bytes(4 * MIB))
    assert (await plain.connection_of(client))._reader.buffer == b""


# The number of connections.


@ensure_deferred
async def test_overloaded_listener_answers_only_probes(serve_both: Serve) -> None:
    server = await serve_both(limits=LimitSettings(connections=3))
    within = [await server.client() for _ in range(3)]
    for probe in PROBES:
        beyond = await server.client()
        answer = await beyond.ask(probe)
        assert (answer.status, answer.closes) == (200, True)
        assert await beyond.read_until_close() == b""
    for method in ("GET", "HEAD"):
        beyond = await server.client()
        answer = await beyond.ask("/image/0-9", method=method)
        assert (answer.status, answer.closes, answer.fields["retry-after"]) == (503, True, "5")
        assert await beyond.read_until_close() == b""
    for client in within:
        assert (await client.ask("/image/0-9")).status == 200


@ensure_deferred
async def test_closed_connections_end_the_overload(serve: Serve) -> None:
    server = await serve(limits=LimitSettings(connections=1))
    first = await server.client()
    first.close()
    await server.wait_until_closed()
    second = await server.client()
    assert (await second.ask("/image/0-9")).status == 200


@ensure_deferred
async def test_silent_connections_of_the_reserve_are_closed_for_new_ones(serve_both: Serve) -> None:
    server = await serve_both(limits=LimitSettings(connections=1))
    clients = [server.connect() for _ in range(1 + OVERLOAD_RESERVE + 5)]
    await until(server.reactor, lambda: all(_is_closed(client) for client in clients[1:6]))
    await turns(server.reactor)
    assert not any(_is_closed(client) for client in (clients[0], *clients[6:]))
    assert len(server.factory.connections) == 1 + OVERLOAD_RESERVE


@ensure_deferred
async def test_probe_is_answered_beyond_a_reserve_of_silent_connections(serve_both: Serve) -> None:
    server = await serve_both(limits=LimitSettings(connections=1))
    silent = [server.connect() for _ in range(1 + OVERLOAD_RESERVE)]
    for client in silent[: OVERLOAD_RESERVE // 2]:
        client.send_some(b"G")
    for _ in range(3):
        probe = await server.client()
        assert (await probe.ask("/live")).status == 200


@ensure_deferred
async def test_idle_connection_is_closed_for_a_new_one(serve_both: Serve) -> None:
    server = await serve_both(limits=LimitSettings(connections=2))
    used, idle = await server.client(), await server.client()
    await idle.ask("/image/0-9")
    await server.advance(MIN_IDLE_SECONDS / 2)
    await used.ask("/image/0-9")
    await server.advance(MIN_IDLE_SECONDS / 2)
    new = await server.client()
    assert await idle.read_until_close() == b""
    for client in (used, new):
        assert (await client.ask("/image/0-9")).status == 200


@pytest.mark.parametrize("method", ["GET", "HEAD"])  # UEFI sends HEAD and GET on one connection
@ensure_deferred
async def test_connection_that_was_served_an_image_is_kept_longer(
    serve: Serve, handler: ImageHandler, method: str
) -> None:
    server = await serve(limits=LimitSettings(connections=2))
    proven, other = await server.client(), await server.client()
    handler.subject = attrs.evolve(handler.subject, infra_env="an infra-env")
    await proven.ask("/image/0-9", method=method)
    handler.subject = attrs.evolve(handler.subject, infra_env="")
    await server.advance(MIN_IDLE_SECONDS)
    await other.ask("/image/0-9")
    await server.advance(MIN_IDLE_SECONDS)
    await server.client()
    assert await other.read_until_close() == b""
    assert (await proven.ask("/image/0-9")).status == 200


@ensure_deferred
async def test_client_that_does_not_read_its_range_gives_way_to_a_new_one(serve: Serve) -> None:
    # With TLS: here, the kernel takes all of 1 MiB for a plain client.
    server = await serve(secure=True, limits=LimitSettings(connections=1, min_download_rate=MIB // 8))
    slow = await server.client(receive_buffer=4096)
    await slow.send(request(f"/image/0-{MIB}"))
    await until(server.reactor, lambda: bool(server.recorded.answers))
    await server.advance(8)
    assert (await (await server.client()).ask("/image/0-9")).status == 200
    await until(server.reactor, lambda: server.recorded.aborts == ["too-slow"])


@ensure_deferred
async def test_forwarded_address_with_too_many_connections_is_refused(serve_both: Serve) -> None:
    limits = LimitSettings(connections_per_address=1)
    server = await serve_both(limits=limits, proxies=[ip_network("127.0.0.0/8")])
    first, second, third = [await server.client() for _ in range(3)]
    assert (await first.ask("/image/0-9", "X-Forwarded-For: 192.0.2.1")).status == 200
    answer = await second.ask("/image/0-9", "X-Forwarded-For: 192.0.2.1")
    assert (answer.status, answer.closes, answer.fields["retry-after"]) == (503, True, "5")
    assert (await third.ask("/image/0-9", "X-Forwarded-For: 192.0.2.2")).status == 200
    probe = await server.client()
    assert (await probe.ask("/live", "X-Forwarded-For: 192.0.2.1")).status == 200
    assert server.recorded.refusals == ["connections-per-address"] * 2


@ensure_deferred
async def test_overloaded_handshake_has_a_short_deadline(serve: Serve) -> None:
    server = await serve(secure=True, limits=LimitSettings(connections=1))
    await server.client()
    silent = server.connect()
    await server.connection_of(silent)
    await server.advance(OVERLOADED_HEAD_SECONDS)
    await until(server.reactor, lambda: _is_closed(silent))


def _is_closed(client: Client) -> bool:
    with suppress(ConnectionResetError):
        return client.receive_some() == b""
    return True


@ensure_deferred
async def test_silent_clients_do_not_use_up_the_reserve(serve_both: Serve) -> None:
    server = await serve_both(limits=LimitSettings(connections=1))
    first = await server.client()
    silent = await server.client()
    await server.advance(OVERLOADED_HEAD_SECONDS)
    assert await silent.read_until_close() == b""
    assert await first.is_silent()
