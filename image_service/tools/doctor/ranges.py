"""Requests for ranges, and comparison of each response with its request (RFC 9110 section 14)."""

from __future__ import annotations

import re
from collections import OrderedDict
from http import HTTPStatus
from typing import TYPE_CHECKING

from image_service.core.errors import TransferFailed

if TYPE_CHECKING:
    from image_service.tools.doctor.web_client import WebClient, WebReply

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)
_BLOCK_BYTES = 128 * 1024
_MAX_BLOCKS = 128


def total_of(reply: WebReply) -> int | None:
    """Return the size of the file according to Content-Range; None if there is none."""
    match = _CONTENT_RANGE.fullmatch(reply.fields.get("content-range", ""))
    return int(match[3]) if match else None


def find_range_fault(reply: WebReply, first: int, last: int, size: int) -> str | None:
    """Return the fault of the response to a range; None if it has none.

    Args:
        first: offset of the first byte that was asked for.
        last: offset of the last one that the file has of them.
        size: bytes of the file.
    """
    if reply.status == HTTPStatus.OK:
        return "200 with the whole file instead of 206"
    if reply.status != HTTPStatus.PARTIAL_CONTENT:
        return f"{reply.status} instead of 206"
    value = reply.fields.get("content-range", "")
    match = _CONTENT_RANGE.fullmatch(value)
    if match is None:
        return f"Content-Range is {value[:80]!r}" if value else "206 without Content-Range"
    if tuple(map(int, match.groups())) != (first, last, size):
        return f"Content-Range says {match[0]}, not bytes {first}-{last}/{size}"
    if reply.length != last - first + 1 or not reply.is_whole:
        return f"{reply.length} bytes of content instead of {last - first + 1}"
    return None


def fetch_range(client: WebClient, first: int, last: int, size: int) -> WebReply:
    """Fetch a range that is inside a file of `size` bytes; raise TransferFailed if the response is wrong."""
    reply = client.request("GET", {"Range": f"bytes={first}-{last}"}, limit=last - first + 2)
    fault = find_range_fault(reply, first, last, size)
    if fault is not None:
        raise TransferFailed(f"bytes {first}-{last}: {fault}")
    return reply


class RangeReader:
    """Reads a file at offsets by requests for ranges, and keeps the latest 16 MiB.

    Args:
        size: bytes of the file.
    """

    def __init__(self, client: WebClient, size: int) -> None:
        self._client = client
        self._size = size
        self._blocks: OrderedDict[int, bytes] = OrderedDict()

    def __call__(self, offset: int, length: int) -> bytes:
        """Return `length` bytes at `offset`, fewer at the end; raise TransferFailed if that fails."""
        end = min(offset + length, self._size)
        if offset >= end:
            return b""
        first = offset // _BLOCK_BYTES
        content = b"".join(map(self._block, range(first, (end - 1) // _BLOCK_BYTES + 1)))
        begin = offset - first * _BLOCK_BYTES
        return content[begin : begin + end - offset]

    def _block(self, number: int) -> bytes:
        if number in self._blocks:
            self._blocks.move_to_end(number)
            return self._blocks[number]
        first = number * _BLOCK_BYTES
        last = min(first + _BLOCK_BYTES, self._size) - 1
        content = fetch_range(self._client, first, last, self._size).body
        self._blocks[number] = content
        if len(self._blocks) > _MAX_BLOCKS:
            self._blocks.popitem(last=False)
        return content
