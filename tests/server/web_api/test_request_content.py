"""The content of a request as a file."""

from __future__ import annotations

import pytest

from image_service.core.errors import InvalidRequest
from image_service.server.web_api.request_content import MAX_WAITING_BYTES, RequestContent

_PIECE = MAX_WAITING_BYTES // 4


def _content(*chunks: bytes) -> RequestContent:
    content = RequestContent(lambda: None, lambda: None)
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
