"""Bytes that no honest client sends: they get valid responses or a close, and nothing else.

Request smuggling needs two readers that disagree about where a request ends. Ours takes requests without
content only, and ends the connection at the first thing that anybody could read otherwise.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from image_service.server.http.head import parse_head
from tests.pytwisted import ensure_deferred
from tests.server.transport.client import Answer, request, split_answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.server.http.head import Request
    from tests.server.transport.image_handler import Image, ImageHandler
    from tests.server.transport.server import Server

GOOD = request("/image/0-9")
HIDDEN = request("/hidden")

FRAMING = [
    # CL.TE and TE.CL
    b"Content-Length: 6\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 6",
    b"Content-Length: 0\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding: chunked\r\nContent-Length: 0",
    # TE.TE
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: identity, chunked",
    b"Transfer-Encoding: ,chunked",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
    b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked",
    b"Transfer-Encoding:chunked",
    b"Transfer-Encoding:\tchunked",
    b"Transfer-Encoding: \x0bchunked",
    b"Transfer-Encoding: chunked\x0b",
    b"Transfer-Encoding: \x00chunked",
    b"Transfer-Encoding: chunked\x00",
    b"Transfer-Encoding: \x85chunked",
    b"Transfer-Encoding: chunked\xa0",
    b'Transfer-Encoding: "chunked"',
    b"Transfer-Encoding: CHUNKED",
    b"transfer-encoding: chunked",
    b"Transfer-Encoding:",
    b"Transfer-Encoding:\r\nX: chunked",
    b" Transfer-Encoding: chunked",
    b"\tTransfer-Encoding: chunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding\t: chunked",
    b"Transfer-Encoding\x0b: chunked",
    b"Transfer-Encoding\x00: chunked",
    b"X: y\r\n Transfer-Encoding: chunked",
    b"X: y\nTransfer-Encoding: chunked",
    b"X: y\rTransfer-Encoding: chunked",
    b"X: y\x00Transfer-Encoding: chunked",
    b"Transfer-Encoding\r\n: chunked",
    b"Transfer-Encoding:\r\n chunked",
    b"Transfer-Encoding:\n chunked",
    b"Foo Transfer-Encoding: chunked",
    # lengths
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: -1",
    b"Content-Length: -0",
    b"Content-Length: +0",
    b"Content-Length: 0x5",
    b"Content-Length: 0x0",
    b"Content-Length: 5, 5",
    b"Content-Length: 0, 0",
    b"Content-Length: 0,5",
    b"Content-Length: 5 5",
    b"Content-Length: 0 5",
    b"Content-Length: 5;a",
    b"Content-Length: 5.0",
    b"Content-Length: 5e0",
    b"Content-Length: 0_5",
    b"Content-Length: \xd9\xa5",
    b"Content-Length: 18446744073709551616",
    b"Content-Length: 18446744073709551621",
    b"Content-Length: 999999999999999999999999999999",
    b"Content-Length: \x0b5",
    b"Content-Length: 5\x00",
    b"Content-Length:",
    b"Content-Length: \r\n 5",
    b"Content-Length:\r\nX: 5",
    b"Content-Length : 5",
    b"Content-Length\t: 5",
    b" Content-Length: 5",
    b"Content-Length: 5\r\nContent-Length: 5",
    b"Content-Length: 0\r\nContent-Length: 0",
    b"Content-Length: 0\r\nContent-Length: 5",
    b"Content-Length: 5\r\nContent-Length: 0",
    b"content-length: 0\r\nCONTENT-LENGTH: 5",
    b"X: y\nContent-Length: 5",
    b"X: y\rContent-Length: 5",
    # field lines
    b"X: y\r\n z",
    b"X: y\r\n\tz",
    b"X: a\x00b",
    b"X: a\x7fb",
    b"X\x85: y",
    b"X",
    b": y",
    b"X: y\n",
    b"X: y\r",
    b"\n",
    b"X: y\r\r",
    b"\xef\xbb\xbfX: y",
    b"Expect: 100-continue\r\nContent-Length: 5",
    b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 5",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked",
    b"Connection: Content-Length\r\nContent-Length: 5",
]
HEADS = [
    *(b"GET / HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n" % fields for fields in FRAMING),
    *(b"POST / HTTP/1.1\r\n%b\r\nHost: x\r\n\r\n" % fields for fields in FRAMING),
    b"GET / HTTP/1.1\nHost: x\n\n",
    b"GET / HTTP/1.1\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\r\n\r\n",
    b"GET / HTTP/1.1\rHost: x\r\r",
    b"GET / HTTP/1.1\rHost: x\r\n\r\n",
    b"GET  / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /  HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1 \r\nHost: x\r\n\r\n",
    b" GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET\t/\tHTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET\x0b/ HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / http/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.01\r\nHost: x\r\n\r\n",
    b"GET / HTTP/+1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1,1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1x\r\nHost: x\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\x85 HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /\xc4\x8d\xc4\x8a HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\x00\r\n\r\n",
    b"\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\r\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"GET / HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\n",
]


@pytest.mark.parametrize("head", HEADS)
@ensure_deferred
async def test_smuggled_request_is_never_answered(plain: Server, handler: ImageHandler, head: bytes) -> None:
    """What follows may be content or a request to another parser; this one does not read it."""
    attack = head + b"0\r\n\r\n" + HIDDEN
    one_by_one = [attack[at : at + 1] for at in range(len(attack))]
    for before, pieces in [(b"", [attack]), (b"", one_by_one), (GOOD, [GOOD + attack])]:
        handler.targets.clear()
        client = await plain.client()
        await client.send_in_pieces(pieces)
        *good, refused = await client.answers()
        assert refused.closes
        assert refused.status in {400, 405, 413}
        assert [answer.status for answer in good] == ([200] if before else [])
        assert handler.targets == (["/image/0-9"] if before else [])


@pytest.mark.parametrize(
    "fields",
    ["Content-Length: 0", "Content-Length: 00", "X: \x85Transfer-Encoding: chunked", "X:", "X: \t y \t"],
)
@ensure_deferred
async def test_unusual_but_valid_request_is_answered(
    plain: Server, handler: ImageHandler, fields: str
) -> None:
    client = await plain.client()
    await client.send(request("/image/0-9", fields) + request("/image/9-10", "Connection: close"))
    assert [answer.status for answer in await client.answers()] == [200, 200]
    assert handler.targets == ["/image/0-9", "/image/9-10"]


# Any bytes, in any pieces.

_TOKENS = st.sampled_from(
    [
        GOOD,
        request("/image/5-2000", "Range: bytes=0-9"),
        request("/fired/5-25", "Range: bytes=10-19"),
        request("/image/7-8", method="HEAD"),
        request("/nowhere"),
        request("/image/0-9", version="1.0"),
        request("/image/0-9", "Connection: keep-alive", version="1.0"),
        request("/image/3-4", "Connection: close"),
        *(b"GET HEAD POST BREW / /image http://x/ * HTTP/1.1 HTTP/1.0 HTTP/2.0 HTTP/ Host: x :".split(b" ")),
        *(fields + b"\r\n" for fields in FRAMING),
        b"Host: x\r\n",
        b"Range: bytes=0-9\r\n",
        b"Connection: close\r\n",
        b"Expect: 100-continue\r\n",
        b" HTTP/1.1\r\nHost: x\r\n",
        b"\r\n",
        b"\r\n\r\n",
        b"\r",
        b"\n",
        b" ",
        b"\0",
    ]
)
_STREAMS = st.lists(st.one_of(_TOKENS, _TOKENS, st.binary(max_size=20)), max_size=12).map(b"".join)
_CUTS = st.lists(st.integers(0, 400), max_size=12)
_MANY = settings(max_examples=250)


def cut(stream: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Cut a stream into pieces, none of them empty."""
    at = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[start:stop] for start, stop in pairwise(at)]


async def exchange(
    server: Server, handler: ImageHandler, pieces: Sequence[bytes]
) -> tuple[list[Request], list[Answer]]:
    """Return the requests handled and the responses to a client that sends these pieces and half-closes."""
    asked: list[Request] = []
    handler.asked = asked.append
    client = await server.client()
    await client.send_in_pieces(pieces)
    client.finish_sending()
    received = await client.read_until_close()
    client.close()
    methods = [request.method for request in asked]
    try:
        return asked, split_answers(received, methods)
    except AssertionError:  # the last may have refused a HEAD that never got as far as the handler
        return asked, split_answers(received, [*methods, "HEAD"])


@given(_STREAMS, _CUTS)
@_MANY
@ensure_deferred
async def test_any_bytes_get_valid_responses_or_a_close(
    plain: Server, handler: ImageHandler, stream: bytes, cuts: list[int]
) -> None:
    """The same ones whatever the pieces; only the reason of a refusal may depend on the fragmentation."""
    asked, whole = await exchange(plain, handler, [stream] if stream else [])
    asked_in_pieces, in_pieces = await exchange(plain, handler, cut(stream, cuts))
    assert asked_in_pieces == asked
    assert len(asked) <= len(whole) <= len(asked) + 1
    assert len(in_pieces) == len(whole)
    for answers in (whole, in_pieces):
        assert {answer.status for answer in answers[: len(asked)]} <= {200, 404}
        assert all(answer.closes and 400 <= answer.status <= 505 for answer in answers[len(asked) :])
    await plain.wait_until_closed()


_REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(["GET", "GET", "GET", "HEAD"]),
        st.sampled_from(["image", "fired"]),
        st.integers(0, 3_000_000),
        st.integers(0, 100_000),
        st.sampled_from(
            [(), ("Range: bytes=0-9",), ("Range: bytes=10-",), ("Range: x=1", "A: b"), ("A: b",)]
        ),
    ),
    max_size=10,
)


@given(_REQUESTS, _CUTS)
@_MANY
@ensure_deferred
async def test_any_pipeline_is_answered_as_if_each_came_alone(
    plain: Server,
    handler: ImageHandler,
    image: Image,
    wanted: list[tuple[str, str, int, int, tuple[str, ...]]],
    cuts: list[int],
) -> None:
    heads = [
        request(f"/{how}/{start}-{start + length}", *fields, method=method)
        for method, how, start, length, fields in wanted
    ]
    asked, answers = await exchange(plain, handler, cut(b"".join(heads), cuts))
    assert asked == [parse_head(head) for head in heads]
    assert [answer.body for answer in answers] == [
        image.content[start : start + length] if method == "GET" else b""
        for method, _, start, length, _ in wanted
    ]
