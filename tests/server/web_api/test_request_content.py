"""The content of a request as a file."""

from __future__ import annotations

import pytest

from image_service.core.errors import InvalidRequest
from image_service.server.web_api.request_content import MAX_WAITING_BYTES, RequestContent

_PIECE = MAX_WAITING_BYTES // 4


def _content(*chunks: bytes) -> RequestContent:
    content = RequestContent(lambda: None, lambda: None, lambda: None)
    for chunk in chunks:
        content.feed(chunk)
    return content


def test_a_read_joins_what_was_received() -> None:
    content = _content(b"ab", b"cd", b"e" * _PIECE)
    assert content.read(3) == b"abc"
    assert content.read(_PIECE) == b"d" + b"e" * (_PIECE - 1)


def test_a_read_returns_a_piece_of_what_it_could_take() -> None:
    assert _content(b"a" * _PIECE).read(2 * _PIECE) == b"a" * _PIECE


def test_a_read_at_the_end_returns_the_rest() -> None:
    content = _content(b"ab", b"c")
    content.complete()
    assert content.read(_PIECE) == b"abc"
    assert content.read(_PIECE) == b""


def test_a_read_fails_once_the_rest_will_not_come() -> None:
    content = _content(b"ab")
    content.drop()
    with pytest.raises(InvalidRequest, match="the connection ended"):
        content.read(1)


def test_little_is_received_before_the_first_read() -> None:
    paused: list[int] = []
    content = RequestContent(lambda: paused.append(1), paused.clear, lambda: None)
    for chunk in range(1, 20):
        content.feed(bytes(8192))
        assert bool(paused) == (chunk * 8192 > 65536)
    assert content.read(2000) == bytes(2000)
    assert not paused  # a reader is there
    content.complete()
    assert len(content.read(_PIECE)) == 19 * 8192 - 2000


def test_an_abort_ends_the_connection_and_the_read() -> None:
    aborted: list[int] = []
    content = RequestContent(lambda: None, lambda: None, lambda: aborted.append(1))
    content.feed(b"ab")
    content.abort("slower than 9 bytes/s")
    assert aborted
    with pytest.raises(InvalidRequest, match="slower than 9 bytes/s"):
        content.read(1)
