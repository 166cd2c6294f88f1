"""The request head (RFC 9112 sections 2, 3, 5 and 6): finding its end, parsing it, refusing invalid ones.

llhttp (through httptools) parses the field lines, at its strictest. The rest is here: the request line, the
limits, Host, the framing of content, which is always refused, and Expect.
"""

from __future__ import annotations

import re

import attrs
import httptools

from image_service.core.errors import (
    ContentTooLarge,
    ExpectationFailed,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    NotImplementedMethod,
    UriTooLong,
    VersionNotSupported,
)

MAX_HEAD_BYTES = 32 * 1024
MAX_FIELDS = 100
MAX_TARGET_BYTES = 8 * 1024
"""Limits the credentials in a target, too."""
MAX_CREDENTIALS_BYTES = 8 * 1024
"""Limits Authorization. Signed tokens have some KiB, and are kept with the answers to them."""

# RFC 9112 3:  request-line = method SP request-target SP HTTP-version ; method = token
#   HTTP-version = %s"HTTP" "/" DIGIT "." DIGIT ; the target has no fragment, space or control character
_REQUEST_LINE = re.compile(
    rb"(?P<method>[!#$%&'*+.^_`|~0-9A-Za-z-]+) (?P<target>[\x21\x22\x24-\x7e]+)"
    rb" HTTP/(?P<version>[0-9]\.[0-9])"
)
ALLOWED_METHODS = ("GET", "HEAD", "OPTIONS")
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"}
)
# RFC 9110 4.2.1:  http-URI = "http" "://" authority path-abempty [ "?" query ] ; the host is not empty
_ABSOLUTE_FORM = re.compile(r"https?://[^/?]+", re.IGNORECASE | re.ASCII)
# RFC 9110 7.2:  Host = uri-host [ ":" port ]
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?", re.ASCII)
_ZONE = re.compile(r"\[[0-9A-Fa-f:.]+%")
_END = b"\r\n\r\n"
_TLS_HANDSHAKE = b"\x16\x03"  # RFC 8446 5.1:  type handshake, legacy_record_version 3.x


@attrs.frozen
class Request:
    """A valid request without content.

    Args:
        method: GET, HEAD or OPTIONS.
        target: in origin form: path and query, as sent; it may hold a credential.
        headers: values by lower-case name; repeated fields joined by ``", "``.
        keep_alive: True if the connection may persist (RFC 9112 9.3).
        http_1_0: True if the response must then say so.
    """

    method: str
    target: str = attrs.field(repr=False)
    headers: dict[str, str] = attrs.field(repr=False)
    keep_alive: bool
    http_1_0: bool = False


def find_head(data: bytes) -> int | None:
    """Return the length of the first request head, its empty line included; None while it is incomplete.

    Raises:
        HeadTooLarge: it is longer than `MAX_HEAD_BYTES`, complete or not.
        UriTooLong: the data is one long request line.
        InvalidRequest: a line ends in LF alone, so the end would never be found; or it is not HTTP, but TLS.
    """
    end = data.find(_END, 0, MAX_HEAD_BYTES)
    if end >= 0:
        return end + len(_END)
    if data.startswith(_TLS_HANDSHAKE):
        raise InvalidRequest("the client speaks TLS, and this port plain HTTP; use http://")
    if b"\r\n" not in data[: MAX_TARGET_BYTES + 64] and len(data) > MAX_TARGET_BYTES + 64:
        raise UriTooLong(f"the request target is longer than {MAX_TARGET_BYTES} bytes")
    if len(data) >= MAX_HEAD_BYTES:
        raise HeadTooLarge(f"the request head is longer than {MAX_HEAD_BYTES} bytes")
    if data.count(b"\n") != data.count(b"\r\n"):
        raise InvalidRequest("a line of the request head ends in LF alone, not in CR LF")
    return None


def parse_request_line(data: bytes) -> tuple[str, str]:
    """Return method and target of bytes that begin with a request line; empty strings if they are unknown."""
    match = _REQUEST_LINE.match(data[: MAX_TARGET_BYTES + 64])
    if match is None:
        return "", ""
    method = match["method"].decode("ascii")
    return method if method in _METHODS else "", match["target"].decode("ascii")


def parse_head(head: bytes) -> Request:
    """Parse one complete head, from the request line to the empty line.

    Raises:
        ImageServiceError: the refusal; nothing behind this head can be trusted to be a request.
    """
    line, _, _ = head.partition(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise InvalidRequest("the request line is not: method, target without fragment, HTTP version")
    if len(match["target"]) > MAX_TARGET_BYTES:
        raise UriTooLong(f"the request target is longer than {MAX_TARGET_BYTES} bytes")
    if match["version"] not in {b"1.0", b"1.1"}:
        raise VersionNotSupported("the HTTP version is neither 1.0 nor 1.1")
    method = match["method"].decode("ascii")
    if method not in _METHODS:
        raise NotImplementedMethod("unknown method; use GET or HEAD")
    fields = _parse_fields(head)
    if len(fields.values.get("authorization", "")) > MAX_CREDENTIALS_BYTES:
        raise HeadTooLarge(f"the Authorization field is longer than {MAX_CREDENTIALS_BYTES} bytes")
    http_1_1 = match["version"] == b"1.1"
    # RFC 9112 3.2: one valid Host in every HTTP/1.1 request, never more than one.
    if len(fields.hosts) > 1 or (http_1_1 and not fields.hosts):
        raise InvalidRequest(
            f"the request has {len(fields.hosts)} Host fields; HTTP/1.1 requires exactly one"
        )
    if fields.hosts and _ZONE.match(fields.hosts[0]):  # requests and httpx send it
        raise InvalidRequest(
            "the Host field has a zone identifier, which only the client's machine knows (RFC 6874):"
            " send the address without % and what follows it"
        )
    if fields.hosts and _HOST.fullmatch(fields.hosts[0]) is None:
        raise InvalidRequest("the Host field is not a host with an optional port")
    if method not in ALLOWED_METHODS:
        allowed = ", ".join(ALLOWED_METHODS)
        raise MethodNotAllowed("method not allowed; use GET or HEAD", fields=(("Allow", allowed),))
    _check_content(fields.values, http_1_1=http_1_1)
    # RFC 9112 9.3: close overrides keep-alive in both versions.
    options = {option.strip().lower() for option in fields.values.get("connection", "").split(",")}
    return Request(
        method=method,
        target=_origin_form(method, match["target"].decode("ascii")),
        headers=fields.values,
        keep_alive="close" not in options and (http_1_1 or "keep-alive" in options),
        http_1_0=not http_1_1,
    )


class _Fields:
    """The callbacks of llhttp."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.hosts: list[str] = []
        self.count = 0
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.count += 1
        key = name.decode("latin-1").lower()
        text = value.decode("latin-1").strip(" \t")
        if key == "host":
            self.hosts.append(text)
        known = self.values.get(key)
        self.values[key] = text if known is None else f"{known}, {text}"

    def on_headers_complete(self) -> None:
        self.complete = True


def _parse_fields(head: bytes) -> _Fields:
    fields = _Fields()
    try:
        httptools.HttpRequestParser(fields).feed_data(head)
    except httptools.HttpParserUpgrade:
        pass  # raised behind a complete head; no other protocol is supported, so Upgrade is ignored
    except httptools.HttpParserError as error:
        raise InvalidRequest("the request head is malformed") from error
    if fields.count > MAX_FIELDS:
        raise HeadTooLarge(f"the request head has {fields.count} fields, more than {MAX_FIELDS}")
    if not fields.complete:
        raise InvalidRequest("the request head is malformed")
    return fields


def _check_content(headers: dict[str, str], *, http_1_1: bool) -> None:
    """Refuse content before it is read: no resource accepts any."""
    if "transfer-encoding" in headers:
        if not http_1_1:
            raise InvalidRequest("Transfer-Encoding in an HTTP/1.0 request")
        raise ContentTooLarge("the request has content; none is accepted")
    if headers.get("content-length", "0").strip("0"):
        raise ContentTooLarge("the request has content; none is accepted")
    expectation = headers.get("expect")
    if http_1_1 and expectation is not None and expectation.lower() != "100-continue":
        raise ExpectationFailed("the only supported expectation is 100-continue")


def _origin_form(method: str, target: str) -> str:
    """RFC 9112 3.2: return path and query of an origin-form or absolute-form target, or the * of OPTIONS."""
    if target.startswith("/") or (method == "OPTIONS" and target == "*"):
        return target
    absolute = _ABSOLUTE_FORM.match(target)
    if absolute is None:
        raise InvalidRequest("the request target is neither a path nor an http URL")
    rest = target[absolute.end() :]
    return rest if rest.startswith("/") else f"/{rest}"
