"""HTTP requests to servers that a manifest names: to allowed origins only, without redirects and proxies."""

from __future__ import annotations

import itertools
import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import attrs

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.client import HttpClient
from image_service.common.http.errors import HttpError, TooSlow, UntrustedCertificate
from image_service.common.http.origins import public_url
from image_service.common.http.tls import client_context
from image_service.common.http.watch import RequestLimits
from image_service.core.errors import FormatError, TransferFailed, TransferRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from image_service.common.http.origins import AllowedOrigins
    from image_service.common.http.response import HttpResponse

_Result = TypeVar("_Result")

_LAST_BACKOFF_SECONDS = 10.0
_TRANSIENT_STATUSES = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}


class TransientFailure(TransferFailed):
    """A request that may succeed when it is sent again."""


class ServerAway(TransientFailure):
    """A connection failed or stalled, or the server says by its status that it cannot answer now."""


class ObjectAbsent(TransferRefused):
    """A server answers with status 404."""


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

    def limits(self, length: int) -> RequestLimits:
        """Return the limits of a request whose response is expected to have a body of `length` bytes."""
        return RequestLimits(
            connect_seconds=self.connect_seconds,
            stall_seconds=self.stall_seconds,
            total_seconds=self.request_seconds + length / self.least_rate,
        )


@attrs.frozen(eq=False)
class ReceivedResponse:
    """A response; its body is read once.

    Args:
        url: without credentials, for messages.
        response: with the body.
    """

    url: str
    response: HttpResponse

    @property
    def status(self) -> int:
        """The status code."""
        return self.response.status

    @property
    def length(self) -> int | None:
        """Bytes of the body; None: the server has not said."""
        return self.response.length

    @property
    def is_coded(self) -> bool:
        """True if the body has a content coding."""
        return bool(self.response.coding)

    def field(self, name: str) -> str:
        """Return a header field, or ""."""
        return self.response.field(name)

    def blocks(self) -> Iterator[bytes]:
        """Yield the body; the block of the request ends with a failure if it is shorter than announced."""
        return self.response.blocks()

    def read(self, limit: int) -> bytes:
        """Return the body; FormatError if it has more than `limit` bytes."""
        body = self.response.read(limit + 1)
        if len(body) > limit:
            raise FormatError(f"{self.url} has more than {limit} bytes")
        return body

    def failure(self) -> TransferFailed:
        """Return the error for a status that is not the expected one."""
        text = f"{self.url} answered with status {self.status}"
        if HTTPStatus.MULTIPLE_CHOICES <= self.status < HTTPStatus.BAD_REQUEST:
            return RedirectRefused(f"{text}; redirects are not followed")
        if self.status == HTTPStatus.NOT_FOUND:
            return ObjectAbsent(text)
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
        self.times = times or TransferTimes()
        self._backoff = Backoff(self.times.backoff_seconds, _LAST_BACKOFF_SECONDS)
        self._interruption = Interruption()
        context = client_context(ca_file)
        self._http = HttpClient(
            lambda: context,
            self.times.limits(0),
            check_address=allowed.check_address,
            interruption=self._interruption,
        )

    def abort(self) -> None:
        """End all requests; further ones fail."""
        self._interruption.interrupt()

    def retry(self, attempt: Callable[[], _Result]) -> _Result:
        """Return the result of the first attempt that has no transient failure; wait between attempts."""
        deadline = time.monotonic() + self.times.outage_seconds
        for number in itertools.count(1):
            try:
                return attempt()
            except TransientFailure as failure:
                is_awaited = isinstance(failure, ServerAway) and time.monotonic() < deadline
                if number >= self.times.attempts and not is_awaited:
                    raise
                try:
                    self._interruption.wait(self._backoff.delay_seconds(number))
                except Interrupted:
                    raise failure from None
        raise AssertionError  # not reached

    @contextmanager
    def send(
        self, method: str, url: str, name: str, headers: Mapping[str, str] | None = None, length: int = 0
    ) -> Iterator[ReceivedResponse]:
        """Send a request, and yield its response; the body must be read within the block.

        Args:
            url: checked first.
            name: of the URL, for messages.
            headers: further fields.
            length: expected bytes of the body, for the deadline.

        Raises:
            UnsafeImage: the URL or its address is not allowed.
            ServerAway: the connection failed, or a deadline passed.
            TransferFailed: a failure that the next attempt would have too.
        """
        self._allowed.check(url, name)
        shown = public_url(url)
        failed = f"cannot {method} {shown}"
        try:
            with self._http.send(method, url, headers or {}, limits=self.times.limits(length)) as response:
                yield ReceivedResponse(shown, response)
        except Interrupted:
            raise TransferFailed("the transfer was aborted") from None
        except UntrustedCertificate as error:
            cause = str(error).removeprefix("certificate: ")
            hint = "; --ca-file names authorities" * error.lacks_authority
            raise TransferFailed(f"{failed}: its certificate is not trusted: {cause}{hint}") from None
        except TooSlow:
            raise ServerAway(f"{failed}: the server is too slow") from None
        except HttpError as error:
            raise ServerAway(f"{failed}: {error}") from None
