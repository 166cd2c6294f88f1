"""The handlers of urllib that a fetch uses: guarded connections, proxies, redirects, statuses."""

from __future__ import annotations

import http.client
import urllib.request
from functools import partial
from http import HTTPStatus
from typing import IO, TYPE_CHECKING, Any, cast
from urllib.parse import urlencode, urlsplit

from image_service.server.catalog.download.fetch_guard import (
    CONNECT_SECONDS,
    InvalidResponse,
    origin_of,
    public_url,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping
    from email.message import Message

    from image_service.server.catalog.download.fetch_guard import FetchGuard
    from image_service.settings.proxies import ProxySettings

MAX_REDIRECTS = 10

# Those that say something about the resource; every other status is a failure.
_EXPECTED_STATUSES = {
    HTTPStatus.OK,
    HTTPStatus.PARTIAL_CONTENT,
    HTTPStatus.NOT_MODIFIED,
    HTTPStatus.PRECONDITION_FAILED,
    HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
}


def open_url(  # noqa: PLR0913, PLR0917 - a request, and what it goes through
    url: str,
    headers: Mapping[str, str],
    guard: FetchGuard,
    context: ssl.SSLContext,
    redirects: Redirects,
    proxies: ProxySettings,
) -> http.client.HTTPResponse:
    """Send a GET request and follow redirects; every origin on the way gets `headers`."""
    opener = urllib.request.OpenerDirector()
    opener.addheaders = [("User-Agent", "image-service"), *headers.items()]
    for handler in (
        _ProxyHandler(proxies),
        _GuardedConnections(guard, context),
        _Statuses(),
        urllib.request.HTTPDefaultErrorHandler(),
        redirects,
    ):
        opener.add_handler(handler)
    response = opener.open(redirects.first_request(url), timeout=CONNECT_SECONDS)
    return cast("http.client.HTTPResponse", response)


class Redirects(urllib.request.HTTPRedirectHandler):
    """Follows the redirects of one fetch.

    Only requests to `origin`, if any, carry the credentials: headers and parameters.
    """

    max_repeats = max_redirections = MAX_REDIRECTS + 1  # urllib's own limits, whose error says nothing

    def __init__(self, origin: str | None, headers: Mapping[str, str], parameters: Mapping[str, str]) -> None:
        self._origin = origin
        self._headers = headers
        self._query = urlencode(parameters)
        self._count = 0

    def first_request(self, url: str) -> urllib.request.Request:
        """Return the request for the URL itself."""
        if self._query and origin_of(url) == self._origin:
            url = f"{url}{'&' if urlsplit(url).query else '?'}{self._query}"
        return self._request(url)

    def redirect_request(  # noqa: PLR0913, PLR0917 - urllib's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,  # noqa: ARG002 - same
        msg: str,  # noqa: ARG002 - same
        headers: Message,  # noqa: ARG002 - same
        newurl: str,
    ) -> urllib.request.Request:
        """Return a new request, so that no field of the one before is repeated."""
        fp.close()  # urllib would read all of the body, however long
        schemes = (urlsplit(req.full_url).scheme, urlsplit(newurl).scheme)
        if schemes not in {("http", "http"), ("http", "https"), ("https", "https")}:
            raise InvalidResponse(f"redirects from {schemes[0]} to {schemes[1]}, to {public_url(newurl)}")
        self._count += 1
        if self._count > MAX_REDIRECTS:
            raise InvalidResponse(
                f"more than {MAX_REDIRECTS} redirects, the last one from {public_url(req.full_url)} to"
                f" {public_url(newurl)}"
            )
        if self._query and origin_of(newurl) != self._origin:  # a Location may repeat our parameters
            split, ours = urlsplit(newurl), self._query.split("&")
            kept = "&".join(part for part in split.query.split("&") if part not in ours)
            newurl = split._replace(query=kept).geturl()
        return self._request(newurl)

    def _request(self, url: str) -> urllib.request.Request:
        request = urllib.request.Request(url)  # noqa: S310 - http or https, as checked
        if origin_of(url) == self._origin:
            for name, value in self._headers.items():
                request.add_unredirected_header(name, value)
        return request


class _ProxyHandler(urllib.request.BaseHandler):
    """Sends requests through the proxies of the settings; urllib's own reads NO_PROXY by other rules."""

    handler_order = 100  # before the connections

    def __init__(self, proxies: ProxySettings) -> None:
        self._proxies = proxies

    def http_open(self, req: urllib.request.Request) -> None:
        proxy = self._proxies.find(req.full_url)
        if proxy is not None:
            if proxy.authorization:
                req.add_unredirected_header("Proxy-Authorization", proxy.authorization)
            req.set_proxy(proxy.netloc, "http")

    https_open = http_open


class _Statuses(urllib.request.HTTPErrorProcessor):
    """Accepts more statuses than 2xx, and fewer of those."""

    def http_response(
        self, request: urllib.request.Request, response: http.client.HTTPResponse
    ) -> http.client.HTTPResponse:
        if response.status in _EXPECTED_STATUSES:
            return response
        if response.status < HTTPStatus.MULTIPLE_CHOICES:
            response.close()
            raise InvalidResponse(f"answered with status {response.status}")
        return cast("http.client.HTTPResponse", super().http_response(request, response))

    https_response = http_response


class _GuardedConnection(http.client.HTTPConnection):
    def __init__(self, guard: FetchGuard, host: str, **arguments: Any) -> None:  # noqa: ANN401 - http.client's
        super().__init__(host, **arguments)
        self._guard = guard

    def connect(self) -> None:
        super().connect()
        self._guard.watch_socket(self.sock)


class _GuardedTlsConnection(_GuardedConnection, http.client.HTTPSConnection):
    """The same over TLS."""


class _GuardedConnections(urllib.request.AbstractHTTPHandler):
    def __init__(self, guard: FetchGuard, context: ssl.SSLContext) -> None:
        super().__init__()
        self._guard = guard
        self._plain = partial(_GuardedConnection, guard)
        self._tls = partial(_GuardedTlsConnection, guard, context=context)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(self._plain, req)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(self._tls, req)

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def _open(
        self, connection: Callable[..., _GuardedConnection], req: urllib.request.Request
    ) -> http.client.HTTPResponse:
        is_proxied = req.host != urllib.request.Request(req.full_url).host  # noqa: S310 - only parsed
        self._guard.send_to(req.full_url, req.host if is_proxied else "")
        return self.do_open(connection, req)
