"""A blocking HTTP/1.1 client, for several threads."""

from __future__ import annotations

import string
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, BinaryIO
from urllib.parse import quote, unquote, urlsplit

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.common.http.connection import (
    HttpConnection,
    open_tcp,
    open_tunnel,
    open_unix,
    secure,
)
from image_service.common.http.errors import Disconnected, HttpError
from image_service.common.http.origins import DEFAULT_PORTS, UrlOrigin
from image_service.common.http.watch import Watch
from image_service.core.formats.hosts import ascii_host

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from image_service.common.http.origins import Proxy
    from image_service.common.http.response import HttpResponse
    from image_service.common.http.tunneled_tls import Stream
    from image_service.common.http.watch import RequestLimits

MAX_IDLE_SECONDS = 30.0
"""A firewall may have forgotten a connection that was idle for longer, and answers are waited for in vain."""

_SAFE = {"GET", "HEAD"}
"""Methods that may be sent once more if an idle connection turns out to be closed."""


@attrs.frozen
class _Route:
    """Where a connection leads."""

    origin: UrlOrigin
    proxy: Proxy | None
    context: ssl.SSLContext | None = attrs.field(eq=False)


@attrs.frozen
class _IdleConnection:
    connection: HttpConnection
    context: ssl.SSLContext | None
    since: float


class HttpClient:
    """Sends requests; follows no redirects, stores nothing, and adds no credentials.

    Args:
        context: returns the TLS context, for each request.
        limits: of requests that have none of their own.
        find_proxy: returns the proxy for a URL, if there is one.
        check_address: called with an origin and an address before it is connected to; raises if that is not
            allowed.
        interruption: ends requests that have none of their own.
        unix_socket: all requests go there; None: to the hosts of their URLs.
        max_idle: connections that are kept for each origin.
    """

    def __init__(  # noqa: PLR0913 - independent abilities
        self,
        context: Callable[[], ssl.SSLContext],
        limits: RequestLimits,
        *,
        find_proxy: Callable[[str], Proxy | None] = lambda _: None,
        check_address: Callable[[UrlOrigin, str], None] | None = None,
        interruption: Interruption | None = None,
        unix_socket: Path | None = None,
        max_idle: int = 0,
    ) -> None:
        self._context = context
        self._limits = limits
        self._find_proxy = find_proxy
        self._check_address = check_address
        self._interruption = interruption or Interruption()
        self._unix_socket = unix_socket
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: defaultdict[_Route, list[_IdleConnection]] = defaultdict(list)

    @contextmanager
    def send(  # noqa: PLR0913 - properties of a request
        self,
        method: str,
        url: str,
        fields: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        *,
        limits: RequestLimits | None = None,
        interruption: Interruption | None = None,
    ) -> Iterator[HttpResponse]:
        """Send a request, and yield its response; the connection is closed, or kept, when the block ends.

        Args:
            method: in capitals.
            url: http or https; user and fragment are not sent, and what is not ASCII is percent-encoded.
            fields: take the place of those of the client.
            body: the content; a file needs Content-Length, and is sent from where it is to its end.
            limits: in the place of the client's.

        Raises:
            HttpError: no response, or not all of it; also from methods of the response.
            Interrupted: the work is abandoned.
        """
        watch = Watch(limits or self._limits, interruption or self._interruption)
        origin, target = _parse_url(url)
        proxy = self._find_proxy(f"{origin}/")
        needs_tls = origin.scheme == "https" or (proxy is not None and proxy.is_tls)
        route = _Route(origin, proxy, self._context() if needs_tls else None)
        sent = {"Host": origin.authority, "Accept-Encoding": "identity"}
        if not self._max_idle:
            sent["Connection"] = "close"
        if proxy and origin.scheme == "http":
            target = f"{origin}{target}"
            if proxy.authorization:
                sent["Proxy-Authorization"] = proxy.authorization
        # Of several fields of one name, in any case of letters, the last one is sent.
        by_name = {name.lower(): (name, value) for name, value in (*sent.items(), *fields.items())}
        sent = dict(by_name.values())
        send = partial(HttpConnection.send, method=method, target=target, fields=sent, body=body, watch=watch)
        connection, response = self._exchange(route, send, watch, may_repeat=body is None and method in _SAFE)
        try:
            yield response
        except BaseException:
            connection.close()
            raise
        self._keep(route, connection, is_free=response.is_connection_free)

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            for connections in self._idle.values():
                while connections:
                    connections.pop().connection.close()

    def _exchange(
        self, route: _Route, send: Callable[[HttpConnection], HttpResponse], watch: Watch, *, may_repeat: bool
    ) -> tuple[HttpConnection, HttpResponse]:
        """Send a request on an idle connection; on a new one if there is none, or the peer has closed it."""
        while may_repeat and (idle := self._take_idle(route)) is not None:
            try:
                return idle, _exchange(idle, send)
            except Disconnected:
                watch.interruption.raise_if_interrupted()
        connection = HttpConnection(self._open(route, watch))
        return connection, _exchange(connection, send)

    def _take_idle(self, route: _Route) -> HttpConnection | None:
        with self._lock:
            while self._idle[route]:
                idle = self._idle[route].pop()
                if idle.context is route.context and time.monotonic() <= idle.since + MAX_IDLE_SECONDS:
                    return idle.connection
                idle.connection.close()
        return None

    def _keep(self, route: _Route, connection: HttpConnection, *, is_free: bool) -> None:
        with self._lock:
            if is_free and len(self._idle[route]) < self._max_idle:
                self._idle[route].append(_IdleConnection(connection, route.context, time.monotonic()))
                return
        connection.close()

    def _open(self, route: _Route, watch: Watch) -> Stream:
        if self._unix_socket:
            return open_unix(self._unix_socket, watch)
        origin, proxy = route.origin, route.proxy
        check = partial(self._check_address, origin) if self._check_address else None
        host, port = (proxy.host, proxy.port) if proxy else (origin.host, origin.port)
        opened: Stream = open_tcp(host, port, watch, check)
        if proxy and proxy.is_tls and route.context:
            opened = _secure_proxy(opened, route.context, proxy, watch)
        if origin.scheme == "http" or route.context is None:
            return opened
        if proxy:
            try:
                open_tunnel(opened, origin, proxy, watch)
            except BaseException:
                opened.close()
                raise
        return secure(opened, route.context, origin.host, watch)


def _secure_proxy(opened: Stream, context: ssl.SSLContext, proxy: Proxy, watch: Watch) -> Stream:
    try:
        return secure(opened, context, proxy.host, watch)
    except HttpError as error:
        error.args = (f"the proxy: {error}",)
        raise


def _exchange(connection: HttpConnection, send: Callable[[HttpConnection], HttpResponse]) -> HttpResponse:
    try:
        return send(connection)
    except BaseException:
        connection.close()
        raise


@lru_cache
def _parse_url(url: str) -> tuple[UrlOrigin, str]:
    """Return the origin of a URL, and what the request line has of it."""
    try:
        split = urlsplit(url)
        port = split.port or DEFAULT_PORTS[split.scheme]
    except (ValueError, KeyError):
        raise HttpError("its URL is not a valid http or https URL", is_connected=False) from None
    try:
        # In a Location, a name may be internationalized, and escaped.
        host = ascii_host(unquote(split.hostname or "", errors="strict"))
    except ValueError:
        raise HttpError("its name does not resolve: it is not a host name", is_connected=False) from None
    target = (split.path or "/") + (f"?{split.query}" if split.query else "")
    return UrlOrigin(split.scheme, host, port), quote(target, safe=string.punctuation)
