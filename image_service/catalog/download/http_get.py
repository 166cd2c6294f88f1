"""Asking an origin for a resource, in a thread, with the standard library: proxies and TLS are urllib's.

What is a credential, the header fields and the query parameters of the configuration, goes to the origin of
the configured URL only, wherever redirects lead.
"""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import urllib.request
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlencode, urlsplit

import attrs
from twisted.logger import Logger

from image_service.catalog.download.transfer import CONNECT_SECONDS, Transfer, Unusable, origin_of
from image_service.errors import ConfigurationError
from image_service.files.reloaded import Reloaded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from email.message import Message
    from pathlib import Path

    from image_service.concurrency.interruption import Interruption
    from image_service.settings.base_images import DownloadSettings

_BLOCK_BYTES = 256 * 1024
# What tells something about the resource; every other status is a failure.
_ANSWERS = {
    HTTPStatus.OK,
    HTTPStatus.PARTIAL_CONTENT,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
}


@attrs.frozen
class HttpGet:
    """Asks origins.

    Args:
        trust: whom to trust, each time.
        headers: fields for the configured origin.
        parameters: query parameters for the configured origin.
        stall_seconds: after these without progress a transfer is cut; at the latest after twice these.
    """

    trust: Reloaded[ssl.SSLContext] = attrs.field(repr=False)
    headers: Mapping[str, str] = attrs.field(repr=False)
    parameters: Mapping[str, str] = attrs.field(repr=False)
    stall_seconds: float

    @classmethod
    def from_settings(cls, settings: DownloadSettings) -> HttpGet:
        """Make one that trusts the system's authorities and the configured ones."""
        insecure = settings.insecure
        if insecure:
            Logger().warn(
                "INSECURE_SKIP_VERIFY is set: anyone can be assisted-service, or put in a base image"
            )
        return cls(
            trusting(settings.ca_file, insecure=insecure),
            settings.headers,
            settings.query_params,
            settings.stall_seconds,
        )

    @contextmanager
    def ask(self, url: str, fields: Mapping[str, str], interruption: Interruption) -> Iterator[Answer]:
        """Send a GET request, and follow redirects.

        Args:
            url: ``http`` or ``https``.
            fields: for every origin on the way: a range, preconditions.
            interruption: ends it from another thread.

        Yields:
            the answer: 200, 206, 304, 412 or 416.

        Raises:
            Unavailable: there is none of these; says why without telling the URL, and when to ask again if
                the origin says so.
            Interrupted: the service stops.
        """
        with Transfer(url, interruption, self.stall_seconds) as transfer:
            with transfer.faults_told():
                response = self._open(url, fields, transfer)
            with response:
                yield Answer(response, transfer)

    def _open(self, url: str, fields: Mapping[str, str], transfer: Transfer) -> http.client.HTTPResponse:
        redirects = _Redirects(origin_of(url), self.headers, self.parameters)
        opener = urllib.request.OpenerDirector()
        opener.addheaders = [("User-Agent", "image-service"), *fields.items()]
        for handler in (
            _Proxies(),
            _Http(transfer),
            _Https(transfer, self.trust.get()),
            _Statuses(),
            urllib.request.HTTPDefaultErrorHandler(),
            redirects,
        ):
            opener.add_handler(handler)
        response = opener.open(redirects.first(url), timeout=CONNECT_SECONDS)
        return cast("http.client.HTTPResponse", response)


def trusting(ca_file: Path | None = None, *, insecure: bool = False) -> Reloaded[ssl.SSLContext]:
    """Decide whom to trust.

    Args:
        ca_file: PEM certificates of authorities beside the system's; looked after as long as it is used.
        insecure: everybody.

    Raises:
        ConfigurationError: ``ca_file`` cannot be read.
    """
    files = [] if ca_file is None else [ca_file]
    return Reloaded(files, partial(_make_context, ca_file, insecure=insecure))


def _make_context(ca_file: Path | None, *, insecure: bool) -> ssl.SSLContext:
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


class Answer:
    """What an origin said.

    Args:
        response: is closed by whoever opened it.
        transfer: what it is part of.
    """

    def __init__(self, response: http.client.HTTPResponse, transfer: Transfer) -> None:
        self._response = response
        self._transfer = transfer
        self.status = response.status
        self.fields: Message = response.headers
        self.length = response.length
        """Bytes of the body; None: it tells its end itself."""

    def blocks(self) -> Iterator[bytes]:
        """Give the body as it comes.

        Raises:
            Unavailable: it is not the whole of what was promised.
            Interrupted: the service stops.
        """
        coding = self.fields.get("Content-Encoding", "identity")
        if coding != "identity":
            with self._transfer.faults_told():
                raise Unusable(f"answered with content coding {coding!r:.20}; must be uncoded")
        received = 0
        while block := self._read(_BLOCK_BYTES if self.length is None else self.length - received):
            received += len(block)
            yield block

    def _read(self, left: int) -> bytes:
        with self._transfer.faults_told():
            block = self._response.read1(min(_BLOCK_BYTES, left)) if left else b""
            if left and not block and self.length is not None:
                raise Unusable(f"sent {self.length - left} of {self.length} bytes")
            self._transfer.check()
            self._transfer.received += len(block)
        return block


class _Proxies(urllib.request.ProxyHandler):
    """The proxies of the environment, with the networks in ``NO_PROXY`` that a cluster puts there."""

    def proxy_open(
        self,
        req: urllib.request.Request,
        proxy: str,
        type: str,  # noqa: A002 - urllib's signature
    ) -> http.client.HTTPResponse | None:
        exempt = urllib.request.getproxies().get("no", "")
        if _is_in_networks(urlsplit(f"//{req.host}").hostname or "", exempt):
            return None
        return cast("http.client.HTTPResponse | None", super().proxy_open(req, proxy, type))


def _is_in_networks(host: str, exempt: str) -> bool:
    """Whether a host is an address within one of the CIDR blocks; urllib knows names and addresses alone."""
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        return any(address in network for network in _networks(exempt))
    return False


def _networks(exempt: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    for item in exempt.split(","):
        with suppress(ValueError):  # a name
            yield ipaddress.ip_network(item.strip(), strict=False)


class _Statuses(urllib.request.HTTPErrorProcessor):
    """Leaves more than 2xx to who asked."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        if response.status in _ANSWERS:
            return response
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            response.close()
            raise Unusable(f"answered {response.status}")
        return cast("http.client.HTTPResponse", super().http_response(request, response))

    https_response = http_response


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
            raise Unusable(f"{origin_of(req.full_url)} redirects from {schemes[0]} to {schemes[1]}")
        if origin_of(newurl) != self._origin:
            newurl = self._without_parameters(newurl)
        return self._request(newurl)

    def _request(self, url: str) -> urllib.request.Request:
        request = urllib.request.Request(url)  # noqa: S310 - http or https, as checked
        if origin_of(url) == self._origin:
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
    """A connection that is cut with its transfer."""

    def __init__(self, transfer: Transfer, host: str, **arguments: Any) -> None:  # noqa: ANN401 - theirs
        super().__init__(host, **arguments)
        self._transfer = transfer

    def connect(self) -> None:
        super().connect()
        self._transfer.watch(self.sock)


class _WatchedTls(_Watched, http.client.HTTPSConnection):
    """The same over TLS."""


class _Http(urllib.request.HTTPHandler):
    def __init__(self, transfer: Transfer) -> None:
        super().__init__()
        self._connection = partial(_Watched, transfer)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self, transfer: Transfer, context: ssl.SSLContext) -> None:
        super().__init__()
        self._connection = partial(_WatchedTls, transfer, context=context)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)
