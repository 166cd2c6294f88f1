"""Which version a request asks for."""

from __future__ import annotations

import pytest

from image_service.core.images.reference import ImageRef, Kind, Reader
from image_service.server.http.head import Request
from image_service.server.serving.image_responses import BEGINNING_BYTES, parse_image_request
from image_service.server.snapshots.versions import ImageRequest, ReadMode

READER = Reader(
    "192.0.2.1", None, ImageRef("a6c0ff12-3456-4789-8abc-def012345678", "4.20", "x86_64", Kind.FULL_ISO)
)
LAST = BEGINNING_BYTES - 1


def asked(method: str = "GET", **headers: str) -> ImageRequest:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse_image_request(Request(method, "/", fields, keep_alive=True), READER)


@pytest.mark.parametrize(
    ("value", "starts_over"),
    [
        ("bytes=0-", True),
        ("bytes=0-0", True),
        ("bytes=00-99", True),
        (f"bytes={LAST}-", True),
        (f"bytes={BEGINNING_BYTES}-", False),
        ("bytes=99999999999999999999-", False),
        ("bytes=-1", False),
        ("bytes=5", False),
        ("lines=0-1", False),
    ],
)
def test_range_at_the_beginning_starts_over(value: str, *, starts_over: bool) -> None:
    assert asked(range=value) == ImageRequest(READER, ReadMode.RESUME, starts_over=starts_over)


def test_request_for_the_whole_is_for_the_newest() -> None:
    for request in (asked(), asked("HEAD"), asked("HEAD", range="bytes=0-1"), asked(if_match='"a"')):
        assert request == ImageRequest(READER)


def test_validators_name_a_version() -> None:
    request = asked(range="bytes=0-1", if_match='"a", W/"b"', if_range='"c"')
    assert request == ImageRequest(READER, ReadMode.NAMED, ('"a"', 'W/"b"', '"c"'))
    date = "Sun, 06 Nov 1994 08:49:37 GMT"
    assert asked(range="bytes=0-1", if_range=date) == ImageRequest(READER, ReadMode.NAMED, (), date)
