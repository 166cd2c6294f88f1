"""One HTTP fetch: aborted when it stalls or is interrupted, its failures turned into ``Unavailable``.

A socket time-out would notice neither a head that never ends nor a body of a byte a minute. So a thread
measures the rate, and shuts the sockets down under the thread that reads them.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.server.http.retry_after import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECT_SECONDS = 10.0
MIN_BYTES_PER_SECOND = 1024  # at which a base image would take days


class InvalidResponse(ValueError):
    """A response that cannot be used; the message holds nothing secret and is logged."""


class FetchGuard:
    """Watches one fetch for as long as the block lasts.

    Args:
        url: the first one; `send_to` says to which a redirect led.
        stall_seconds: a fetch slower than the minimal rate is aborted after these, at most twice these.
    """

    def __init__(self, url: str, interruption: Interruption, stall_seconds: float) -> None:
        self._url = self._current_url = url
        self._proxy = ""
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

    def send_to(self, url: str, proxy: str) -> None:
        """Record where the next request goes; `proxy` is the host and port of one, or empty."""
        self._current_url, self._proxy = url, proxy

    def unavailable(self, reason: str, retry_after_seconds: int | None = None) -> Unavailable:
        """Return the error that says what cannot be fetched from where, and why."""
        where = public_url(self._url)
        if public_url(self._current_url) != where:
            where += f", redirected to {public_url(self._current_url)}"
        if self._proxy:
            where += f", through the proxy {self._proxy}"
        return Unavailable(f"cannot fetch {where}: {reason}", retry_after_seconds=retry_after_seconds)

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
                reason = describe_fault(error)
            except InvalidResponse as stalled:
                reason = str(stalled)
            raise self.unavailable(reason, retry_after) from None

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


def describe_fault(error: Exception) -> str:
    """Return a text without the URL and without content from the peer."""
    if isinstance(error, HTTPError):
        # A redirect that can be followed is no error.
        is_redirect = HTTPStatus.MULTIPLE_CHOICES <= error.code < HTTPStatus.BAD_REQUEST
        return f"answered with status {error.code}" + ", without an HTTP URL to follow" * is_redirect
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        return describe_fault(error.reason)
    if isinstance(error, TimeoutError):
        return f"no connection in {CONNECT_SECONDS:g} s"
    if isinstance(error, ssl.SSLError):
        return _describe_tls_fault(error)
    if isinstance(error, InvalidResponse):
        return str(error)
    refused = re.match(r"Tunnel connection failed: [0-9]{3}", str(error))
    text = refused[0] if refused else getattr(error, "strerror", None) or type(error).__name__
    return f"its name does not resolve: {text}" if isinstance(error, socket.gaierror) else text


def _describe_tls_fault(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = "OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE, or --ca-file, has authorities to trust"
        return f"certificate: {error.verify_message}; {hint}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "TLS failed: the port may not speak HTTPS"
    return f"TLS failed: {error.reason or error.strerror}"


def origin_of(url: str) -> str:
    """Return the origin of a URL: scheme, host and port (RFC 6454)."""
    split = urlsplit(url)
    default = {"http": 80, "https": 443}.get(split.scheme)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    port = "" if split.port in (None, default) else f":{split.port}"
    return f"{split.scheme}://{host}{port}"


def public_url(url: str) -> str:
    """Return a URL without user, query and fragment, which may be credentials."""
    split = urlsplit(url)
    return split._replace(netloc=split.netloc.rpartition("@")[2], query="", fragment="").geturl()
