"""Responses read as a client would: field lines, content, and the parts of a multipart."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.core.images.building import read

if TYPE_CHECKING:
    from image_service.server.http.response import Response

_FIELD_LINE = re.compile(r"([A-Za-z-]+): ([\x20-\x7e\xa0-\xff]*)")


def fields_of(response: Response) -> dict[str, str]:
    """The fields by lower-case name; every line is well-formed and no name comes twice."""
    text = response.fields.decode("latin-1")
    assert text.endswith("\r\n")
    lines = text.removesuffix("\r\n").split("\r\n")
    matches = [_FIELD_LINE.fullmatch(line) for line in lines]
    fields = {match[1].lower(): match[2] for match in matches if match is not None}
    assert len(fields) == len(lines), text
    return fields


def body_of(response: Response) -> bytes:
    """The content, which has the length that the response says."""
    body = read(response.body)
    assert len(body) == response.length
    return body


def problem_of(response: Response) -> dict[str, object]:
    """The members of a problem."""
    assert fields_of(response)["content-type"] == "application/problem+json"
    members: dict[str, object] = json.loads(body_of(response))
    return members


def parts_of(response: Response) -> list[tuple[dict[str, str], bytes]]:
    """The parts of multipart/byteranges, each with its fields; separated by their lengths alone."""
    match = re.fullmatch(
        r"multipart/byteranges; boundary=([0-9a-f]{32})", fields_of(response)["content-type"]
    )
    assert match is not None
    delimiter, rest = f"--{match[1]}".encode(), b"\r\n" + body_of(response)
    parts = []
    while not rest.startswith(end := b"\r\n" + delimiter + b"--\r\n"):
        opening, _, rest = rest.partition(b"\r\n\r\n")
        empty, first, *lines = opening.decode("ascii").split("\r\n")
        assert (empty, first.encode()) == ("", delimiter)
        fields = {name.lower(): value for name, value in (line.split(": ") for line in lines)}
        start, stop, _ = span_of(fields["content-range"])
        parts.append((fields, rest[: stop - start]))
        rest = rest[stop - start :]
    assert rest == end
    return parts


def span_of(content_range: str) -> tuple[int, int, int]:
    """First byte, the one behind the last, and the complete length, of a Content-Range."""
    match = re.fullmatch(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", content_range)
    assert match is not None, content_range
    first, last, size = map(int, match.groups())
    assert first <= last < size
    return first, last + 1, size
