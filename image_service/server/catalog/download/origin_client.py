"""HTTP client for base images and stream metadata, for use in threads.

The header fields and query parameters of the configuration are credentials: they go to origins of configured
URLs only, wherever a stream's metadata or a redirect leads.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import attrs

from image_service.common.files.reloaded import Reloaded
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError, UntrustedCertificate
from image_service.common.http.origins import origin_of, public_url
from image_service.common.http.redirects import REDIRECTS, Redirects
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.common.registry.client import RegistryClient
from image_service.core.errors import Unavailable
from image_service.server.catalog.download.registry_options import registry_options
from image_service.server.http.retry_after import parse_retry_after
from image_service.settings.proxies import NO_PROXIES
from image_service.settings.registries import NO_REGISTRIES

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.response import HttpResponse
    from image_service.common.registry.connections import RegistryOptions
    from image_service.settings.base_images import DownloadSettings
    from image_service.settings.proxies import ProxySettings
    from image_service.settings.registries import RegistrySettings

MIN_BYTES_PER_SECOND = 1024  # at which a base image would take days

IDENTITY = {"User-Agent": "image-service"}
"""Fields of all requests to origins."""

# Those that say something about the resource; every other status is a failure.
_EXPECTED_STATUSES = {
    HTTPStatus.OK,
    HTTPStatus.PARTIAL_CONTENT,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
}


@attrs.define
class OriginClient:
    """Fetches resources from origins.

    Args:
        trust: the authorities, as a TLS context; read for each fetch.
        stall_seconds: a fetch slower than the minimal rate for so long is given up.
        headers: fields that are credentials.
        parameters: query parameters that are credentials.
        credential_origins: origins that get the credentials, as ``origin_of`` returns them.
        proxies: those of the environment.
        registry_options: how OCI registries are reached.
        registries: their client, which keeps no connections.
    """

    trust: Reloaded[ssl.SSLContext] = attrs.field(repr=False)
    stall_seconds: float
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    parameters: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    credential_origins: frozenset[str] = frozenset()
    proxies: ProxySettings = NO_PROXIES
    registry_options: RegistryOptions = attrs.field(
        factory=lambda: registry_options(NO_REGISTRIES, None, NO_PROXIES), repr=False
    )
    registries: RegistryClient = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.registries = RegistryClient(self.registry_options)

    @classmethod
    def from_settings(
        cls,
        settings: DownloadSettings,
        urls: Iterable[str] = (),
        proxies: ProxySettings = NO_PROXIES,
        registries: RegistrySettings = NO_REGISTRIES,
    ) -> OriginClient:
        """Make a client that sends the configured credentials to the origins of `urls`."""
        return cls(
            trusted_authorities(settings.ca_file, insecure=settings.insecure),
            settings.stall_seconds,
            settings.headers,
            settings.query_params,
            frozenset(map(origin_of, urls)),
            proxies,
            registry_options(registries, settings.ca_file, proxies),
        )

    def set_credential_urls(self, urls: Iterable[str]) -> None:
        """From now on send the configured credentials to the origins of these URLs only."""
        self.credential_origins = frozenset(map(origin_of, urls))

    def redirects(self, url: str) -> Redirects:
        """Return the requests of a fetch, with the credentials that they carry."""
        is_trusted = origin_of(url) in self.credential_origins
        return Redirects(url, self.headers, self.parameters, is_trusted=is_trusted)

    @contextmanager
    def fetch(
        self, url: str, headers: Mapping[str, str], interruption: Interruption
    ) -> Iterator[OriginResponse]:
        """Send a GET request and follow redirects; every origin on the way gets `headers`.

        Yields:
            a response with status 200, 206, 304, 412 or 416.

        Raises:
            Unavailable: no such response, or not all of it; the message names the URL without its query, and
                the origin's ``Retry-After`` is kept.
            Interrupted: the service stops.
        """
        client = HttpClient(self.trust.get, self.limits, find_proxy=self.proxies.find)
        redirects = self.redirects(url)
        unavailable = partial(self._unavailable, url, redirects)
        try:
            while True:
                fields = {**IDENTITY, **headers, **redirects.fields_for(redirects.url)}
                with client.send("GET", redirects.url, fields, interruption=interruption) as response:
                    if response.status not in REDIRECTS:
                        if response.status not in _EXPECTED_STATUSES:
                            retry_after = parse_retry_after(response.field("Retry-After"))
                            raise unavailable(f"answered with status {response.status}", retry_after)
                        yield OriginResponse(response, unavailable)
                        return
                redirects.follow(response)
        except HttpError as error:
            raise unavailable(describe_failure(error)) from None

    @property
    def limits(self) -> RequestLimits:
        """What bounds each request."""
        seconds = self.stall_seconds
        return RequestLimits(
            stall_seconds=seconds,
            stall_bytes=int(MIN_BYTES_PER_SECOND * seconds) + 1,
            slow=f"stalled: less than {MIN_BYTES_PER_SECOND} bytes per second for {seconds:g} s",
        )

    def _unavailable(
        self, url: str, redirects: Redirects, reason: str, retry_after_seconds: int | None = None
    ) -> Unavailable:
        """Return an error that names the file, its origin and the reason."""
        where, current = public_url(url), public_url(redirects.url)
        if current != where:
            where += f", redirected to {current}"
        proxy = self.proxies.find(redirects.url)
        if proxy is not None:
            where += f", through the proxy {proxy.netloc}"
        return Unavailable(f"cannot fetch {where}: {reason}", retry_after_seconds=retry_after_seconds)


class OriginResponse:
    """A response of an origin, whose body can be read once, within the block of its fetch."""

    def __init__(self, response: HttpResponse, unavailable: Callable[[str], Unavailable]) -> None:
        self._response = response
        self.status = response.status
        self.field = response.field
        self.length = response.length
        """Bytes of the body; None: it is chunked, or ends with the connection."""
        self.unavailable = unavailable
        """Returns the error that names the origin and a reason."""

    def blocks(self) -> Iterator[bytes]:
        """Yield the body as it arrives; the block of the fetch ends if it is coded, or incomplete."""
        if self._response.coding:
            raise self.unavailable(describe_coding(self._response))
        return self._response.blocks()

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


def describe_failure(error: HttpError) -> str:
    """Return the reason, with a hint for an authority that is not trusted."""
    if isinstance(error, UntrustedCertificate) and error.lacks_authority:
        return f"{error}; OS_IMAGE_DOWNLOAD_TRUSTED_CA_FILE, or --ca-file, has authorities to trust"
    return str(error)


def describe_coding(response: HttpResponse) -> str:
    """Return why a coded body cannot be used."""
    return f"answered with content coding {response.coding!r:.20}; must be uncoded"


def trusted_authorities(ca_file: Path | None = None, *, insecure: bool = False) -> Reloaded[ssl.SSLContext]:
    """Return a TLS context that trusts the system's authorities and those of a PEM file, and is reloaded.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read.
    """
    return Reloaded([] if ca_file is None else [ca_file], partial(client_context, ca_file, insecure=insecure))
