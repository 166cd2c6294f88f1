"""The content of a request, read while it is received."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import InvalidRequest
from image_service.server.web_api.request_content import MAX_WAITING_BYTES, RequestContent
from tests.pytwisted import ensure_deferred

_PIECE = MAX_WAITING_BYTES // 4


def _content(*chunks: bytes) -> RequestContent:
    content = RequestContent(lambda: None, lambda: None, lambda: None)
    for chunk in chunks:
        content.feed(chunk)
    return content


@ensure_deferred
async def test_a_read_joins_what_was_received() -> None:
    content = _content(b"ab", b"cd", b"e" * _PIECE)
    assert await content.read() == b"abcd" + b"e" * _PIECE


@ensure_deferred
async def test_a_read_waits_for_a_piece() -> None:
    content = _content(b"ab")
    read = Deferred.fromCoroutine(content.read())
    content.feed(b"c" * (_PIECE - 3))
    assert not read.called
    content.feed(b"d")
    assert await read == b"ab" + b"c" * (_PIECE - 3) + b"d"


@ensure_deferred
async def test_a_read_at_the_end_returns_the_rest() -> None:
    content = _content(b"ab", b"c")
    content.complete()
    assert await content.read() == b"abc"
    assert await content.read() == b""


@pytest.mark.parametrize("is_waiting", [False, True])
@ensure_deferred
async def test_a_read_fails_once_the_rest_will_not_come(*, is_waiting: bool) -> None:
    content = _content(b"ab")
    read = Deferred.fromCoroutine(content.read()) if is_waiting else None
    content.drop()
    with pytest.raises(InvalidRequest, match="the connection ended"):
        await (read or content.read())


@ensure_deferred
async def test_little_is_received_before_the_first_read() -> None:
    paused: list[int] = []
    content = RequestContent(lambda: paused.append(1), paused.clear, lambda: None)
    for chunk in range(1, 20):
        content.feed(bytes(8192))
        assert bool(paused) == (chunk * 8192 > 65536)
    read = Deferred.fromCoroutine(content.read())
    assert not paused  # a reader is there
    content.complete()
    assert len(await read) == 19 * 8192
    content.feed(bytes(MAX_WAITING_BYTES + 1))
    assert paused
    await content.read()
    assert not paused


@ensure_deferred
async def test_an_abort_ends_the_connection_and_the_read() -> None:
    aborted: list[int] = []
    content = RequestContent(lambda: None, lambda: None, lambda: aborted.append(1))
    content.feed(b"ab")
    content.abort("slower than 9 bytes/s")
    assert aborted
    with pytest.raises(InvalidRequest, match="slower than 9 bytes/s"):
        await content.read()
