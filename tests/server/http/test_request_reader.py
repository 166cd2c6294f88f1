from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import ImageServiceError, InvalidRequest, RequestTimeout
from image_service.server.http.head import MAX_HEAD_BYTES, Request, find_head, parse_head, parse_request_line
from image_service.server.http.request_reader import (
    END,
    MAX_BUFFERED_BYTES,
    MAX_DROPPED_BYTES,
    NEED_DATA,
    BadRequest,
    RequestReader,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

REQUEST = b"GET /a HTTP/1.1\r\nHost: here\r\n\r\n"
RANGE = b"GET /a HTTP/1.1\r\nHost: here\r\nRange: bytes=%d-%d\r\nAccept: */*\r\n\r\n"
RANGE_VALUES = [
    "bytes=0-1",
    "bytes=2048-4095",
    "bytes=5-",
    "bytes=-5",
    "bytes=1-2,4-5",
    "x=0-1",
    "bytes=07-8",
]
FIELD_LINES = [
    *(f"{name}: {value}" for name in ("Range", "range") for value in RANGE_VALUES),
    "If-Range: bytes=0-1",
    "User-Agent: curl/8.0",
    "Connection: close",
    "Content-Length: 5",
    "Host: other",
    "Bad : field",
    " folded",
    "",
]
heads = st.tuples(
    st.sampled_from(
        ["GET /a HTTP/1.1", "GET /b HTTP/1.1", "HEAD /a HTTP/1.1", "GET /a HTTP/1.0", "\r\n\r\nGET /"]
    ),
    st.lists(st.sampled_from(FIELD_LINES), max_size=4),
).map(lambda head: "\r\n".join([head[0], "Host: here", *head[1], "", ""]).encode())
streams = st.lists(heads | st.binary(max_size=8), max_size=6).map(b"".join)

Event = Request | tuple[str, str]
"""A request, or the code and the method of a refusal."""


def read_all(reader: RequestReader) -> list[Event]:
    """Return the events so far, with repeated ranges as requests."""
    events: list[Event] = []
    while True:
        event = reader.next_event()
        if event is NEED_DATA or event is END:
            return events
        if isinstance(event, BadRequest):
            events.append((type(event.error).__name__, event.method))
        elif isinstance(event, tuple):
            events.append(reader.repeat(event))
        elif isinstance(event, Request):
            events.append(event)


def read_pieces(pieces: Iterable[bytes]) -> list[Event]:
    reader = RequestReader()
    events: list[Event] = []
    for piece in pieces:
        reader.receive(piece)
        events += read_all(reader)
    return events


def expected_events(stream: bytes) -> list[Event]:
    """Return the events by `find_head` and `parse_head` alone, over the whole stream."""
    events: list[Event] = []
    while True:
        while stream.startswith(b"\r\n"):
            stream = stream[2:]
        try:
            length = find_head(stream)
            if length is None:
                return events
            request = parse_head(stream[:length])
        except ImageServiceError as error:
            method = "HEAD" if stream.startswith(b"HEAD ") else parse_request_line(stream)[0]
            return [*events, (type(error).__name__, method)]
        events.append(request)
        if not request.keep_alive:
            return events
        stream = stream[length:]


@given(streams)
@example(RANGE % (0, 1) + RANGE % (2, 3) + REQUEST + REQUEST + RANGE % (4, 5))
def test_pipelined_requests_are_read_as_if_each_came_alone(stream: bytes) -> None:
    assert read_pieces([stream]) == expected_events(stream)


@given(streams, st.lists(st.integers(0, 400)))
@example(RANGE % (0, 1) + RANGE % (2, 3), [len(RANGE % (0, 1))])
@example(REQUEST + b"\r\n" + REQUEST, list(range(len(REQUEST) * 2 + 2)))
def test_events_do_not_depend_on_the_fragmentation(stream: bytes, cuts: list[int]) -> None:
    ends = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    assert read_pieces(stream[start:stop] for start, stop in pairwise(ends)) == expected_events(stream)


@given(streams)
def test_bytes_are_taken_once(stream: bytes) -> None:
    reader = RequestReader()
    reader.receive(stream)
    first = read_all(reader)
    assert read_all(reader) == []
    if first and (isinstance(first[-1], tuple) or not first[-1].keep_alive):
        assert reader.next_event() is END


def test_head_that_differs_in_its_range_only_is_not_parsed_again() -> None:
    reader = RequestReader()
    reader.receive(RANGE % (0, 1))
    first = reader.next_event()
    assert isinstance(first, Request)
    for start in (0, 5, 10**17):
        reader.receive(RANGE % (start, start + 9))
        assert reader.next_event() == (start, start + 9)
        expected = {**first.headers, "range": f"bytes={start}-{start + 9}"}
        assert reader.repeat((start, start + 9)) == attrs.evolve(first, headers=expected)
    reader.receive(REQUEST + RANGE % (0, 1))
    assert [isinstance(reader.next_event(), Request) for _ in range(2)] == [True, True]


@pytest.mark.parametrize("numbers", ["00-1", "0-01", "0-", "-1", "1-1000000000000000000", "0-1,2-3", " 0-1"])
def test_range_that_is_not_canonical_is_parsed(numbers: str) -> None:
    reader = RequestReader()
    reader.receive(RANGE % (0, 1))
    reader.next_event()
    head = (RANGE % (0, 1)).replace(b"0-1", numbers.encode())
    reader.receive(head)
    assert reader.next_event() == parse_head(head)


@given(st.integers(0, 200), st.integers(0, 200))
def test_part_of_a_head_or_more_than_one_is_no_repeated_head(start: int, stop: int) -> None:
    data = (RANGE % (0, 1) + RANGE % (2, 3) + RANGE % (0, 1))[start:stop]
    reader = RequestReader()
    reader.receive(RANGE % (0, 1))
    reader.next_event()
    reader.receive(data)
    event = reader.next_event()
    whole = {RANGE % (0, 1): (0, 1), RANGE % (2, 3): (2, 3)}
    if data in whole:
        assert event == whole[data]
        assert reader.buffer == b""
    elif isinstance(event, tuple):  # the first of several
        assert data.lstrip(b"\r\n").startswith(RANGE % event)


def test_identical_head_is_the_same_request() -> None:
    reader = RequestReader()
    reader.receive(REQUEST)
    first = reader.next_event()
    reader.receive(REQUEST)
    assert reader.next_event() is first


def test_long_head_is_not_remembered() -> None:
    long = REQUEST[:-2] + b"X: %b\r\n\r\n" % (b"x" * 4000)
    reader = RequestReader()
    reader.receive(long + long)
    first, second = reader.next_event(), reader.next_event()
    assert first == second
    assert first is not second


def test_incomplete_head_needs_data_until_the_client_closes() -> None:
    reader = RequestReader()
    reader.receive(REQUEST[:-1])
    assert reader.next_event() is NEED_DATA
    assert reader.buffer == REQUEST[:-1]
    reader.receive_end()
    assert reader.next_event() is END


def test_requests_sent_before_the_client_closed_are_read() -> None:
    reader = RequestReader()
    reader.receive(REQUEST + REQUEST)
    reader.receive_end()
    events, exhausted = [], []
    for _ in range(3):
        events.append(reader.next_event())
        exhausted.append(reader.is_exhausted)
    request = parse_head(REQUEST)
    assert reader.is_client_closed
    assert (events, exhausted) == ([request, request, END], [False, True, True])


def test_empty_lines_are_dropped_and_begin_no_head() -> None:
    reader = RequestReader()
    reader.receive(b"\r\n\r\n")
    assert reader.next_event() is NEED_DATA
    assert reader.buffer == b""
    reader.receive(b"\r\n" + REQUEST)
    assert reader.next_event() == parse_head(REQUEST)


@pytest.mark.parametrize("last", [REQUEST[:-2] + b"Connection: close\r\n\r\n", b"HEAD / HTTP/1.0\r\n\r\n"])
def test_nothing_is_read_behind_the_last_request(last: bytes) -> None:
    reader = RequestReader()
    reader.receive(last + REQUEST)
    assert reader.next_event() == parse_head(last)
    assert reader.next_event() is END


@pytest.mark.parametrize(
    ("start", "method"), [(b"GET /#", ""), (b"HEAD /#", "HEAD"), (b"HEADS /", ""), (b"PUT /", "PUT")]
)
def test_nothing_is_read_behind_a_bad_request(start: bytes, method: str) -> None:
    reader = RequestReader()
    reader.receive(start + b" HTTP/1.1\r\nHost: a\r\n\r\n" + REQUEST)
    event = reader.next_event()
    assert isinstance(event, BadRequest)
    assert event.method == method
    assert reader.buffer == b""
    assert reader.next_event() is END


def test_endless_head_is_refused_at_the_limit() -> None:
    reader = RequestReader()
    while len(reader.buffer) + 16 < MAX_HEAD_BYTES:
        reader.receive(b"X-Filler: 1234\r\n")
        assert reader.next_event() is NEED_DATA
    reader.receive(b"X-Filler: 1234\r\n")
    events = [reader.next_event() for _ in range(2)]
    assert isinstance(events[0], BadRequest)
    assert events[0].error.code == "head-too-large"
    assert events[1] is END


def test_rejected_head_is_dropped() -> None:
    reader = RequestReader()
    reader.receive(b"HEAD /a HTT")
    bad = reader.reject(RequestTimeout("late"))
    assert (bad.method, bad.error.code) == ("HEAD", "request-timeout")
    assert reader.buffer == b""
    assert reader.next_event() is END


def test_line_that_ends_in_lf_alone_is_refused_before_the_head_is_complete() -> None:
    reader = RequestReader()
    reader.receive(b"GET / HTTP/1.1\n")
    event = reader.next_event()
    assert isinstance(event, BadRequest)
    assert isinstance(event.error, InvalidRequest)


def test_reader_is_full_beyond_the_limit_of_buffered_bytes_until_requests_are_taken() -> None:
    reader = RequestReader()
    pipelined = REQUEST * (MAX_BUFFERED_BYTES // len(REQUEST) + 1)
    fullness = []
    for data in (pipelined[:MAX_BUFFERED_BYTES], pipelined[MAX_BUFFERED_BYTES:]):
        reader.receive(data)
        fullness.append(reader.is_full)
    assert reader.next_event() == parse_head(REQUEST)
    assert [*fullness, reader.is_full] == [False, True, False]


def test_closed_reader_drops_input_and_is_full_after_its_limit() -> None:
    reader = RequestReader()
    reader.close()
    reader.receive(bytes(MAX_DROPPED_BYTES))
    assert (reader.is_full, reader.buffer) == (False, b"")
    reader.receive(b"x")
    assert (reader.is_full, reader.buffer) == (True, b"")
