"""Who may use the management API: nobody by way of a web page, and with a token only who bears it.

A web page can make a browser send requests to loopback. It cannot choose ``Host`` unless it rebinds its own
name to a loopback address, so a name other than ``localhost`` is refused; it cannot hide ``Origin``; and it
cannot send JSON across origins without asking first, which is never allowed here.
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
_WITH_CONTENT = frozenset({"POST", "PATCH", "PUT"})


@attrs.frozen
class Guard:
    """What every request must satisfy.

    Args:
        token: that every request must bear; None: none.
        any_host: whether names of all kinds may stand in ``Host``. Where a token is required a page that
            rebinds its name gains nothing, since it does not have the token.
    """

    _token: str | None = attrs.field(default=None, repr=False)
    _any_host: bool = False

    def check(self, method: str, headers: Headers) -> None:
        """Refuse a request, by its head alone.

        Args:
            method: HTTP method.
            headers: of the request.

        Raises:
            MisdirectedRequest: ``Host`` is a name that is not ours.
            Forbidden: a page of another origin made a browser send it.
            Unauthorized: no token, or a wrong one.
            UnsupportedMediaType: content that is not JSON.
            InvalidRequest: not exactly one ``Host``.
        """
        host = _single(headers, b"Host")
        if host is None:
            raise InvalidRequest("there must be one Host")
        if not self._any_host and not _is_ours(host):
            raise MisdirectedRequest("Host must be an address or localhost")
        if headers.getRawHeaders(b"Origin", []) not in ([], [f"http://{host}".encode()]):
            raise Forbidden("requests of web pages of other origins are refused")
        self._check_token(headers)
        if method in _WITH_CONTENT and _media_type(headers) != "application/json":
            raise UnsupportedMediaType("Content-Type must be application/json")

    def _check_token(self, headers: Headers) -> None:
        if self._token is None:
            return
        scheme, _, presented = (_single(headers, b"Authorization") or "").partition(" ")
        right = hmac.compare_digest(presented.strip().encode(), self._token.encode())
        if scheme.lower() != "bearer" or not right:
            raise Unauthorized("Authorization must bear the token", fields=(("WWW-Authenticate", "Bearer"),))


def _single(headers: Headers, name: bytes) -> str | None:
    """The value of a field that there is once; a field that there is more often is worth nothing."""
    values = headers.getRawHeaders(name, [])
    return values[0].decode("latin-1") if len(values) == 1 else None


def _media_type(headers: Headers) -> str:
    return (_single(headers, b"Content-Type") or "").partition(";")[0].strip().lower()


def _is_ours(host: str) -> bool:
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
