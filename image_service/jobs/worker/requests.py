"""HTTP requests to the server: over TCP, TLS or a unix socket, each on a connection of its own."""

from __future__ import annotations

import json
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

import attrs

from image_service import __version__
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError
from image_service.common.http.origins import DEFAULT_PORTS, bracketed
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import InvalidRequest, NotFound, Unavailable, describe_os_error
from image_service.core.formats.hosts import parse_authority

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.response import HttpResponse

_MAX_ERROR_BYTES = 256 * 1024
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


STORE_DENIED = 500
"""The number of the error in the API's list."""


class StoreRefusal(Unavailable):
    """The server's object store refuses it; a repeated request succeeds only if somebody mends that."""


@attrs.frozen
class ServerAddress:
    """The address of the server.

    Args:
        host: a name or an address; of a unix socket, that in the field Host.
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

    @property
    def url(self) -> str:
        """The URL before the paths."""
        port = f":{self.port}" if self.port else ""
        return f"{'https' if self.is_tls else 'http'}://{bracketed(self.host)}{port}"

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Return the address that a URL, or ``unix:PATH``, names; ValueError if it is none."""
        if text.startswith(_UNIX):
            path = Path(text.removeprefix(_UNIX))
            if not path.is_absolute():
                raise ValueError(f"{text}: unix: needs an absolute path")
            return cls("localhost", socket_path=path)
        url = urlsplit(text)
        if url.scheme not in DEFAULT_PORTS or not url.netloc or "@" in url.netloc or url.query:
            raise ValueError(f"{text} is neither http://HOST:PORT, https://HOST:PORT nor unix:PATH")
        try:
            host, port = parse_authority(url.netloc)
        except ValueError as fault:
            raise ValueError(f"{text} {fault}") from None
        port = port or DEFAULT_PORTS[url.scheme]
        return cls(host, port, url.scheme == "https", prefix=url.path.rstrip("/"))


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
        token_file: of the bearer token, read again for each request; None: requests have none.
        ca_file: authorities to trust beside the system's.

    Raises:
        ConfigurationError: `ca_file` cannot be read.
    """

    def __init__(self, address: ServerAddress, token_file: Path | None, ca_file: Path | None) -> None:
        self._address = address
        self._token_file = token_file
        context = client_context(ca_file)
        self._http = HttpClient(lambda: context, RequestLimits(), unix_socket=address.socket_path)

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
            path: absolute.
            document: the content; None: there is none.
            seconds: between two reads of the answer.

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
            except HttpError as error:
                raise Unavailable(f"the answer to {method} is incomplete: {error}") from None
            except ValueError:
                raise Unavailable(f"the answer to {method} is incomplete, or is not JSON") from None

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
    ) -> Iterator[HttpResponse]:
        """Send a request, and yield the answer, whose status is 2xx; its content is read in the block.

        Args:
            path: absolute.
            fields: of the head, beside those of every request.
            body: the content; of a file, all of it.
            seconds: between two reads of the answer.

        Raises:
            Unavailable, NotFound, ServerRefusal, Interrupted: as `ask`.
        """
        url, limits = f"{self._address.url}{path}", RequestLimits(stall_seconds=seconds)
        fields = {**fields, **self._identity()}
        try:
            with self._http.send(
                method, url, fields, body, limits=limits, interruption=interruption
            ) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise _error_of(answer)
                yield answer
        except HttpError as error:
            if error.is_connected:
                raise Unavailable(f"no answer from the server: {error}") from None
            raise Unavailable(f"cannot connect to {self._address}: {error}") from None

    def _identity(self) -> dict[str, str]:
        fields = {"User-Agent": f"image-service-worker/{__version__}"}
        if self._token_file:
            try:
                fields["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            except OSError as error:  # perhaps it is being renewed
                raise Unavailable(f"the token cannot be read: {describe_os_error(error)}") from None
        return fields


def _error_of(answer: HttpResponse) -> Unavailable | NotFound | ServerRefusal:
    """Return the error of a status and the API's error object."""
    try:
        error = json.loads(answer.read(_MAX_ERROR_BYTES))
        number = int(str(error["code"]).rpartition("-")[2])
        reason = ": ".join(str(error[name]) for name in ("reason", "details") if error.get(name))
    except (ValueError, TypeError, KeyError):
        number, reason = 0, answer.reason
    detail = f"the server answers {answer.status}: {reason}"
    if answer.status == HTTPStatus.INSUFFICIENT_STORAGE:  # what does not fit is not sent again
        return ServerRefusal(detail, number)
    if answer.status in _PASSING or answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        if number == STORE_DENIED:
            return StoreRefusal(detail)
        seconds = answer.field("Retry-After")
        return Unavailable(detail, retry_after_seconds=int(seconds) if seconds.isdecimal() else None)
    if answer.status == HTTPStatus.NOT_FOUND:
        return NotFound(detail)
    return ServerRefusal(detail, number)
