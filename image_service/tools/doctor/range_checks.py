"""Checks of ranges: the cases that real clients send and real servers get wrong."""

from __future__ import annotations

import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.core.errors import TransferFailed
from image_service.tools.doctor.outcomes import failed, passed, skipped, warned
from image_service.tools.doctor.ranges import fetch_range, find_range_fault
from image_service.tools.doctor.rules import Rule, violation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.response_checks import ServedFile
    from image_service.tools.doctor.rules import ClientProfile
    from image_service.tools.doctor.web_client import WebClient, WebReply

RANGE_CHECKS = ("ranges", "range-past-end", "range-beyond-size", "multiple-ranges")

_REMEDY = "let the server, or the proxy before it, answer ranges as RFC 9110 section 14 says"
_BLOCK = 512
_MIN_BYTES = 4 * _BLOCK
_PART_HEAD = re.compile(rb"(?:\r\n)?--[^\r\n]{1,72}\r\n((?:[^\r\n]+\r\n)+)\r\n")
_PART_RANGE = re.compile(rb"(?i)content-range: *bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18}|\*)\r\n")
_PART_BYTES = 100
_MAX_MULTIPART_BYTES = 64 * 1024


def check_ranges(
    file: ServedFile, profile: ClientProfile | None
) -> Generator[CheckOutcome, None, int | None]:
    """Yield the outcomes of `RANGE_CHECKS`; return the file's size, None if single ranges do not work."""
    size, client = file.size, file.client
    if size is None or size < _MIN_BYTES:
        reason = "the server does not say how long the file is" if size is None else f"only {size} bytes"
        yield from (skipped(name, reason) for name in RANGE_CHECKS)
        return None
    try:
        _check_single(file, size)
    except TransferFailed as error:
        yield violation("ranges", Rule.RANGES, profile, error.detail, _REMEDY)
        yield from (skipped(name, "single ranges do not work") for name in RANGE_CHECKS[1:])
        return None
    yield passed("ranges", "the first, the last, a middle, an open and a suffix range are right")
    yield _attempt("range-past-end", lambda: _check_past_end(client, size, profile))
    yield _attempt("range-beyond-size", lambda: _check_beyond_size(client, size))
    yield _attempt("multiple-ranges", lambda: _check_multiple(client, size))
    return size


def _attempt(name: str, check: Callable[[], CheckOutcome]) -> CheckOutcome:
    try:
        return check()
    except TransferFailed as error:
        return failed(name, error.detail, _REMEDY)


def _check_single(file: ServedFile, size: int) -> None:
    """Raise TransferFailed if a range is not served, or ranges that overlap have other bytes."""
    client, middle = file.client, size // 2
    first = fetch_range(client, 0, _BLOCK - 1, size).body
    _compare("bytes 0-511", first, file.beginning[:_BLOCK], "a GET of the whole file")
    wide = fetch_range(client, 0, 2 * _BLOCK - 1, size).body
    _compare("bytes 0-511", first, wide[:_BLOCK], "those of a longer range")
    across = fetch_range(client, _BLOCK, 2 * _BLOCK - 1, size).body
    _compare(f"bytes {_BLOCK}-{2 * _BLOCK - 1}", across, wide[_BLOCK:], "those of a longer range")
    around = fetch_range(client, middle - _BLOCK, middle + _BLOCK - 1, size).body
    inside = fetch_range(client, middle, middle + _BLOCK - 1, size).body
    _compare(f"bytes {middle}-{middle + _BLOCK - 1}", inside, around[_BLOCK:], "those of a longer range")
    last = fetch_range(client, size - _BLOCK, size - 1, size).body
    for spec in (f"{size - _BLOCK}-", f"-{_BLOCK}"):
        reply = client.request("GET", {"Range": f"bytes={spec}"}, limit=_BLOCK + 1)
        if fault := find_range_fault(reply, size - _BLOCK, size - 1, size):
            raise TransferFailed(f"bytes={spec}: {fault}")
        _compare(f"bytes={spec}", reply.body, last, f"bytes {size - _BLOCK}-{size - 1}")


def _compare(what: str, one: bytes, other: bytes, other_name: str) -> None:
    if one != other:
        raise TransferFailed(f"{what} differ from {other_name}")


def _check_past_end(client: WebClient, size: int, profile: ClientProfile | None) -> CheckOutcome:
    """Ask for one byte more than there is, as nbdkit does."""
    first = size - _BLOCK
    reply = client.request("GET", {"Range": f"bytes={first}-{size}"}, limit=_BLOCK + 1)
    if fault := find_range_fault(reply, first, size - 1, size):
        remedy = "answer 206 with the bytes that there are (RFC 9110 section 14.1.2)"
        detail = f"bytes {first}-{size} of {size}: {fault}"
        return violation("range-past-end", Rule.PAST_END, profile, detail, remedy)
    return passed("range-past-end", "a range that ends one byte after the file is clamped")


def _check_beyond_size(client: WebClient, size: int) -> CheckOutcome:
    name, remedy = "range-beyond-size", f"answer 416 with Content-Range: bytes */{size}"
    reply = client.request("GET", {"Range": f"bytes={size}-{size + _BLOCK - 1}"}, limit=_BLOCK)
    if reply.status == HTTPStatus.PARTIAL_CONTENT:
        return failed(name, "206 for a range that begins after the file", remedy)
    value = reply.fields.get("content-range", "")
    if reply.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or value != f"bytes */{size}":
        detail = f"{reply.status} with {f'Content-Range: {value[:80]}' if value else 'no Content-Range'}"
        return warned(name, f"{detail} (RFC 9110 section 15.5.17)", remedy)
    return passed(name, "416 with the size")


def _check_multiple(client: WebClient, size: int) -> CheckOutcome:
    name = "multiple-ranges"
    starts = (0, size // 2, size - _PART_BYTES)
    specs = ", ".join(f"{start}-{start + _PART_BYTES - 1}" for start in starts)
    reply = client.request("GET", {"Range": f"bytes={specs}"}, limit=_MAX_MULTIPART_BYTES)
    if reply.status != HTTPStatus.PARTIAL_CONTENT:
        detail = f"{reply.status}: not supported, which no client here needs"
        return passed(name, detail) if reply.status == HTTPStatus.OK else skipped(name, detail)
    if not reply.fields.get("content-type", "").lower().startswith("multipart/byteranges"):
        raise TransferFailed("206 for three ranges without multipart/byteranges")
    parts = parse_parts(reply)
    if set(parts) != set(starts):
        raise TransferFailed(f"parts at {sorted(parts)} instead of {list(starts)}")
    for start, content in parts.items():
        end = start + _PART_BYTES - 1
        _compare(f"the part {start}-{end}", content, fetch_range(client, start, end, size).body, "the range")
    return passed(name, "three ranges come as multipart/byteranges")


def parse_parts(reply: WebReply) -> dict[int, bytes]:
    """Return the parts of a multipart/byteranges response by offset; TransferFailed if it is not valid."""
    parts: dict[int, bytes] = {}
    position = 0
    while head := _PART_HEAD.match(reply.body, position):
        found = _PART_RANGE.search(head[1])
        first, last = (int(found[1]), int(found[2])) if found else (1, 0)
        if first > last:
            raise TransferFailed("a part has no valid Content-Range")
        position = head.end() + last - first + 1
        parts[first] = reply.body[head.end() : position]
    if not reply.body[position:].lstrip(b"\r\n").startswith(b"--"):
        raise TransferFailed("multipart/byteranges does not end with its boundary")
    return parts
