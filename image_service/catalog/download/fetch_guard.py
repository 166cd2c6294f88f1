"""One HTTP fetch: aborted when it stalls or is interrupted, its failures turned into ``Unavailable``.

A socket time-out would notice neither a head that never ends nor a body of a byte a minute. So a thread
measures the rate, and shuts the sockets down under the thread that reads them.
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
MIN_BYTES_PER_SECOND = 1024  # at which a base image would take days


class InvalidResponse(ValueError):
    """A response that cannot be used; the message holds nothing secret and is logged."""


class FetchGuard:
    """Watches one fetch for as long as the block lasts.

    Args:
        stall_seconds: a fetch slower than the minimal rate is aborted after these, at most twice these.
    """

    def __init__(self, url: str, interruption: Interruption, stall_seconds: float) -> None:
        self._url = url
        self._interruption = interruption
        self._stall_seconds = stall_seconds
        self._stall = Interruption()
        self._finished = threading.Event()
        self._watchdog = threading.Thread(target=self._watch_rate, name="download watchdog", daemon=True)
        self.received_bytes = 0

    def __enter__(self) -> Self:
        self._interruption.raise_if_interrupted()
        self._watchdog.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._finished.set()
        self._watchdog.join()

    def raise_if_aborted(self) -> None:
        """Raise if the sockets were shut down, which to a reader looks like the end of the body."""
        self._interruption.raise_if_interrupted()
        if self._stall.is_set:
            raise InvalidResponse(
                f"stalled: less than {MIN_BYTES_PER_SECOND} bytes per second for {self._stall_seconds:g} s"
            )

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Raise ``Unavailable`` instead of the errors of sockets, TLS and urllib."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            retry_after = None
            if isinstance(error, HTTPError):
                error.close()  # it is the response, too
                retry_after = parse_retry_after(error.headers.get("Retry-After", ""))
            try:
                self.raise_if_aborted()  # a socket that was shut down fails in many ways
                reason = _reason(error)
            except InvalidResponse as stalled:
                reason = str(stalled)
            raise Unavailable(
                f"cannot fetch from {origin_of(self._url)}: {reason}", retry_after_seconds=retry_after
            ) from None

    def watch_socket(self, connected: socket.socket) -> None:
        """Shut this socket down when the fetch is aborted."""
        connected.settimeout(None)
        self._interruption.watch_socket(connected)
        self._stall.watch_socket(connected)

    def _watch_rate(self) -> None:
        seen = 0
        while not self._finished.wait(self._stall_seconds):
            if self.received_bytes - seen < MIN_BYTES_PER_SECOND * self._stall_seconds:
                self._stall.interrupt()
                return
            seen = self.received_bytes


def _reason(error: Exception) -> str:
    """Return a text without the URL and without content from the peer."""
    if isinstance(error, HTTPError):
        return f"{origin_of(error.url)} answered with status {error.code}"
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no connection in {CONNECT_SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, InvalidResponse):
        return str(error)
    refused = re.match(r"Tunnel connection failed: [0-9]{3}", str(error))
    return refused[0] if refused else getattr(error, "strerror", None) or type(error).__name__


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host and port (RFC 6454). Nothing else of a URL is logged."""
    split = urlsplit(url)
    default = {"http": 80, "https": 443}.get(split.scheme)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    port = "" if split.port in (None, default) else f":{split.port}"
    return f"{split.scheme}://{host}{port}"
