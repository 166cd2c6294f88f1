from __future__ import annotations

import pytest

from image_service.core.errors import InvalidRequest
from image_service.server.web_api.messages import MAX_LEVELS, MAX_VALUES, parse_json_object


def nested(levels: int, opening: str, closing: str) -> bytes:
    return f"{opening * levels}{closing * levels}".encode()


@pytest.mark.parametrize(
    ("opening", "closing"), [('{"a":', "}"), ('{"a":[', "]}")], ids=["objects", "arrays"]
)
@pytest.mark.parametrize("levels", [MAX_LEVELS + 1, 500, 990, 100_000])
def test_deep_json_is_refused(levels: int, opening: str, closing: str) -> None:
    content = nested(levels, opening, closing).replace(b":}", b":{}}").replace(b"[]", b"[1]")
    with pytest.raises(InvalidRequest):
        parse_json_object(content)


def test_json_of_very_many_values_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="values"):
        parse_json_object(b'{"a": [' + b"1," * MAX_VALUES + b"1]}")


def test_json_of_the_most_levels_is_read() -> None:
    parse_json_object(nested(MAX_LEVELS - 1, '{"a":', "}").replace(b":}", b":{}}"))


@pytest.mark.parametrize(
    "content",
    [
        b'{"a": "\\ud800"}',
        b'{"a": "\xed\xa0\x80"}',
        '{"a": "\\ud800"}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-32"),
    ],
    ids=["escaped", "raw", "escaped in UTF-16", "UTF-32"],
)
def test_only_unicode_in_utf_8_is_read(content: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json_object(content)


def test_mark_of_utf_8_is_no_part_of_the_json() -> None:
    assert parse_json_object(b'\xef\xbb\xbf{"a": "\\ud83d\\ude00"}') == {"a": "\U0001f600"}
