"""Verification of heads and content."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.tools.loadtest.traffic.profiles import BLOCK
from image_service.tools.loadtest.traffic.verification import (
    BlockDigests,
    ContentCheck,
    MountCheck,
    ResponseHead,
    VerificationFault,
    find_detail,
    parse_checksum,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

IMAGE = bytes(index * 7 % 251 for index in range(5 * BLOCK + 100))
SIZE = len(IMAGE)
OFFSETS = st.integers(0, SIZE)
SLOTS = 97  # more than there are blocks


def read(
    blocks: BlockDigests, version: int, image: bytes, span: Sequence[int], cuts: list[int]
) -> int | None:
    """Read a range in pieces that end at the cuts."""
    start, stop = span
    content = ContentCheck(blocks, version, start, len(image))
    edges = [start, *sorted(cut for cut in cuts if start < cut < stop), stop]
    for begin, end in pairwise(edges):
        content.feed(image[begin:end])
    return content.differs_at


def whole_blocks(start: int, stop: int) -> set[int]:
    """Return the blocks that lie completely in a range; the last of the image is shorter."""
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
def test_wrong_byte_is_found_in_a_block_read_before(
    spans: list[list[int]], cuts: list[int], wrong: int
) -> None:
    blocks = BlockDigests(SLOTS)
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
    blocks = BlockDigests(SLOTS)
    for _ in range(2):
        assert read(blocks, 1, IMAGE, span, cuts) is None
    assert blocks.compared == len(whole_blocks(*span))


@pytest.mark.parametrize("cuts", [[], [3 * BLOCK]])
def test_first_of_several_wrong_blocks_is_reported(cuts: list[int]) -> None:
    blocks = BlockDigests(SLOTS)
    assert read(blocks, 1, IMAGE, (0, SIZE), cuts) is None
    other = IMAGE[:BLOCK] + bytes(4 * BLOCK) + IMAGE[5 * BLOCK :]
    assert read(blocks, 1, other, (0, SIZE), cuts) == BLOCK


def test_only_blocks_of_the_same_version_are_compared() -> None:
    blocks = BlockDigests()
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


def test_latest_block_replaces_the_one_in_its_slot() -> None:
    blocks = BlockDigests(slots=3)
    assert read(blocks, 1, IMAGE, (0, SIZE), []) is None
    assert read(blocks, 1, IMAGE, (0, SIZE), []) is None
    other = bytes(reversed(IMAGE))
    last = SIZE // BLOCK * BLOCK
    assert read(blocks, 1, other, (0, BLOCK), []) is None  # its slot has gone to a later block
    assert read(blocks, 1, other, (last, SIZE), []) == last


def head(length: object = SIZE, etag: str | None = '"a"') -> ResponseHead:
    fields = {"content-length": str(length)} | ({} if etag is None else {"etag": etag})
    return ResponseHead(200, fields)


def partial(content_range: str, length: object, etag: str | None = '"a"') -> ResponseHead:
    fields = {"content-range": content_range, "content-length": str(length)}
    return ResponseHead(206, fields | ({} if etag is None else {"etag": etag}))


RIGHT = f"bytes 4096-8191/{SIZE}"


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (partial(RIGHT, 4096), None),
        (head(), VerificationFault.RANGE_IGNORED),
        (partial(f"bytes 4096-8190/{SIZE}", 4095), VerificationFault.CONTENT_RANGE),
        (partial(f"bytes 0-4095/{SIZE}", 4096), VerificationFault.CONTENT_RANGE),
        (partial("bytes 4096-8191/*", 4096), VerificationFault.CONTENT_RANGE),
        (partial("", 4096), VerificationFault.CONTENT_RANGE),
        (partial(RIGHT, 4095), VerificationFault.LENGTH),
        (partial(RIGHT, "x"), VerificationFault.LENGTH),
        (partial(f"bytes 4096-8191/{SIZE + 1}", 4096), VerificationFault.SIZE_CHANGED),
        (partial(RIGHT, 4096, '"b"'), VerificationFault.ETAG_CHANGED),
        (partial(RIGHT, 4096, None), VerificationFault.ETAG_CHANGED),
    ],
)
def test_responses_of_one_mount_are_of_one_version(
    answer: ResponseHead, fault: VerificationFault | None
) -> None:
    mount = MountCheck(0, BlockDigests())
    assert mount.check_head(head()) is None
    assert mount.check_range(answer, 4096, 8192) is fault


def test_head_without_a_length_is_a_fault() -> None:
    assert MountCheck(0, BlockDigests()).check_head(ResponseHead(200, {})) is VerificationFault.LENGTH


def test_mount_without_etags_must_be_coherent_too() -> None:
    mount = MountCheck(0, BlockDigests())
    assert mount.check_head(head(etag=None)) is None
    assert mount.check_range(partial(RIGHT, 4096, None), 4096, 8192) is None
    assert mount.check_range(partial(RIGHT, 4096, '"a"'), 4096, 8192) is VerificationFault.ETAG_CHANGED


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
def test_checksum_line_of_sha256sum_is_parsed(body: str, digest: str | None) -> None:
    assert parse_checksum(body.encode()) == digest


@pytest.mark.parametrize(
    ("media_type", "body", "detail"),
    [
        ("application/problem+json", b'{"title": "Not Found", "detail": "not\\n  found"}', "not found"),
        ("application/json; charset=utf-8", b'{"message": "no infra-env"}', "no infra-env"),
        ("application/json", b'{"reason": 5}', "5"),
        ("application/json", b"[1]", ""),
        ("application/json", b'{"detail": "cut', ""),
        ("text/plain", b"404 page\x1b[2J not found\n", "404 page[2J not found"),
        ("text/plain", b"\xff" * 1000, "\ufffd" * 300),
        ("text/html", b"<h1>404</h1>", ""),
        ("", b"not found", ""),
    ],
)
def test_detail_of_an_error_is_found(media_type: str, body: bytes, detail: str) -> None:
    assert find_detail(ResponseHead(404, {"content-type": media_type}), body) == detail
