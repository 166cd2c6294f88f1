"""HTTP client for base images and stream metadata, for use in threads; proxies and TLS are urllib's.

The header fields and query parameters of the configuration are credentials: they go to origins of configured
URLs only, wherever a stream's metadata or a redirect leads.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.reloaded import Reloaded
from image_service.core.errors import ConfigurationError
from image_service.server.catalog.download.fetch_guard import FetchGuard, InvalidResponse, origin_of
from image_service.server.catalog.download.urllib_handlers import Redirects, open_url
from image_service.settings.proxies import NO_PROXIES

if TYPE_CHECKING:
    import http.client
    from collections.abc import Iterable, Iterator, Mapping
    from email.message import Message
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.settings.base_images import DownloadSettings
    from image_service.settings.proxies import ProxySettings

_BLOCK_BYTES = 256 * 1024


@attrs.define
class OriginClient:
    """Fetches resources from origins.

    Args:
        trust: the authorities, as a TLS context; read for each fetch.
        stall_seconds: see ``FetchGuard``.
        headers: fields that are credentials.
        parameters: query parameters that are credentials.
        credential_origins: origins that get the credentials, as ``origin_of`` returns them.
        proxies: those of the environment.
    """

    trust: Reloaded[ssl.SSLContext] = attrs.field(repr=False)
    stall_seconds: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    parameters: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    credential_origins: frozenset[str] = frozenset()
    proxies: ProxySettings = NO_PROXIES

    @classmethod
    def from_settings(
        cls, settings: DownloadSettings, urls: Iterable[str] = (), proxies: ProxySettings = NO_PROXIES
    ) -> OriginClient:
        """Make a client that sends the configured credentials to the origins of `urls`."""
        return cls(
            trusted_authorities(settings.ca_file, insecure=settings.insecure),
            settings.stall_seconds,
            settings.headers,
            settings.query_params,
            frozenset(map(origin_of, urls)),
            proxies,
        )

    def set_credential_urls(self, urls: Iterable[str]) -> None:
        """From now on send the configured credentials to the origins of these URLs only."""
        self.credential_origins = frozenset(map(origin_of, urls))

    @contextmanager
    def fetch(
        self, url: str, headers: Mapping[str, str], interruption: Interruption
    ) -> Iterator[OriginResponse]:
        """Send a GET request and follow redirects; every origin on the way gets `headers`.

        Yields:
            a response with status 200, 206, 304, 412 or 416.

        Raises:
            Unavailable: no such response; the message names the URL without its query, and the origin's
                ``Retry-After`` is kept.
            Interrupted: the service stops.
        """
        with FetchGuard(url, interruption, self.stall_seconds) as guard:
            with guard.translate_errors():
                origin = origin_of(url)
                redirects = Redirects(
                    origin if origin in self.credential_origins else None, self.headers, self.parameters
                )
                response = open_url(url, headers, guard, self.trust.get(), redirects, self.proxies)
            with response:
                yield OriginResponse(response, guard)


class OriginResponse:
    """A response of an origin, whose body can be read once; the caller closes it."""

    def __init__(self, response: http.client.HTTPResponse, guard: FetchGuard) -> None:
        self._response = response
        self._guard = guard
        self.status = response.status
        self.headers: Message = response.headers
        self.length = response.length
        """Bytes of the body; None: the end of the stream marks the end of the body."""
        self.unavailable = guard.unavailable

    def blocks(self) -> Iterator[bytes]:
        """Yield the body as it arrives.

        Raises:
            Unavailable: it is encoded, or shorter than promised.
            Interrupted: the service stops.
        """
        coding = self.headers.get("Content-Encoding", "identity")
        received = 0
        while True:
            left = _BLOCK_BYTES if self.length is None else self.length - received
            with self._guard.translate_errors():
                if coding != "identity":
                    raise InvalidResponse(f"answered with content coding {coding!r:.20}; must be uncoded")
                block = self._response.read1(min(_BLOCK_BYTES, left)) if left else b""
                if left and not block and self.length is not None:
                    raise InvalidResponse(f"sent {received} of {self.length} bytes")
                self._guard.raise_if_aborted()
                self._guard.received_bytes += len(block)
            if not block:
                return
            received += len(block)
            yield block

    def read_all(self, max_bytes: int) -> bytes:
        """Return the body of a response with status 200.

        Raises:
            Unavailable: another status, or a longer body.
        """
        if self.status != HTTPStatus.OK:
            raise self.unavailable(f"the status is {self.status}, not 200")
        body = bytearray()
        for block in self.blocks():
            body += block
            if len(body) > max_bytes:
                raise self.unavailable(f"the response has more than {max_bytes} bytes")
        return bytes(body)


def trusted_authorities(ca_file: Path | None = None, *, insecure: bool = False) -> Reloaded[ssl.SSLContext]:
    """Return a TLS context that trusts the system's authorities and those of a PEM file, and is reloaded.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read.
    """

    def make_context() -> ssl.SSLContext:
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        if ca_file is not None:
            try:
                context.load_verify_locations(ca_file)
            except OSError as error:  # SSLError is one
                reason = getattr(error, "reason", None) or error.strerror
                raise ConfigurationError(f"the CA file {ca_file} cannot be read: {reason}") from None
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    return Reloaded([] if ca_file is None else [ca_file], make_context)
