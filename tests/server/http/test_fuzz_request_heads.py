"""Fuzz target: request heads, mutated and cut anywhere, over the request reader."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from image_service.server.http.head import MAX_HEAD_BYTES, Request
from image_service.server.http.request_reader import (
    END,
    MAX_BUFFERED_BYTES,
    NEED_DATA,
    BadRequest,
    RequestReader,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADS = (
    b"GET /images/a?version=4&type=full-iso&api_key=x HTTP/1.1\r\nHost: a\r\n\r\n",
    b'GET /byid/a/4/x86_64/full.iso HTTP/1.1\r\nHost: a\r\nRange: bytes=0-9\r\nIf-Range: "x"\r\n\r\n',
    b"HEAD http://a/b HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nAuthorization: Bearer x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n12345",
    b"GET / HTTP/1.1\r\nHost: [::1]:80\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
PARTS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b":",
    b" ",
    b"\t",
    b"%00",
    b"/../",
    b",",
    b"\xff",
    b"X: " + b"y" * 9000,
)

changes = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 4), st.sampled_from(PARTS) | st.binary(max_size=4)),
    max_size=5,
)


def mutate(data: bytes, changes: Sequence[tuple[int, int, bytes]]) -> bytes:
    """Replace a few bytes, at each of some offsets, with others."""
    for offset, count, replacement in changes:
        data = data[:offset] + replacement + data[offset + count :]
    return data


streams = st.lists(st.builds(mutate, st.sampled_from(HEADS), changes), min_size=1, max_size=6).map(b"".join)


def read_events(pieces: Sequence[bytes]) -> list[Request | str]:
    """Return the requests, and the error of the refusal if there is one, as the service reads them."""
    reader = RequestReader()
    events: list[Request | str] = []
    for piece in pieces:
        event = reader.next_event(piece)
        while event is not NEED_DATA and event is not END:
            if isinstance(event, BadRequest):
                events.append(event.error.code)
            else:
                events.append(event if isinstance(event, Request) else reader.repeat(event))
            event = reader.next_event()
        if event is NEED_DATA:
            assert len(reader.buffer) < MAX_HEAD_BYTES  # of a head that is not complete
    return events


@given(streams, st.lists(st.integers(0, 2000), max_size=20))
@example(b"".join(HEADS), list(range(600)))
@example(b"GET / HTTP/1.1\r\nX: " + b"y" * MAX_HEAD_BYTES, [100, MAX_HEAD_BYTES - 1, MAX_HEAD_BYTES])
@example(b"\r\n" * MAX_BUFFERED_BYTES, [1, 2, 3, MAX_HEAD_BYTES])
def test_fuzz_any_stream_is_requests_and_one_refusal_however_it_is_cut(
    stream: bytes, cuts: list[int]
) -> None:
    ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    events = read_events([stream[start:stop] for start, stop in pairwise(ends)])
    assert events == read_events([stream])
    assert not any(isinstance(event, str) for event in events[:-1])
