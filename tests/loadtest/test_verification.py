"""What is compared, and what is found to be wrong."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.loadtest.profiles import BLOCK
from image_service.loadtest.verification import Answer, Blocks, Content, Fault, Mount, parse_checksum

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE = bytes(index * 7 % 251 for index in range(5 * BLOCK + 100))
SIZE = len(IMAGE)
OFFSETS = st.integers(0, SIZE)
SLOTS = 97  # more than there are blocks


def read(blocks: Blocks, version: int, image: bytes, span: Sequence[int], cuts: list[int]) -> int | None:
    """Read a range in pieces that end at the cuts."""
    start, stop = span
    content = Content(blocks, version, start, len(image))
    edges = [start, *sorted(cut for cut in cuts if start < cut < stop), stop]
    for begin, end in pairwise(edges):
        content.feed(image[begin:end])
    return content.differs_at


def whole_blocks(start: int, stop: int) -> set[int]:
    """The blocks that a range holds wholly; the last of the image is shorter."""
    return {
        block
        for block in range(SIZE // BLOCK + 1)
        if start <= block * BLOCK and min((block + 1) * BLOCK, SIZE) <= stop
    }


@given(
    st.lists(st.tuples(OFFSETS, OFFSETS).map(sorted), min_size=2, max_size=5),
    st.lists(OFFSETS, max_size=6),
    st.integers(0, SIZE - 1),
)
def test_a_wrong_byte_is_found_where_its_block_was_read_before(
    spans: list[list[int]], cuts: list[int], wrong: int
) -> None:
    blocks = Blocks(SLOTS)
    version = blocks.version(0, '"a"')
    *earlier, (start, stop) = spans
    for first, last in earlier:
        assert read(blocks, version, IMAGE, (first, last), cuts) is None
    other = bytearray(IMAGE)
    other[wrong] ^= 1
    known = {block for first, last in earlier for block in whole_blocks(first, last)}
    found = read(blocks, version, bytes(other), (start, stop), cuts)
    block = wrong // BLOCK
    expected = block * BLOCK if block in known & whole_blocks(start, stop) else None
    assert found == expected


@given(st.tuples(OFFSETS, OFFSETS).map(sorted), st.lists(OFFSETS, max_size=6))
def test_equal_bytes_are_compared_and_never_differ(span: list[int], cuts: list[int]) -> None:
    blocks = Blocks(SLOTS)
    for _ in range(2):
        assert read(blocks, 1, IMAGE, span, cuts) is None
    assert blocks.compared == len(whole_blocks(*span))


@pytest.mark.parametrize("cuts", [[], [3 * BLOCK]])
def test_of_several_wrong_blocks_the_first_is_told(cuts: list[int]) -> None:
    blocks = Blocks(SLOTS)
    assert read(blocks, 1, IMAGE, (0, SIZE), cuts) is None
    other = IMAGE[:BLOCK] + bytes(4 * BLOCK) + IMAGE[5 * BLOCK :]
    assert read(blocks, 1, other, (0, SIZE), cuts) == BLOCK


def test_only_the_same_version_is_compared() -> None:
    blocks = Blocks()
    numbers = [
        blocks.version(0, '"a"'),
        blocks.version(0, '"b"'),
        blocks.version(1, '"a"'),
        blocks.version(0, None),
        blocks.version(0, None),
    ]
    assert len(set(numbers)) == len(numbers)
    assert blocks.version(0, '"a"') == numbers[0]
    assert all(read(blocks, number, bytes([number]) * SIZE, (0, SIZE), []) is None for number in numbers)
    assert blocks.compared == 0


def test_memory_is_bounded_and_the_latest_is_kept() -> None:
    blocks = Blocks(slots=3)
    assert read(blocks, 1, IMAGE, (0, SIZE), []) is None
    assert read(blocks, 1, IMAGE, (0, SIZE), []) is None
    other = bytes(reversed(IMAGE))
    last = SIZE // BLOCK * BLOCK
    assert read(blocks, 1, other, (0, BLOCK), []) is None  # its slot has gone to a later block
    assert read(blocks, 1, other, (last, SIZE), []) == last


def head(length: object = SIZE, etag: str | None = '"a"') -> Answer:
    fields = {"content-length": str(length)} | ({} if etag is None else {"etag": etag})
    return Answer(200, fields)


def partial(content_range: str, length: object, etag: str | None = '"a"') -> Answer:
    fields = {"content-range": content_range, "content-length": str(length)}
    return Answer(206, fields | ({} if etag is None else {"etag": etag}))


RIGHT = f"bytes 4096-8191/{SIZE}"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (partial(RIGHT, 4096), None),
        (head(), Fault.RANGE_IGNORED),
        (partial(f"bytes 4096-8190/{SIZE}", 4095), Fault.CONTENT_RANGE),
        (partial(f"bytes 0-4095/{SIZE}", 4096), Fault.CONTENT_RANGE),
        (partial("bytes 4096-8191/*", 4096), Fault.CONTENT_RANGE),
        (partial("", 4096), Fault.CONTENT_RANGE),
        (partial(RIGHT, 4095), Fault.LENGTH),
        (partial(RIGHT, "x"), Fault.LENGTH),
        (partial(f"bytes 4096-8191/{SIZE + 1}", 4096), Fault.SIZE_CHANGED),
        (partial(RIGHT, 4096, '"b"'), Fault.ETAG_CHANGED),
        (partial(RIGHT, 4096, None), Fault.ETAG_CHANGED),
    ],
)
def test_answers_of_one_mount_are_of_one_version(answer: Answer, fault: Fault | None) -> None:
    mount = Mount(0, Blocks())
    assert mount.check_head(head()) is None
    assert mount.check_range(answer, 4096, 8192) is fault


def test_a_head_without_a_length_is_wrong() -> None:
    assert Mount(0, Blocks()).check_head(Answer(200, {})) is Fault.LENGTH


def test_without_etags_one_mount_is_coherent_all_the_same() -> None:
    mount = Mount(0, Blocks())
    assert mount.check_head(head(etag=None)) is None
    assert mount.check_range(partial(RIGHT, 4096, None), 4096, 8192) is None
    assert mount.check_range(partial(RIGHT, 4096, '"a"'), 4096, 8192) is Fault.ETAG_CHANGED


DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("body", "digest"),
    [
        (f"{DIGEST}  full.iso\n", DIGEST),
        (f"{DIGEST}  full.iso", DIGEST),
        (f"{DIGEST}\n", None),
        (f"{DIGEST[1:]}  full.iso\n", None),
        (f"{DIGEST}  a\n{DIGEST}  b\n", None),
        ("<html>", None),
    ],
)
def test_checksums_are_those_of_sha256sum(body: str, digest: str | None) -> None:
    assert parse_checksum(body.encode()) == digest
