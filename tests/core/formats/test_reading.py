from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.reading import Span, SpanReader, check_disjoint, check_inside
from tests.core.formats.reading import reader


def test_span_reader_refuses_bytes_outside_the_span() -> None:
    inside_file = SpanReader(reader(b"before inside behind"), Span("file", 7, 6))
    assert (inside_file(0, 6), inside_file(2, 3), inside_file(6, 0)) == (b"inside", b"sid", b"")
    for offset, length in ((0, 7), (6, 1), (2**63, 1), (1, 2**63)):
        with pytest.raises(FormatError, match=rf"file of 6 bytes .* {length} bytes at offset {offset}"):
            inside_file(offset, length)


def test_span_reader_refuses_a_truncated_image() -> None:
    with pytest.raises(FormatError, match="ends too soon"):
        SpanReader(reader(b"before ins"), Span("file", 7, 6))(0, 6)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=5))
def test_spans_that_share_a_byte_are_refused(places: list[tuple[int, int]]) -> None:
    """Empty spans share no byte."""
    spans = [Span("x", offset, length) for offset, length in places if length]
    covered = [offset for span in spans for offset in range(span.offset, span.offset + span.length)]
    if len(covered) == len(set(covered)):
        check_disjoint(spans)
    else:
        with pytest.raises(FormatError, match=r"overlap: . bytes at offset"):
            check_disjoint(spans)


@given(st.integers(0, 9), st.integers(-9, 9), st.integers(0, 9))
def test_area_must_be_inside_its_file(offset: int, length: int, limit: int) -> None:
    if length >= 0 and offset + length <= limit:
        check_inside("x", offset, length, limit)
    else:
        with pytest.raises(
            FormatError, match=f"leaves x of {limit} bytes: {length} bytes at offset {offset}"
        ):
            check_inside("x", offset, length, limit)
