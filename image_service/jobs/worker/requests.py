"""HTTP requests to the server: over TCP, TLS or a unix socket, each on a connection of its own."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import attrs

from image_service import __version__
from image_service.core.errors import InvalidRequest, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.common.concurrency.interruption import Interruption

_CONNECT_SECONDS = 10.0
_BLOCK_BYTES = 256 * 1024
_MAX_ANSWER_BYTES = 4 * 1024 * 1024
_UNIX = "unix:"
# A repeated request may succeed after these: tokens are renewed, and servers restarted.
_PASSING = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.FORBIDDEN,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_EARLY,
    HTTPStatus.TOO_MANY_REQUESTS,
}


@attrs.frozen
class ServerAddress:
    """The address of the server.

    Args:
        host: a name or an address; of a unix socket, that in the field Host.
        port: of TCP.
        is_tls: requests are sent by HTTPS.
        socket_path: of a unix socket; None: it is reached by TCP.
        prefix: of all paths, without a slash at its end.
    """

    host: str
    port: int = 0
    is_tls: bool = False
    socket_path: Path | None = None
    prefix: str = ""

    def __str__(self) -> str:
        """Return the address for people."""
        return f"{_UNIX}{self.socket_path}" if self.socket_path else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Return the address that a URL, or ``unix:PATH``, names; ValueError if it is none."""
        if text.startswith(_UNIX):
            path = Path(text.removeprefix(_UNIX))
            if not path.is_absolute():
                raise ValueError(f"{text}: unix: needs an absolute path")
            return cls("localhost", socket_path=path)
        url = urlsplit(text)
        if url.scheme not in {"http", "https"} or not url.hostname or url.username or url.query:
            raise ValueError(f"{text} is neither http://HOST:PORT, https://HOST:PORT nor unix:PATH")
        is_tls = url.scheme == "https"
        port = url.port or (http.client.HTTPS_PORT if is_tls else http.client.HTTP_PORT)
        return cls(url.hostname, port, is_tls, prefix=url.path.rstrip("/"))


class ServerRefusal(InvalidRequest):
    """The server refuses a request, and would again.

    Args:
        detail: status and reason.
        number: of the error in the API's list; 0: the answer names none.
    """

    def __init__(self, detail: str, number: int) -> None:
        super().__init__(detail)
        self.number = number


class ServerRequests:
    """Sends requests. May be used in several threads.

    Args:
        address: of the server.
        token_file: of the bearer token, read again for each request; None: requests have none.
        ca_file: authorities to trust beside the system's.

    Raises:
        OSError, ssl.SSLError: `ca_file` cannot be read.
    """

    def __init__(self, address: ServerAddress, token_file: Path | None, ca_file: Path | None) -> None:
        self._address = address
        self._token_file = token_file
        self._tls = ssl.create_default_context() if address.is_tls else None
        if self._tls and ca_file:
            self._tls.load_verify_locations(ca_file)

    @property
    def prefix(self) -> str:
        """The begin of all paths."""
        return self._address.prefix

    def ask(
        self,
        method: str,
        path: str,
        document: object | None = None,
        *,
        seconds: float,
        interruption: Interruption,
    ) -> Any:  # noqa: ANN401 - JSON
        """Send a request with JSON, and return the JSON of the answer; None if it has no content.

        Args:
            method: of HTTP.
            path: absolute.
            document: the content; None: there is none.
            seconds: between two reads of the answer.
            interruption: ends the request.

        Raises:
            Unavailable: the server does not answer, or not for now.
            NotFound: it answers with 404.
            ServerRefusal: it refuses the request.
            Interrupted: the work is abandoned.
        """
        body = None if document is None else json.dumps(document).encode()
        fields = {"Content-Type": "application/json"}
        with self.open(method, path, fields, body, seconds=seconds, interruption=interruption) as answer:
            try:
                content = answer.read(_MAX_ANSWER_BYTES)
                return json.loads(content) if content else None
            except (OSError, http.client.HTTPException, ValueError) as error:
                raise Unavailable(f"the answer to {method} is incomplete: {error!r}") from None

    @contextmanager
    def open(  # noqa: PLR0913 - properties of a request
        self,
        method: str,
        path: str,
        fields: Mapping[str, str],
        body: bytes | BinaryIO | None = None,
        *,
        seconds: float,
        interruption: Interruption,
    ) -> Iterator[http.client.HTTPResponse]:
        """Send a request, and yield the answer, whose status is 2xx; its content is read in the block.

        Args:
            method: of HTTP.
            path: absolute.
            fields: of the head, beside those of every request.
            body: the content; of a file, all of it.
            seconds: between two reads of the answer.
            interruption: ends the request.

        Raises:
            Unavailable, NotFound, ServerRefusal, Interrupted: as `ask`.
        """
        with closing(self._connect(interruption)) as connection:
            try:
                if connection.sock is not None:
                    connection.sock.settimeout(seconds)
                connection.request(method, path, body, {**fields, **self._identity()})
                answer = connection.getresponse()
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise _error_of(answer)
            except (OSError, http.client.HTTPException) as error:
                interruption.raise_if_interrupted()
                raise Unavailable(f"no answer from the server: {error!r}") from None
            yield answer

    def _identity(self) -> dict[str, str]:
        fields = {"User-Agent": f"image-service-worker/{__version__}", "Connection": "close"}
        if self._token_file:
            fields["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
        return fields

    def _connect(self, interruption: Interruption) -> http.client.HTTPConnection:
        """Return an open connection, which the interruption shuts down."""
        address = self._address
        try:
            opened = self._open_socket()
        except OSError as error:
            raise Unavailable(f"cannot connect to {address}: {error.strerror or error}") from None
        interruption.watch_socket(opened)
        connection = http.client.HTTPConnection(address.host, address.port or None, blocksize=_BLOCK_BYTES)
        connection.sock = opened
        return connection

    def _open_socket(self) -> socket.socket:
        address = self._address
        if address.socket_path:
            opened = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            opened.settimeout(_CONNECT_SECONDS)
            try:
                opened.connect(str(address.socket_path))
            except OSError:
                opened.close()
                raise
            return opened
        opened = socket.create_connection((address.host, address.port), _CONNECT_SECONDS)
        if self._tls is None:
            return opened
        try:
            return self._tls.wrap_socket(opened, server_hostname=address.host)
        except OSError:
            opened.close()
            raise


def _error_of(answer: http.client.HTTPResponse) -> Unavailable | NotFound | ServerRefusal:
    """Return the error of a status and the API's error object."""
    try:
        error = json.loads(answer.read(_BLOCK_BYTES))
        number = int(str(error["code"]).rpartition("-")[2])
        reason = ": ".join(str(error[name]) for name in ("reason", "details") if error.get(name))
    except (ValueError, TypeError, KeyError):
        number, reason = 0, answer.reason
    detail = f"the server answers {answer.status}: {reason}"
    if answer.status in _PASSING or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        seconds = answer.getheader("Retry-After", "")
        return Unavailable(detail, retry_after_seconds=int(seconds) if seconds.isdecimal() else None)
    if answer.status == HTTPStatus.NOT_FOUND:
        return NotFound(detail)
    return ServerRefusal(detail, number)
