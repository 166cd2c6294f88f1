"""Who may use a management API: no web page of another origin, and with a token only its bearer.

A web page can make a browser send requests to loopback. It cannot choose ``Host`` unless it rebinds its own
name to a loopback address, so names other than ``localhost`` are refused; it cannot hide ``Origin``; and it
cannot send JSON to another origin without a preflight request, which is never allowed here.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from typing import TYPE_CHECKING

import attrs

from image_service.errors import (
    Forbidden,
    InvalidRequest,
    MisdirectedRequest,
    Unauthorized,
    UnsupportedMediaType,
)

if TYPE_CHECKING:
    from twisted.web.http_headers import Headers

# Host = uri-host [ ":" port ] (RFC 9110 section 7.2)
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
_METHODS_WITH_CONTENT = frozenset({"POST", "PATCH", "PUT"})


@attrs.frozen
class RequestGuard:
    """Checks the head of every request.

    Args:
        token: bearer token that every request needs; None: none.
        any_host: accept every name in ``Host``. Where a token is required, a page that rebinds its name gains
            nothing, because it does not have the token.
    """

    _token: str | None = attrs.field(default=None, repr=False)
    _any_host: bool = False

    def check_head(self, method: str, headers: Headers) -> None:
        """Refuse a request by its head.

        Raises:
            MisdirectedRequest: ``Host`` is another name.
            Forbidden: a page of another origin made a browser send it.
            Unauthorized: the token is missing or wrong.
            UnsupportedMediaType: the content is not JSON.
            InvalidRequest: there is not exactly one ``Host``.
        """
        host = _single(headers, b"Host")
        if host is None:
            raise InvalidRequest("exactly one Host is required")
        if not self._any_host and not _is_own_host(host):
            raise MisdirectedRequest("Host must be an address or localhost")
        if headers.getRawHeaders(b"Origin", []) not in ([], [f"http://{host}".encode()]):
            raise Forbidden("requests from web pages of other origins are refused")
        if self._token is not None:
            scheme, _, presented = (_single(headers, b"Authorization") or "").partition(" ")
            is_equal = hmac.compare_digest(presented.strip().encode(), self._token.encode())
            if scheme.lower() != "bearer" or not is_equal:
                challenge = (("WWW-Authenticate", "Bearer"),)
                raise Unauthorized("the bearer token is missing or wrong", fields=challenge)
        media_type = (_single(headers, b"Content-Type") or "").partition(";")[0].strip().lower()
        if method in _METHODS_WITH_CONTENT and media_type != "application/json":
            raise UnsupportedMediaType("Content-Type must be application/json")


def _single(headers: Headers, name: bytes) -> str | None:
    """Return the value of a field that occurs once; None if it is absent or repeated."""
    values = headers.getRawHeaders(name, [])
    return values[0].decode("latin-1") if len(values) == 1 else None


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
