"""The messages of a web API as values: requests in, JSON responses and problem details out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from image_service.common.openapi.bodies import render_body
from image_service.core.errors import InvalidRequest
from image_service.server.http.problem import problem_document, status_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from image_service.core.errors import ImageServiceError
    from image_service.server.web_api.request_content import RequestContent


_ESCAPED_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
MAX_LEVELS = 64
"""Of the objects and arrays in a request's JSON."""
MAX_VALUES = 250_000
"""In a request's JSON; commas in its strings count, too."""


@attrs.frozen
class ApiRequest:
    """A request whose head was accepted.

    Args:
        method: GET also for HEAD; see `is_head`.
        path: percent-encoded, without the query.
        query: parameters by name; the values of one that is repeated are joined by commas.
        body: content; empty if it is streamed.
        headers: fields by lower-case name; the values of one that is repeated are joined by commas.
        client: host of the client; "" on a Unix socket.
        content: streamed content; None: it is in `body`. A read raises InvalidRequest if the connection ends
            before the content does.
        principal: its sender, set by an API that authenticates requests itself.
        record_authenticated: records that the sender is known, so that others' connections are aborted first.
        is_head: its method is HEAD.
        is_secure: it came by TLS.
        target: path and query as they were sent; signatures cover them.
    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes = attrs.field(default=b"", repr=False)
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    client: str = ""
    content: RequestContent | None = attrs.field(default=None, repr=False)
    principal: Any = None
    record_authenticated: Callable[[], object] = attrs.field(default=lambda: None, repr=False, eq=False)
    is_head: bool = False
    is_secure: bool = False
    target: str = attrs.field(default="", repr=False)

    @property
    def is_local(self) -> bool:
        """True if it came through a Unix socket."""
        return not self.client


class ContentStream(Protocol):
    """Content that is read while it is sent."""

    async def read(self) -> bytes:
        """Return the next bytes, some 100 KiB; none at the end. An error aborts the connection."""

    def close(self) -> None:
        """Release what it holds: the response has ended, or its connection."""


@attrs.frozen
class ApiResponse:
    """A response.

    Args:
        modified: Last-Modified; None: there is no such field.
        stream: content in the place of `body`; the response then has only `fields` and Date.
    """

    status: int = 200
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str = "application/json"
    modified: datetime | None = None
    fields: tuple[tuple[str, str], ...] = ()
    stream: ContentStream | None = attrs.field(default=None, repr=False)


def parse_json_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a request's content.

    Raises:
        InvalidRequest: it is something else, too deep, or has too many values.
    """
    if sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:  # reading them would keep all threads waiting
        raise InvalidRequest(f"the content has more than {MAX_VALUES} values")
    try:
        document = json.loads(body.decode("utf-8-sig"))
        if _ESCAPED_SURROGATE.search(body):
            json.dumps(document, ensure_ascii=False).encode()  # refuses halves of surrogate pairs
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidRequest("the content is not a JSON object")
    if not _is_flat(document):
        raise InvalidRequest(f"the content has more than {MAX_LEVELS} levels of objects and arrays")
    return document


def _is_flat(document: object) -> bool:
    """Return True if a document has at most `MAX_LEVELS`, so that functions may recurse in it."""
    values: Iterable[object] = [document]
    for _ in range(MAX_LEVELS):
        holders = [value for value in values if isinstance(value, dict | list)]
        if not holders:
            return True
        values = [member for one in holders for member in (one.values() if isinstance(one, dict) else one)]
    return not any(isinstance(value, dict | list) for value in values)


def json_response(
    document: object, status: int = 200, fields: tuple[tuple[str, str], ...] = ()
) -> ApiResponse:
    """Return a response with a JSON document, which is a body or has some."""
    text = json.dumps(document, default=render_body)  # not indented, which takes five times as long
    return ApiResponse(status, text.encode() + b"\n", fields=fields)


def problem_response(error: ImageServiceError) -> ApiResponse:
    """Return an error as ``application/problem+json`` (RFC 9457)."""
    body = json.dumps(problem_document(error)).encode() + b"\n"
    fields = error.fields
    if error.retry_after_seconds is not None:
        fields += (("Retry-After", str(error.retry_after_seconds)),)
    return ApiResponse(status_of(error), body, "application/problem+json", fields=fields)
