"""A blocking HTTP client that follows no redirect, checks each response, and measures its times."""

from __future__ import annotations

import re
import ssl
import time
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
    RemoteDisconnected,
    UnknownProtocol,
)
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import TransferFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

    from image_service.tools.doctor.target import ImageUrl

USER_AGENT = "image-service-doctor"
SILENCE_SECONDS = 15.0
"""For which a server may send nothing; all time-outs of firmware that are known are shorter."""

_CHUNK = 64 * 1024
_MAX_INTERIM_RESPONSES = 100
_LENGTH = re.compile("[0-9]{1,18}")


@attrs.frozen
class WebReply:
    """A response.

    Args:
        fields: header fields, by lower-case name; repeated ones joined by commas.
        names: of the fields, as they were sent.
        body: content, up to the limit of the request; empty if it went elsewhere.
        length: bytes of content that were read.
        is_whole: the content ended where its framing says.
        first_byte_seconds: from the request to the first byte of content, or to the head if there is none.
        seconds: from the request to the last byte that was read.
    """

    status: int
    fields: Mapping[str, str] = attrs.field(repr=False)
    names: frozenset[str] = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    length: int
    is_whole: bool
    first_byte_seconds: float
    seconds: float

    @property
    def content_length(self) -> int | None:
        """The value of Content-Length; None: there is no valid one."""
        value = self.fields.get("content-length", "")
        return int(value) if _LENGTH.fullmatch(value) else None

    @property
    def validators(self) -> tuple[str | None, str | None]:
        """ETag and Last-Modified."""
        return self.fields.get("etag"), self.fields.get("last-modified")


class WebClient:
    """Sends requests to one server, over one connection while that is possible.

    Args:
        url: of all requests.

    Attributes:
        slowest_seconds: the longest time from a request to the first byte of its response.
    """

    def __init__(self, url: ImageUrl) -> None:
        self.url = url
        self.slowest_seconds = 0.0
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(
        self,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        *,
        limit: int = _CHUNK,
        limit_seconds: float = SILENCE_SECONDS,
        sink: Callable[[bytes], None] | None = None,
    ) -> WebReply:
        """Send a request and read the response, or its beginning; then the connection is closed.

        Args:
            method: HEAD or GET.
            headers: fields beside Host and User-Agent.
            limit: bytes of content to read at most.
            limit_seconds: for the content, after the head.
            sink: takes the content in pieces; None: it is in the reply.

        Raises:
            TransferFailed: no response, or no valid one.
        """
        fields = {"User-Agent": USER_AGENT, **(headers or {})}
        is_reused = self._connection is not None
        try:
            try:
                return self._exchange(method, fields, limit, limit_seconds, sink)
            except (RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                self.close()
                if not is_reused:
                    raise
                return self._exchange(method, fields, limit, limit_seconds, sink)
        except TimeoutError:
            self.close()
            raise TransferFailed(f"nothing has come for {SILENCE_SECONDS:.0f} s") from None
        except (OSError, HTTPException) as error:
            self.close()
            raise TransferFailed(describe_network_error(error)) from None

    def _exchange(
        self,
        method: str,
        fields: Mapping[str, str],
        limit: int,
        limit_seconds: float,
        sink: Callable[[bytes], None] | None,
    ) -> WebReply:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        begun_at = time.monotonic()
        connection.putrequest(method, self.url.target, skip_accept_encoding=True)
        for name, value in fields.items():
            connection.putheader(name, value)
        connection.endheaders()
        response = connection.getresponse()
        first_at = head_at = time.monotonic()
        body, length = bytearray(), 0
        while length < limit and time.monotonic() < head_at + limit_seconds:
            chunk = response.read1(min(_CHUNK, limit - length))
            if not chunk:
                break
            first_at = first_at if length else time.monotonic()
            length += len(chunk)
            if sink is None:
                body += chunk
            else:
                sink(chunk)
        ended_at = time.monotonic()
        self.slowest_seconds = max(self.slowest_seconds, first_at - begun_at)
        is_whole = _is_whole(response, length)
        response.close()
        if not is_whole or response.will_close:
            self.close()
        return WebReply(
            status=response.status,
            fields=_fields(response),
            names=frozenset(response.headers.keys()),
            body=bytes(body),
            length=length,
            is_whole=is_whole,
            first_byte_seconds=first_at - begun_at,
            seconds=ended_at - begun_at,
        )

    def _connect(self) -> HTTPConnection:
        url = self.url
        if not url.is_https:
            connection = HTTPConnection(url.host, url.port, timeout=SILENCE_SECONDS)
        else:
            connection = HTTPSConnection(
                url.host, url.port, timeout=SILENCE_SECONDS, context=permissive_context()
            )
        connection.response_class = _FinalResponse
        connection.connect()
        return connection


class _FinalResponse(HTTPResponse):
    """A response after those before it (1xx), of which http.client skips 100 alone."""

    def begin(self) -> None:
        """Read heads up to the final one."""
        super().begin()
        for _ in range(_MAX_INTERIM_RESPONSES):
            if HTTPStatus.SWITCHING_PROTOCOLS < self.status < HTTPStatus.OK:
                self.headers = None  # type: ignore[assignment]  # so it was before the first one
                super().begin()


def _is_whole(response: HTTPResponse, length: int) -> bool:
    if response.length is not None:  # the rest of a known length
        return response.length == 0
    return response.isclosed() or length == 0


def _fields(response: HTTPResponse) -> dict[str, str]:
    fields: dict[str, str] = {}
    for name, value in response.headers.items():
        key, value = name.lower(), value.strip(" \t")  # noqa: PLW2901 - white space is not part of it
        fields[key] = f"{fields[key]}, {value}" if key in fields else value
    return fields


def permissive_context() -> ssl.SSLContext:
    """Return a context that speaks all versions and ciphers, and verifies nothing: TLS has its own checks."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    context.set_ciphers("ALL:!aNULL:@SECLEVEL=0")
    return context


def describe_network_error(error: Exception) -> str:
    """Return the reason of a failed connection or response, in words."""
    if isinstance(error, RemoteDisconnected):
        return "the server closed the connection without a response"
    if isinstance(error, TimeoutError):
        return f"no answer for {SILENCE_SECONDS:.0f} s"
    if isinstance(error, ssl.SSLError):
        return error.reason or str(error)
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the response is invalid: {_describe_fault(error)}"


def _describe_fault(error: Exception) -> str:
    if isinstance(error, BadStatusLine | UnknownProtocol):
        return "its first line is not one of HTTP"
    if isinstance(error, IncompleteRead):
        return "it ends within its content"
    return str(error) or "it is not HTTP"  # a constant: of long lines, and of too many fields
