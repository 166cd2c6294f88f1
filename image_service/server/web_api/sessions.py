"""Sessions of browsers, which begin with the token of a listener: a cookie then stands for the token."""

from __future__ import annotations

import secrets
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Callable

SESSION_SECONDS = 12 * 3600
MAX_SESSIONS = 256
"""For one more, the one that was not used for longest ends."""
_ID_BYTES = 32


@attrs.frozen
class OpenSession:
    """A session.

    Args:
        token: with which it began; it ends when the listener has another one.
        ends_at: the clock's seconds.
    """

    token: str = attrs.field(repr=False)
    ends_at: float


class Sessions:
    """The sessions of a listener, in memory: they end with the process, too.

    Args:
        token: returns that of the listener.
        seconds: the clock.
    """

    def __init__(self, token: Callable[[], str], seconds: Callable[[], float]) -> None:
        self._token = token
        self._seconds = seconds
        self._open: LruCache[bytes, OpenSession] = LruCache(MAX_SESSIONS)  # by digests of identifiers

    def begin(self, host: str, *, is_secure: bool) -> str:
        """Begin a session, and return the field ``Set-Cookie`` for it.

        Args:
            host: the field ``Host`` of the request, whose sender has the token.
            is_secure: the request came by TLS.
        """
        identifier = secrets.token_urlsafe(_ID_BYTES)
        self._open[_digest(identifier)] = OpenSession(self._token(), self._seconds() + SESSION_SECONDS)
        return _render_cookie(host, identifier, "; Secure" if is_secure else "")

    def seconds_left(self, host: str, cookies: str) -> float | None:
        """Return how long the session of a request lasts; None if it has none.

        Args:
            host: the field ``Host`` of the request.
            cookies: the field ``Cookie``.
        """
        session = self._open.get(_digest(_find_cookie(host, cookies)))
        if session is None or session.token != self._token() or session.ends_at <= self._seconds():
            return None
        return session.ends_at - self._seconds()

    def end(self, host: str, cookies: str) -> str:
        """End the session of a request, if it has one; return the field that removes its cookie."""
        self._open.pop(_digest(_find_cookie(host, cookies)))
        return _render_cookie(host, "", "; Max-Age=0")


def _render_cookie(host: str, value: str, attributes: str) -> str:
    return f"{_cookie_name(host)}={value}; Path=/; HttpOnly; SameSite=Strict{attributes}"


def _find_cookie(host: str, cookies: str) -> str:
    pairs = (pair.strip().partition("=") for pair in cookies.split(";"))
    return next((value for name, _, value in pairs if name == _cookie_name(host)), "")


def _cookie_name(host: str) -> str:
    """Return the name for a port: browsers send the cookies of a host to all of its ports."""
    port = host.rpartition(":")[2]
    return f"image-service-{port}" if port.isdecimal() else "image-service"


def _digest(identifier: str) -> bytes:
    return sha256(identifier.encode()).digest()
