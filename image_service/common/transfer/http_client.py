"""HTTP requests to servers that a manifest names: allowed origins only, no redirects, proxies or credentials.

The address that was checked is the one connected to. Each read has a deadline of its own, and each request
one for the whole: a server that sends a byte a second is given up.
"""

from __future__ import annotations

import http.client
import io
import itertools
import random
import socket
import ssl
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import attrs

from image_service.common.http.origins import public_url
from image_service.core.errors import FormatError, TransferFailed, TransferRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from _typeshed import WriteableBuffer

    from image_service.common.http.origins import AllowedOrigins, UrlOrigin

_Result = TypeVar("_Result")

BLOCK_BYTES = 256 * 1024
_LAST_BACKOFF_SECONDS = 10.0
_TRANSIENT_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class TransientFailure(TransferFailed):
    """A request that may succeed when it is sent again."""


class ServerAway(TransientFailure):
    """A connection failed or stalled, or the server says by its status that it cannot answer now."""


class RedirectRefused(TransferRefused):
    """A server names another place, which is not followed."""


@attrs.frozen
class TransferTimes:
    """How long a transfer waits, and how often it tries.

    Args:
        connect_seconds: for each address.
        stall_seconds: for the next bytes.
        request_seconds: for a request, in addition to what its bytes take at the least rate.
        least_rate: bytes a second.
        attempts: of each request.
        backoff_seconds: before the second attempt; doubled before each further one, up to 10 s.
        outage_seconds: while a server is away, in which further attempts follow.
    """

    connect_seconds: float = 10
    stall_seconds: float = 30
    request_seconds: float = 60
    least_rate: int = 16 * 1024
    attempts: int = 5
    backoff_seconds: float = 0.5
    outage_seconds: float = 0


@attrs.frozen(eq=False)
class ReceivedResponse:
    """A response; its body is read once.

    Args:
        url: without credentials, for messages.
        status: code.
        response: of http.client.
    """

    url: str
    status: int
    response: http.client.HTTPResponse

    @property
    def length(self) -> int | None:
        """Return the Content-Length; None: not sent."""
        return self.response.length

    def field(self, name: str) -> str:
        """Return a header field, or ""."""
        return self.response.headers.get(name, "")

    def blocks(self) -> Iterator[bytes]:
        """Yield the body; ends too soon only if no length was sent."""
        while True:
            with _translate_errors(f"GET {self.url}"):
                block = self.response.read1(BLOCK_BYTES)
            if not block:
                return
            yield block

    def read(self, limit: int) -> bytes:
        """Return the body; FormatError if it has more than `limit` bytes."""
        body = bytearray()
        for block in self.blocks():
            body += block
            if len(body) > limit:
                raise FormatError(f"{self.url} has more than {limit} bytes")
        if self.length:
            raise TransientFailure(f"{self.url} ended {self.length} bytes too soon")
        return bytes(body)

    def failure(self) -> TransferFailed:
        """Return the error for a status that is not the expected one."""
        text = f"{self.url} answered with status {self.status}"
        if HTTPStatus.MULTIPLE_CHOICES <= self.status < HTTPStatus.BAD_REQUEST:
            return RedirectRefused(f"{text}; redirects are not followed")
        is_away = self.status >= HTTPStatus.INTERNAL_SERVER_ERROR or self.status in _TRANSIENT_STATUSES
        return ServerAway(text) if is_away else TransferRefused(text)


class TransferClient:
    """Sends requests from several threads, until it is aborted.

    Args:
        allowed: origins.
        ca_file: authorities in PEM, beside those of the system.
        times: limits.
    """

    def __init__(
        self, allowed: AllowedOrigins, ca_file: Path | None = None, times: TransferTimes | None = None
    ) -> None:
        self._allowed = allowed
        self._context = ssl.create_default_context()
        if ca_file:
            self._context.load_verify_locations(ca_file)
        self.times = times or TransferTimes()
        self._aborted = threading.Event()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()

    def abort(self) -> None:
        """End all requests; further ones fail."""
        self._aborted.set()
        with self._lock:
            for connected in self._sockets:
                with suppress(OSError):
                    connected.shutdown(socket.SHUT_RDWR)

    def retry(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of the first attempt that has no transient failure; wait between attempts."""
        delay = self.times.backoff_seconds
        deadline = time.monotonic() + self.times.outage_seconds
        for number in itertools.count(1):
            try:
                return attempt()
            except TransientFailure as failure:
                is_awaited = isinstance(failure, ServerAway) and time.monotonic() < deadline
                if number >= self.times.attempts and not is_awaited:
                    raise
                if self._aborted.wait(delay * random.uniform(0.5, 1)):  # noqa: S311 - jitter
                    raise
            delay = min(2 * delay, _LAST_BACKOFF_SECONDS)
        raise AssertionError  # not reached

    @contextmanager
    def send(
        self, method: str, url: str, name: str, headers: Mapping[str, str] | None = None, length: int = 0
    ) -> Iterator[ReceivedResponse]:
        """Send a request, and yield its response; the body must be read within the block.

        Args:
            method: of the request.
            url: checked first.
            name: of the URL, for messages.
            headers: further fields.
            length: expected bytes of the body, for the deadline.

        Raises:
            UnsafeImage: the URL or its address is not allowed.
            ServerAway: the connection failed, or a deadline passed.
            TransferFailed: a failure that the next attempt would have too.
        """
        origin = self._allowed.check(url, name)
        shown = public_url(url)
        deadline = time.monotonic() + self.times.request_seconds + length / self.times.least_rate
        split = urlsplit(url)
        target = (split.path or "/") + (f"?{split.query}" if split.query else "")
        connection = http.client.HTTPConnection(origin.host, origin.port)
        with ExitStack() as stack:
            with _translate_errors(f"{method} {shown}"):
                connected = stack.enter_context(self._connect(origin, deadline))
                # http.client asks a socket for no more than _TimedSocket has.
                connection.sock = _TimedSocket(connected, deadline, self.times.stall_seconds)
                fields = {"Host": origin.authority, "Accept-Encoding": "identity", "Connection": "close"}
                connection.request(method, target, headers={**fields, **(headers or {})})
                response = stack.enter_context(connection.getresponse())
            yield ReceivedResponse(shown, response.status, response)

    @contextmanager
    def _connect(self, origin: UrlOrigin, deadline: float) -> Iterator[socket.socket]:
        connected = self._open_socket(origin)
        with connected:
            with self._lock:
                self._sockets.add(connected)
            try:
                if self._aborted.is_set():
                    raise TransferFailed("the transfer was aborted")
                if origin.scheme == "http":
                    yield connected
                else:
                    connected.settimeout(min(self.times.stall_seconds, deadline - time.monotonic()))
                    with self._context.wrap_socket(connected, server_hostname=origin.host) as secured:
                        with self._lock:  # wrapping detaches the first
                            self._sockets.add(secured)
                        try:
                            yield secured
                        finally:
                            with self._lock:
                                self._sockets.discard(secured)
            finally:
                with self._lock:
                    self._sockets.discard(connected)

    def _open_socket(self, origin: UrlOrigin) -> socket.socket:
        found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
        for *_, address in found:
            self._allowed.check_address(origin, str(address[0]))
        failure: OSError = OSError("its name has no address")
        for family, kind, protocol, _, address in found:
            opened = socket.socket(family, kind, protocol)
            try:
                opened.settimeout(self.times.connect_seconds)
                opened.connect(address)
            except OSError as error:
                opened.close()
                failure = error
            else:
                return opened
        raise failure


class _TimedSocket:
    """A socket whose reads and writes end at a deadline, or when nothing moves for a while."""

    def __init__(self, connected: socket.socket, deadline: float, stall_seconds: float) -> None:
        self._socket = connected
        self._deadline = deadline
        self._stall_seconds = stall_seconds

    def sendall(self, data: bytes) -> None:
        self.limit()
        self._socket.sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        return io.BufferedReader(_TimedReader(self), BLOCK_BYTES)

    def close(self) -> None:
        """Leave the socket to the block that opened it."""

    def receive(self, buffer: WriteableBuffer) -> int:
        self.limit()
        return self._socket.recv_into(buffer)

    def limit(self) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the whole took too long")
        self._socket.settimeout(min(left, self._stall_seconds))


class _TimedReader(io.RawIOBase):
    def __init__(self, source: _TimedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - the base class's type needs Python 3.12
        return self._source.receive(buffer)


@contextmanager
def _translate_errors(request: str) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise TransferFailed(
            f"cannot {request}: its certificate is not trusted: {error.verify_message};"
            " --ca-file names authorities"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise ServerAway(f"cannot {request}: {_describe(error)}") from None


def _describe(error: Exception) -> str:
    """Return a reason without the URL, and without text from the server."""
    if isinstance(error, TimeoutError):
        return "the server is too slow"
    if isinstance(error, socket.gaierror):
        return f"its name does not resolve: {error.strerror}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason or error.strerror}"
    return getattr(error, "strerror", None) or type(error).__name__
