"""HTTP for ranges of remote files, in threads: connections are kept, and give up on a peer that stalls.

A time-out of a socket alone would wait for ever for a peer that sends a byte a second.
"""

from __future__ import annotations

import http.client
import io
import threading
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from image_service.server.catalog.download.fetch_guard import CONNECT_SECONDS, InvalidResponse

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Iterator, Mapping

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.files.reloaded import Reloaded
    from image_service.settings.proxies import ProxySettings

STALL_SECONDS = 10.0
"""A response is given up if it brings less than `STALL_BYTES` in this time, and is not complete."""
STALL_BYTES = 64 * 1024
MAX_IDLE_SECONDS = 30.0
"""A firewall may have forgotten a connection that was idle for longer, and answers are waited for in vain."""
_MAX_IDLE = 16  # connections per origin


class RangeClient:
    """Sends GET requests on kept-alive connections; safe in several threads.

    Args:
        trust: authorities, as a TLS context.
        proxies: those of the environment.
        interruption: shuts the connections down.
    """

    def __init__(
        self, trust: Reloaded[ssl.SSLContext], proxies: ProxySettings, interruption: Interruption
    ) -> None:
        self._trust = trust
        self._proxies = proxies
        self._interruption = interruption
        self._lock = threading.Lock()
        self._idle: defaultdict[tuple[str, str], list[_Connection]] = defaultdict(list)

    @contextmanager
    def get(self, url: str, fields: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Send a request; redirects are not followed.

        Yields:
            the response, whatever its status; the connection is kept if its body was read to the end.

        Raises:
            OSError: no connection, no response, or a stalled one; also while the body is read.
            HTTPException: what came is not HTTP.
            Interrupted: the service stops.
        """
        split = urlsplit(url)
        key, context = (split.scheme, split.netloc), self._trust.get()
        connection, response = self._send(key, context, url, fields)
        try:
            yield response
            is_whole = response.isclosed()
        except BaseException:
            response.close()
            connection.close()
            raise
        if is_whole and connection.sock is not None:
            with self._lock:
                if len(self._idle[key]) < _MAX_IDLE:
                    connection.idle_since = time.monotonic()
                    self._idle[key].append(connection)
                    return
        response.close()
        connection.close()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            for connections in self._idle.values():
                while connections:
                    connections.pop().close()

    def _send(
        self, key: tuple[str, str], context: ssl.SSLContext, url: str, fields: Mapping[str, str]
    ) -> tuple[_Connection, http.client.HTTPResponse]:
        """Send a request on an idle connection, or on a new one if the peer has closed that."""
        while (idle := self._take_idle(key, context)) is not None:
            try:
                return idle, idle.exchange(url, fields)
            except (http.client.RemoteDisconnected, ConnectionError, http.client.CannotSendRequest):
                self._interruption.raise_if_interrupted()
        self._interruption.raise_if_interrupted()
        connection = self._connect(url, context)
        return connection, connection.exchange(url, fields)

    def _take_idle(self, key: tuple[str, str], context: ssl.SSLContext) -> _Connection | None:
        with self._lock:
            while self._idle[key]:
                connection = self._idle[key].pop()
                is_recent = time.monotonic() <= connection.idle_since + MAX_IDLE_SECONDS
                if connection.trust is context and is_recent:
                    return connection
                connection.close()
        return None

    def _connect(self, url: str, context: ssl.SSLContext) -> _Connection:
        split, proxy = urlsplit(url), self._proxies.find(url)
        host, port = split.hostname or "", split.port
        address: tuple[str, int | None] = (host, port) if proxy is None else (proxy.host, proxy.port)
        authorization = {"Proxy-Authorization": proxy.authorization} if proxy and proxy.authorization else {}
        if split.scheme == "https":
            connection: _Connection = _TlsConnection(self._interruption, context, *address, context=context)
            if proxy is not None:
                connection.set_tunnel(host, port or http.client.HTTPS_PORT, authorization)
        else:
            connection = _Connection(self._interruption, context, *address)
            connection.is_through_proxy = proxy is not None
            connection.proxy_fields = authorization
        return connection


class _Response(http.client.HTTPResponse):
    """A response whose peer must make progress."""

    def __init__(self, sock: socket.socket, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - http.client's
        super().__init__(sock, *arguments, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_ProgressReader(sock))


class _ProgressReader(io.RawIOBase):
    """Reads from a socket; raises InvalidResponse if the peer stalls."""

    def __init__(self, opened: socket.socket) -> None:
        super().__init__()
        self._socket = opened
        self._raw = opened.makefile("rb", buffering=0)
        self._extend()

    def _extend(self) -> None:
        self._deadline = time.monotonic() + STALL_SECONDS
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401 - any buffer, as in the base class
        left = self._deadline - time.monotonic()
        if left > 0:
            self._socket.settimeout(left)
            try:
                count: int = self._raw.readinto(buffer) or 0
            except TimeoutError:
                left = 0
            else:
                self._received += count
                if self._received >= STALL_BYTES:
                    self._extend()
                return count
        raise InvalidResponse(f"stalled: less than {STALL_BYTES // 1024} KiB in {STALL_SECONDS:g} s")

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Connection(http.client.HTTPConnection):
    response_class = _Response

    def __init__(
        self,
        interruption: Interruption,
        trust: ssl.SSLContext,
        *address: Any,  # noqa: ANN401 - http.client's
        **options: Any,  # noqa: ANN401 - same
    ) -> None:
        super().__init__(*address, **options)
        self.timeout = CONNECT_SECONDS
        self.trust = trust
        self.idle_since = 0.0
        self.is_through_proxy = False
        self.proxy_fields: dict[str, str] = {}
        self._interruption = interruption

    def connect(self) -> None:
        super().connect()
        self._interruption.watch_socket(self.sock)

    def exchange(self, url: str, fields: Mapping[str, str]) -> http.client.HTTPResponse:
        split = urlsplit(url)
        target = (split.path or "/") + f"?{split.query}" * bool(split.query)
        try:
            if self.sock is not None:
                self.sock.settimeout(STALL_SECONDS)
            host = split.netloc.rpartition("@")[2]
            target = f"{split.scheme}://{host}{target}" if self.is_through_proxy else target
            self.putrequest("GET", target, skip_host=True, skip_accept_encoding=True)
            for name, value in {"Host": host, **fields, **self.proxy_fields}.items():
                self.putheader(name, value)
            self.endheaders()
            return self.getresponse()
        except BaseException:
            self.close()
            raise


class _TlsConnection(_Connection, http.client.HTTPSConnection):
    """The same over TLS."""
