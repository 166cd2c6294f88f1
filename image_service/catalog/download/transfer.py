"""One request with all that comes of it: cut when it comes to nothing, and told of in words of our own.

It is cut from another thread, wherever it hangs: in a head that never ends, between two chunks, or in a body
of a byte a minute. A timeout of the socket would see none of these.
"""

from __future__ import annotations

import http.client
import re
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from image_service.concurrency.interruption import Interruption
from image_service.errors import Unavailable
from image_service.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

CONNECT_SECONDS = 10.0
LEAST_BYTES_PER_SECOND = 1024  # at which a base image would take days


class Unusable(ValueError):
    """An answer that cannot be used; the text is ours."""


class Transfer:
    """One request, for as long as the block lasts.

    Args:
        url: whom it goes to.
        interruption: ends it from another thread.
        stall_seconds: after these without progress it is cut; at the latest after twice these.
    """

    def __init__(self, url: str, interruption: Interruption, stall_seconds: float) -> None:
        self._url = url
        self._interruption = interruption
        self._stall_seconds = stall_seconds
        self._stall = Interruption()
        self._ended = threading.Event()
        self._watchdog = threading.Thread(target=self._watch, name="transfer", daemon=True)
        self.received = 0

    def __enter__(self) -> Self:
        self._interruption.raise_if_interrupted()
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watchdog.join()

    def check(self) -> None:
        """Let it go on: what was shut under a reader looks like the end of a body."""
        self._interruption.raise_if_interrupted()
        if self._stall.is_set:
            raise Unusable(
                f"stalled: less than {LEAST_BYTES_PER_SECOND} bytes per second for {self._stall_seconds:g} s"
            )

    @contextmanager
    def faults_told(self) -> Iterator[None]:
        """Make one kind of error of all that can happen to a connection."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()  # it is the response, too
            reason = self._reason(error)
            raise Unavailable(
                f"cannot fetch from {origin_of(self._url)}: {reason}", retry_after_seconds=_retry_after(error)
            ) from None

    def watch(self, connected: socket.socket) -> None:
        """Let nothing wait longer for this socket than the transfer may take."""
        connected.settimeout(None)
        self._interruption.watch_socket(connected)
        self._stall.watch_socket(connected)

    def _reason(self, error: Exception) -> str:
        try:
            self.check()  # a socket that was shut under us fails in many ways
        except Unusable as stall:
            return str(stall)
        return _reason(error)

    def _watch(self) -> None:
        seen = 0
        while not self._ended.wait(self._stall_seconds):
            if self.received - seen < LEAST_BYTES_PER_SECOND * self._stall_seconds:
                self._stall.interrupt()
                return
            seen = self.received


def _reason(error: Exception) -> str:
    """Say why in a text that repeats neither the URL nor the peer's words."""
    if isinstance(error, HTTPError):
        return f"{origin_of(error.url)} answered {error.code}"
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no connection in {CONNECT_SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, Unusable):
        return str(error)
    refused = re.match(r"Tunnel connection failed: [0-9]{3}", str(error))
    return refused[0] if refused else getattr(error, "strerror", None) or type(error).__name__


def _retry_after(error: Exception) -> int | None:
    """When a server that is at its limit wants to be asked again."""
    return parse_retry_after(error.headers.get("Retry-After", "")) if isinstance(error, HTTPError) else None


def origin_of(url: str) -> str:
    """Give scheme, host and port (RFC 6454), which is also all that is told of a URL."""
    split = urlsplit(url)
    default = {"http": 80, "https": 443}.get(split.scheme)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    port = "" if split.port in (None, default) else f":{split.port}"
    return f"{split.scheme}://{host}{port}"
