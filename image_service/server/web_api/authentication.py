"""Who may use a web API: no web page of another origin, and with a token only those who have it.

A web page can make a browser send requests to loopback. It cannot choose ``Host`` unless it rebinds its own
name to a loopback address, so names other than ``localhost`` are refused; it cannot hide ``Origin``; and it
cannot send JSON to another origin without a preflight request, which is never allowed here.
"""

from __future__ import annotations

import binascii
import hmac
import ipaddress
import re
from base64 import b64decode
from contextlib import suppress
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import (
    Forbidden,
    InvalidRequest,
    MisdirectedRequest,
    Unauthorized,
    UnsupportedMediaType,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from twisted.web.http_headers import Headers

    from image_service.server.web_api.sessions import Sessions

# Host = uri-host [ ":" port ] (RFC 9110 section 7.2)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
_METHODS_WITH_CONTENT = frozenset({"POST", "PATCH", "PUT"})


_REALM = 'realm="image-service"'
# In two fields, because browsers take a field for one challenge, and prompt only for Basic.
_BEARER = ("WWW-Authenticate", f"Bearer {_REALM}")
_BASIC = ("WWW-Authenticate", f"Basic {_REALM}")


@attrs.frozen
class RequestGuard:
    """Checks the head of every request.

    Args:
        token: returns the token that requests need, as a bearer token or as the password of Basic
            authentication with any user name, which a browser sends; None: they need none.
        any_host: accept every name in ``Host``. Where a token is required, a page that rebinds its name gains
            nothing, because it does not have the token.
        sessions: that stand for the token; None: there are none.
        public_paths: of resources that never need the token.
        unchecked_paths: of resources whose requests have signatures, which are verified elsewhere.
        is_last: False if the resource that responds authenticates the clients itself.
    """

    _token: Callable[[], str] | None = None
    _any_host: bool = False
    _sessions: Sessions | None = None
    _public_paths: Collection[str] = ()
    _unchecked_paths: Collection[str] = ()
    _is_last: bool = True

    def authenticates(self, path: str) -> bool:
        """Return True if requests for a path that pass `check_head` are those of known clients."""
        return self._is_last and path not in self._public_paths and path not in self._unchecked_paths

    def check_head(self, method: str, path: str, headers: Headers, *, is_streamed: bool = False) -> None:
        """Refuse a request by its head; streamed content may be of any media type.

        Raises:
            MisdirectedRequest: ``Host`` is another name.
            Forbidden: a page of another origin made a browser send it.
            Unauthorized: the token is missing or wrong.
            UnsupportedMediaType: the content is not JSON.
            InvalidRequest: there is not exactly one ``Host``.
        """
        if path in self._unchecked_paths:
            return
        host = _single(headers, b"Host")
        if host is None:
            raise InvalidRequest("exactly one Host is required")
        if not self._any_host and not _is_own_host(host):
            raise MisdirectedRequest("Host must be an address, without a zone identifier, or localhost")
        own_origins = [[f"{scheme}://{host}".encode()] for scheme in ("http", "https")]
        if headers.getRawHeaders(b"Origin", []) not in ([], *own_origins):
            raise Forbidden("requests from web pages of other origins are refused")
        # What a page of another site embeds has no Origin; a link of it to a page of ours is a navigation.
        is_navigation = method == "GET" and headers.getRawHeaders(b"Sec-Fetch-Mode") == [b"navigate"]
        if headers.getRawHeaders(b"Sec-Fetch-Site") == [b"cross-site"] and not is_navigation:
            raise Forbidden("requests from web pages of other sites are refused")
        if (
            self._token is not None
            and path not in self._public_paths
            and not self._has_session(headers, host)
        ):
            presented = _presented_token(_single(headers, b"Authorization") or "")
            if not hmac.compare_digest(presented, self._token().encode()):
                raise Unauthorized("the token is missing or wrong", fields=self._challenges(headers))
        if method in _METHODS_WITH_CONTENT and not is_streamed and _has_content(headers):
            media_type = (_single(headers, b"Content-Type") or "").partition(";")[0].strip().lower()
            if media_type != "application/json":
                raise UnsupportedMediaType("Content-Type must be application/json")

    def _has_session(self, headers: Headers, host: str) -> bool:
        """Return True if a session authenticates a request, which presents no credentials."""
        if self._sessions is None or headers.hasHeader(b"Authorization"):
            return False
        return self._sessions.seconds_left(host, _single(headers, b"Cookie") or "") is not None

    def _challenges(self, headers: Headers) -> tuple[tuple[str, str], ...]:
        """Return the fields of a refusal.

        Where a page asks for the token, browsers must not prompt for a password. They name the media types
        that they want of a page or of events, as the scripts of our pages do; wget and others name none.
        """
        names_types = headers.getRawHeaders(b"Accept", [b"*/*"]) != [b"*/*"]
        return (_BEARER,) if self._sessions is not None and names_types else (_BEARER, _BASIC)


def _presented_token(authorization: str) -> bytes:
    """Return the bearer token, or the password of Basic authentication (RFC 7617); empty if there is none."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode()
    if scheme.lower() == "basic":
        with suppress(binascii.Error, ValueError):  # ValueError: a character beyond ASCII
            return b64decode(credentials.strip(), validate=True).partition(b":")[2]
    return b""


def _single(headers: Headers, name: bytes) -> str | None:
    """Return the value of a field that occurs once; None if it is absent or repeated."""
    values = headers.getRawHeaders(name, [])
    return values[0].decode("latin-1") if len(values) == 1 else None


def _has_content(headers: Headers) -> bool:
    """Return False if a request has neither content nor a type of it."""
    if headers.hasHeader(b"Content-Type") or headers.hasHeader(b"Transfer-Encoding"):
        return True
    return headers.getRawHeaders(b"Content-Length", [b"0"]) != [b"0"]


def _is_own_host(host: str) -> bool:
    match = _HOST.fullmatch(host)
    if match is None:
        return False
    if match["name"] is not None and match["name"].lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(match["v6"] or match["name"])
    except ValueError:
        return False
    return True
