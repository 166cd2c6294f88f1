"""Fetching a base image, in a thread, with the standard library: proxies, redirects and TLS are urllib's.

What is a credential, the header fields and the query parameters of the configuration, goes to the origin of
the configured URL only, wherever redirects lead.
"""

from __future__ import annotations

import http.client
import re
import ssl
import urllib.request
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit

import attrs
from twisted.logger import Logger

from image_service.errors import Unavailable

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping
    from email.message import Message

    from image_service.catalog.interruption import Interruption
    from image_service.config import Settings

CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 60.0
_BLOCK_BYTES = 256 * 1024


@attrs.frozen
class Downloader:
    """Fetches base images.

    Args:
        context: whom to trust.
        headers: fields for the configured origin.
        parameters: query parameters for the configured origin.
    """

    context: ssl.SSLContext = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    parameters: Mapping[str, str] = attrs.field(repr=False)

    @classmethod
    def from_settings(cls, settings: Settings) -> Downloader:
        """Make one that trusts the system's authorities and the configured ones."""
        context = ssl.create_default_context()
        context.set_alpn_protocols(["http/1.1"])
        if settings.os_image_download_ca_file:
            context.load_verify_locations(settings.os_image_download_ca_file)
        if settings.insecure_skip_verify:
            Logger().warn(
                "INSECURE_SKIP_VERIFY is set: anyone can be assisted-service, or put in a base image"
            )
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return cls(context, settings.os_images_request_headers, settings.os_images_request_query_params)

    def fetch(self, url: str, file: BinaryIO, interruption: Interruption) -> None:
        """Write everything that a URL serves to a file.

        Args:
            url: ``http`` or ``https``.
            file: gets the bytes, which are worth nothing when this raises.
            interruption: ends it from another thread.

        Raises:
            Unavailable: not fetched, or not whole; says why without telling the URL.
            OSError: the file cannot be written.
            Interrupted: the service stops.
        """
        file.writelines(self._receive(url, interruption))

    def _receive(self, url: str, interruption: Interruption) -> Iterator[bytes]:
        try:
            with self._open(url, interruption) as response:
                yield from _blocks(response, interruption)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, HTTPError):
                error.close()  # it is the response, too
            interruption.check()  # a socket that was shut under us fails in many ways
            raise Unavailable(f"cannot fetch from {_origin(url)}: {_reason(error)}") from None

    def _open(self, url: str, interruption: Interruption) -> http.client.HTTPResponse:
        redirects = _Redirects(_origin(url), self.headers, self.parameters)
        opener = urllib.request.OpenerDirector()
        opener.addheaders = [("User-Agent", "image-service")]
        for handler in (
            urllib.request.ProxyHandler(),
            _Http(interruption),
            _Https(interruption, self.context),
            urllib.request.HTTPErrorProcessor(),
            urllib.request.HTTPDefaultErrorHandler(),
            redirects,
        ):
            opener.add_handler(handler)
        response = opener.open(redirects.first(url), timeout=CONNECT_SECONDS)
        return cast("http.client.HTTPResponse", response)


def _blocks(response: http.client.HTTPResponse, interruption: Interruption) -> Iterator[bytes]:
    """Give the body; complain when it is not the whole of what was promised."""
    coding = response.headers.get("Content-Encoding", "identity")
    if response.status != http.HTTPStatus.OK or coding != "identity":
        raise _Unusable(
            f"answered {response.status} with content coding {coding!r:.20}; must be 200, uncoded"
        )
    promised = response.length  # None: the body tells its end itself; counts down while it is read
    received = 0
    while block := response.read(_BLOCK_BYTES):
        interruption.check()
        received += len(block)
        yield block
    if promised not in (None, received):
        raise _Unusable(f"sent {received} of {promised} bytes")


class _Unusable(ValueError):
    """An answer that cannot be used; the text is ours."""


def _reason(error: Exception) -> str:
    """Say why in a text that repeats neither the URL nor the peer's words."""
    if isinstance(error, HTTPError):
        return f"{_origin(error.url)} answered {error.code}"
    if isinstance(error, URLError) and isinstance(error.reason, Exception):
        return _reason(error.reason)
    if isinstance(error, TimeoutError):
        return f"no connection in {CONNECT_SECONDS:g} s, or silence for {SILENCE_SECONDS:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, _Unusable):
        return str(error)
    refused = re.match(r"Tunnel connection failed: [0-9]{3}", str(error))
    return refused[0] if refused else getattr(error, "strerror", None) or type(error).__name__


def _origin(url: str) -> str:
    """Scheme, host and port (RFC 6454), which is also all that is told of a URL."""
    split = urlsplit(url)
    default = {"http": 80, "https": 443}.get(split.scheme)
    host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
    port = "" if split.port in (None, default) else f":{split.port}"
    return f"{split.scheme}://{host}{port}"


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, and takes the credentials along only within the origin that they are meant for."""

    def __init__(self, origin: str, headers: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        self._origin = origin
        self._headers = headers
        self._query = urlencode(parameters)

    def first(self, url: str) -> urllib.request.Request:
        """Make the request that all begins with."""
        separator = "&" if urlsplit(url).query else "?"
        return self._request(f"{url}{separator}{self._query}" if self._query else url)

    def redirect_request(  # noqa: PLR0913, PLR0917 - urllib's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,  # noqa: ARG002 - same
        msg: str,  # noqa: ARG002 - same
        headers: Message,  # noqa: ARG002 - same
        newurl: str,
    ) -> urllib.request.Request:
        """Make the next request from nothing, so that no field comes along by itself."""
        fp.close()  # urllib would read all of the body, however long
        schemes = (urlsplit(req.full_url).scheme, urlsplit(newurl).scheme)
        if schemes not in {("http", "http"), ("http", "https"), ("https", "https")}:
            raise _Unusable(f"{_origin(req.full_url)} redirects from {schemes[0]} to {schemes[1]}")
        if _origin(newurl) != self._origin:
            newurl = self._without_parameters(newurl)
        return self._request(newurl)

    def _request(self, url: str) -> urllib.request.Request:
        request = urllib.request.Request(url)  # noqa: S310 - http or https, as checked
        if _origin(url) == self._origin:
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)
        return request

    def _without_parameters(self, url: str) -> str:
        """Take our parameters out of a Location that repeats them."""
        split = urlsplit(url)
        ours = self._query.split("&")
        kept = "&".join(part for part in split.query.split("&") if part not in ours)
        return split._replace(query=kept).geturl()


class _Watched(http.client.HTTPConnection):
    """A connection that gives up after a silence, and whose socket an interruption shuts."""

    def __init__(self, interruption: Interruption, host: str, **arguments: Any) -> None:  # noqa: ANN401 - theirs
        super().__init__(host, **arguments)
        self._interruption = interruption

    def connect(self) -> None:
        super().connect()
        connected: socket.socket = self.sock
        connected.settimeout(SILENCE_SECONDS)
        self._interruption.watch(connected)


class _WatchedTls(_Watched, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, interruption: Interruption) -> None:
        super().__init__()
        self._connection = partial(_Watched, interruption)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, interruption: Interruption, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connection = partial(_WatchedTls, interruption, context=context)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)
