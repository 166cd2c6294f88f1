from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import TransferFailed
from image_service.tools.doctor.range_checks import parse_parts
from image_service.tools.doctor.ranges import RangeReader, find_range_fault
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.doctor.web_client import WebClient, WebReply
from tests.tools.doctor.image_server import Served, respond, serving

if TYPE_CHECKING:
    from collections.abc import Callable

IMAGE = bytes(range(256)) * 3000


def reply(status: int, content_range: str | None, length: int, body: bytes = b"") -> WebReply:
    fields = {} if content_range is None else {"content-range": content_range}
    return WebReply(status, fields, frozenset(fields), body, length, True, 0, 0)  # noqa: FBT003 - attrs


@pytest.mark.parametrize(
    ("response", "fault"),
    [
        (reply(206, "bytes 10-19/100", 10), None),
        (reply(200, None, 100), "200 with the whole file instead of 206"),
        (reply(416, "bytes */100", 0), "416 instead of 206"),
        (reply(206, None, 10), "206 without Content-Range"),
        (reply(206, "bytes 10-19/*", 10), "Content-Range is 'bytes 10-19/*'"),
        (reply(206, "bytes 10-20/100", 10), "Content-Range says bytes 10-20/100, not bytes 10-19/100"),
        (reply(206, "bytes 10-19/100", 9), "9 bytes of content instead of 10"),
    ],
)
def test_response_to_a_range_is_compared_with_it(response: WebReply, fault: str | None) -> None:
    assert find_range_fault(response, 10, 19, 100) == fault


@given(st.lists(st.integers(0, 700), min_size=1, max_size=4, unique=True))
def test_parts_are_those_that_were_asked_for(starts: list[int]) -> None:
    specs = ",".join(f"{1000 * start}-{1000 * start + 99}" for start in starts)
    status, fields, body = respond(IMAGE, f"bytes={specs},{len(IMAGE) - 1}-")
    parts = parse_parts(reply(status, fields.get("Content-Range"), len(body), body))
    assert parts == {
        **{1000 * start: IMAGE[1000 * start : 1000 * start + 100] for start in starts},
        len(IMAGE) - 1: IMAGE[-1:],
    }


@given(st.binary(max_size=400), st.integers(0, 399))
def test_damaged_parts_are_read_or_refused(damage: bytes, at: int) -> None:
    _, _, body = respond(IMAGE, "bytes=0-99,1000-1099")
    with suppress(TransferFailed):
        parse_parts(reply(206, None, len(body), body[:at] + damage + body[at:]))


@pytest.mark.parametrize("content_range", ["bytes 5-4/9", "bytes 0-4", "items 0-4/9"])
def test_part_without_a_range_is_refused(content_range: str) -> None:
    body = f"--b\r\nContent-Range: {content_range}\r\n\r\n".encode()
    with pytest.raises(TransferFailed, match="no valid Content-Range"):
        parse_parts(reply(206, None, len(body), body))


def test_reader_reads_any_part_and_asks_for_each_block_once() -> None:
    asked: list[str | None] = []

    def record(served: Served) -> Served:
        asked.append(served.range_field)
        return served

    with serving(IMAGE, record) as url, WebClient(ImageUrl.parse(url)) as client:
        read_at = RangeReader(client, len(IMAGE))
        for offset, length in ((0, 10), (131_000, 200), (len(IMAGE) - 5, 100), (len(IMAGE), 1), (5, 0)):
            assert read_at(offset, length) == IMAGE[offset : offset + length]
    assert len(asked) == len(set(asked)) == 3


@pytest.mark.parametrize(
    ("mistake", "fault"),
    [
        (lambda served: attrs.evolve(served, status=500), "500 instead of 206"),
        (lambda served: served.containing(served.body + b"1"), "131073 bytes of content"),
    ],
    ids=["500", "too long"],
)
def test_reader_refuses_wrong_responses(mistake: Callable[[Served], Served], fault: str) -> None:
    with serving(IMAGE, mistake) as url, WebClient(ImageUrl.parse(url)) as client:
        read_at = RangeReader(client, len(IMAGE))
        with pytest.raises(TransferFailed, match=f"bytes 0-131071: {fault}"):
            read_at(0, 1)
