"""The client of assisted-service: each call returns a complete, valid response or raises one of our errors.

Cancellation: a call may be canceled at any step (name look-up, connect, handshake, head, body) and then fails
with ``CancelledError``. Its connection is closed and not returned to the pool, so a late response cannot be
mistaken for that to another call. A deadline is such a cancellation, raised as 504. Calls share only the
pool.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import quote

import attrs
from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

from image_service.assisted.agent import PlainAgent
from image_service.assisted.body import read_body
from image_service.assisted.calls import (
    CallKind,
    CallOutcome,
    UpstreamRequest,
    add_credentials,
    outcome_of,
)
from image_service.assisted.endpoint import UpstreamEndpoint, parse_base_url
from image_service.assisted.failures import (
    CLIENT_ERRORS,
    client_failure,
    refusal,
    upstream_error,
    upstream_timeout,
)
from image_service.assisted.responses import IgnitionConfig, InfraEnv, parse_infra_env
from image_service.assisted.tls import https_policy
from image_service.coreos.ignition import check_ignition
from image_service.errors import (
    IgnitionNotJson,
    ImageServiceError,
)
from image_service.formats.initrd import is_initrd
from image_service.http.dates import parse_http_date
from image_service.http.problem import status_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treq.response import _Response
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure

    from image_service.images.reference import Credentials, Kind

T = TypeVar("T")

IGNITION_LIMIT_BYTES = 8 * 1024 * 1024
INFRA_ENV_LIMIT_BYTES = 16 * 1024 * 1024  # it repeats the config's override, as an escaped string
RAMDISK_LIMIT_BYTES = 64 * 1024 * 1024
THREAD_BYTES = 128 * 1024
"""Larger JSON is parsed in a thread: a tree of 8 MiB takes more than a second."""
_API = ("api", "assisted-install", "v2", "infra-envs")
_CACHED_CONNECTIONS = 4
_CACHED_SECONDS = 60  # below the idle timeout of the usual proxies, which close without notice
_CLOSE_SECONDS = 1.0
_OK = 200
_NO_CONTENT = 204


@attrs.frozen
class _UpstreamResponse:
    headers: Headers
    body: bytes = attrs.field(repr=False)


class AssistedService:
    """The API of assisted-service, as far as images need it.

    Args:
        reactor: connects, resolves names and has the clock; only a whole reactor does all three.
        base_url: scheme, host and port, with the path of a proxy before the API.
        ca_file: PEM certificates to trust in addition to the system's.
        insecure: do not verify certificates.
        upstream_timeout_seconds: for a whole call.
        connect_timeout_seconds: for a TCP connection.
        silence_timeout_seconds: without a byte of the response.
        concurrency: calls at a time; further calls wait.
        count: called after each call with the values of its kind and its outcome, and its seconds.

    Raises:
        ConfigurationError: ``base_url`` is not an http or https URL with a host, or ``ca_file`` is unusable.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - three deadlines, each with a default
        self,
        reactor: PosixReactorBase,
        base_url: str,
        *,
        ca_file: Path | None = None,
        insecure: bool = False,
        upstream_timeout_seconds: float = 30.0,
        connect_timeout_seconds: float = 10.0,
        silence_timeout_seconds: float = 20.0,
        concurrency: int = 32,
        count: Callable[[str, str, float], None] = lambda *_: None,
    ) -> None:
        self._reactor = reactor
        self._infra_envs = parse_base_url(base_url).child(*_API)
        self._timeout_seconds = upstream_timeout_seconds
        self._silence_seconds = silence_timeout_seconds
        self._count = count
        self._slots = DeferredSemaphore(concurrency)
        self._in_flight: set[Deferred[_UpstreamResponse]] = set()
        self._pool = HTTPConnectionPool(reactor)
        self._pool.maxPersistentPerHost = _CACHED_CONNECTIONS
        self._pool.cachedConnectionTimeout = _CACHED_SECONDS
        policy = https_policy(ca_file, insecure=insecure)
        uri = URI.fromBytes(self._infra_envs.to_text().encode("ascii"))
        endpoint = UpstreamEndpoint(reactor, uri, policy, connect_timeout_seconds)
        self._http = HTTPClient(PlainAgent(Agent.usingEndpointFactory(reactor, endpoint, self._pool)))

    async def fetch_ignition(
        self, infra_env_id: str, discovery_iso_type: Kind | None, credentials: Credentials | None
    ) -> IgnitionConfig:
        """Fetch the Ignition config and its date; `discovery_iso_type` is None unless it is for an ISO.

        Raises:
            ImageServiceError: assisted-service refused (401, 403, 404, 409, …), failed (502) or was too
                slow (504); or its response is not an Ignition config (502, 422).
        """
        iso_type = () if discovery_iso_type is None else (("discovery_iso_type", discovery_iso_type.value),)
        request = UpstreamRequest(
            CallKind.IGNITION,
            f"Ignition config of infra-env {infra_env_id}",
            (infra_env_id, "downloads", "files"),
            IGNITION_LIMIT_BYTES,
            (("file_name", "discovery.ign"), *iso_type),
        )
        response = await self._call(request, credentials)
        await self._parse(_check_config, response.body)
        (modified, *_) = response.headers.getRawHeaders(b"Last-Modified", [b""])
        return IgnitionConfig(response.body, parse_http_date(modified.decode("latin-1")))

    async def fetch_infra_env(self, infra_env_id: str, credentials: Credentials | None) -> InfraEnv:
        """Fetch the infra-env; raises ImageServiceError as `fetch_ignition` does."""
        what = f"infra-env {infra_env_id}"
        request = UpstreamRequest(CallKind.INFRA_ENV, what, (infra_env_id,), INFRA_ENV_LIMIT_BYTES)
        return await self._parse(parse_infra_env, (await self._call(request, credentials)).body)

    async def fetch_ramdisk(self, infra_env_id: str, credentials: Credentials | None) -> bytes | None:
        """Fetch the ramdisk that a minimal image needs before it can download its root file system.

        Returns:
            a compressed archive for the kernel; None if there is none.

        Raises:
            ImageServiceError: as for `fetch_ignition`; 502 if the kernel could not unpack the archive.
        """
        what = f"ramdisk of infra-env {infra_env_id}"
        path = (infra_env_id, "downloads", "minimal-initrd")
        request = UpstreamRequest(CallKind.RAMDISK, what, path, RAMDISK_LIMIT_BYTES, optional=True)
        ramdisk = (await self._call(request, credentials)).body
        if ramdisk and not is_initrd(ramdisk):
            raise upstream_error(f"the {what}, {len(ramdisk)} bytes, is no archive of gzip, xz, zstd or cpio")
        return ramdisk or None

    async def close(self) -> None:
        """Cancel the calls in flight and close the connections; waits at most a second for these."""
        for call in tuple(self._in_flight):
            call.cancel()
        closed: Deferred[None] = self._pool.closeCachedConnections()
        await closed.addTimeout(_CLOSE_SECONDS, self._reactor, lambda *_: None)

    async def _parse(self, parse: Callable[[bytes], T], body: bytes) -> T:
        """Parse JSON; large documents in a thread."""
        if len(body) <= THREAD_BYTES:
            return parse(body)
        return await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), parse, body)

    async def _call(self, request: UpstreamRequest, credentials: Credentials | None) -> _UpstreamResponse:
        too_slow = _raise_timeout(f"{request.what} took more than {self._timeout_seconds:g} s")
        exchange = Deferred.fromCoroutine(self._exchange(request, credentials))
        call = _cancellable(exchange.addTimeout(self._timeout_seconds, self._reactor, too_slow))
        self._in_flight.add(call)
        started_at = self._reactor.seconds()
        try:
            response = await call
        except ImageServiceError as error:
            self._record(request, outcome_of(error), started_at)
            self._log.info("{detail}", detail=error.detail, status=status_of(error), code=error.code)
            raise error from None  # its context may quote the response
        else:
            self._record(request, CallOutcome.OK, started_at)
            return response
        finally:
            self._in_flight.discard(call)

    def _record(self, request: UpstreamRequest, outcome: CallOutcome, started_at: float) -> None:
        self._count(request.kind.value, outcome.value, self._reactor.seconds() - started_at)

    async def _exchange(self, request: UpstreamRequest, credentials: Credentials | None) -> _UpstreamResponse:
        what, silence_seconds = request.what, self._silence_seconds
        silent = _raise_timeout(f"no answer within {silence_seconds:g} s for {what}")
        async with self._slots:
            try:
                head = self._send(request, credentials)
                response = await head.addTimeout(silence_seconds, self._reactor, silent)
                # The body of a refusal is read too: only then does its connection return to the pool.
                body = await read_body(response, what, request.limit_bytes, silence_seconds, self._reactor)
            except CLIENT_ERRORS as error:
                raise client_failure(error, what) from None  # its text may quote the response
        if response.code != _OK and not (request.optional and response.code == _NO_CONTENT):
            raise refusal(response.code, response.headers, what)
        return _UpstreamResponse(response.headers, body)

    def _send(self, request: UpstreamRequest, credentials: Credentials | None) -> Deferred[_Response]:
        parameters, headers = list(request.parameters), Headers({"User-Agent": ["image-service"]})
        if credentials is not None:
            add_credentials(credentials, parameters, headers)
        return self._http.get(
            self._infra_envs.child(*(quote(segment, safe="") for segment in request.path)),
            params=parameters,
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,  # type: ignore[arg-type]  # treq's own sum of interfaces
        )


def _check_config(config: bytes) -> None:
    try:
        check_ignition(config)
    except IgnitionNotJson:
        raise upstream_error(f"the Ignition config of {len(config)} bytes is not JSON") from None


def _cancellable(work: Deferred[T]) -> Deferred[T]:
    """Fail with CancelledError when canceled, whatever `work` fails with, such as a failed name look-up."""

    def cancel(result: Deferred[T]) -> None:
        result.errback(CancelledError())
        work.cancel()

    def finish(outcome: T | Failure) -> None:
        if not result.called:
            result.callback(outcome)  # a Failure goes to the errbacks

    result: Deferred[T] = Deferred(cancel)
    work.addBoth(finish)
    return result


def _raise_timeout(detail: str) -> Callable[[object, float], NoReturn]:
    def raise_timeout(_: object, __: float) -> NoReturn:
        raise upstream_timeout(detail)

    return raise_timeout
