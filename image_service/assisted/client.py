"""The client of assisted-service. Each call returns a complete, parsed response or raises an error.

A call that is canceled fails with ``CancelledError``. While it waits for a slot it is then never made; if it
has begun, it goes on to its end, and nobody gets its result. A timeout, and ``close``, abort its connection
at any step (name resolution, connect, TLS handshake, waiting for the response, within its body). The timeout
begins when the call has its slot: waiting for that is overload of this service, not a failure of the other.
Calls share the slots; those without credentials share connections too.

A call with credentials has a connection of its own. Else a server, or a proxy before it, that sends a second
response late would have it taken for the answer to the next question, which may be another tenant's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from urllib.parse import quote

from treq.client import HTTPClient
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel
from twisted.web.client import URI, HTTPConnectionPool
from twisted.web.http_headers import Headers

from image_service.assisted.agent import ServerEndpoint, UncodedAgent, parse_base_url
from image_service.assisted.body import read_body
from image_service.assisted.call_slots import CallClass, CallSlots
from image_service.assisted.caller import CALLER, Caller
from image_service.assisted.calls import (
    IGNITION_LIMIT_BYTES,
    INFRA_ENV_LIMIT_BYTES,
    RAMDISK_LIMIT_BYTES,
    ApiCall,
    CallKind,
    CallOutcome,
    add_credentials,
    outcome_of,
)
from image_service.assisted.failures import (
    CLIENT_ERRORS,
    error_of_exception,
    error_of_status,
    upstream_timeout,
)
from image_service.assisted.responses import (
    CompleteResponse,
    IgnitionConfig,
    InfraEnv,
    parse_ignition,
    parse_infra_env,
    parse_ramdisk,
)
from image_service.assisted.tls import https_policy
from image_service.concurrency.lru import LruCache
from image_service.errors import Forbidden, ImageServiceError, NotFound, Unauthorized
from image_service.http.problem import status_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from treq.response import _Response
    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure

    from image_service.images.reference import Credentials, Kind

T = TypeVar("T")

THREAD_BYTES = 128 * 1024
"""Larger bodies are parsed in a thread: for 8 MiB of JSON the parser takes more than a second."""
MAX_ACCEPTED = 16384
"""Credentials that are known to be accepted: as many as there are cached snapshots."""
_INFRA_ENVS = ("api", "assisted-install", "v2", "infra-envs")
_IDLE_CONNECTIONS = 4
_IDLE_SECONDS = 60  # below the idle timeout of the usual proxies, which close without notice
_CLOSE_SECONDS = 1.0
_OK = 200
_NO_CONTENT = 204
_SERVER_ERRORS = 500


class AssistedService:
    """Calls assisted-service.

    Each call raises an ``ImageServiceError`` if assisted-service refuses it (401, 403, 404, 409, …), fails
    or sends an invalid response (502, 422), or is too slow (504); ``UpstreamQueueFull`` (503) if it gets no
    slot in time. Credentials are passed on.

    Args:
        reactor: connects, resolves names and measures time; only a whole reactor does all three.
        base_url: scheme, host and port, with the path before the API if a proxy adds one.
        ca_file: PEM certificates to trust beside the system's.
        upstream_timeout_seconds: for a whole call, from when it has a slot.
        connect_timeout_seconds: for a TCP connection.
        silence_timeout_seconds: without a byte of the response.
        concurrency: the number of concurrent calls; more of them wait.
        record: is called after each call with its kind, outcome and duration in seconds, for the metrics.
        record_refusal: is called for each request whose calls get no slot.

    Raises:
        ConfigurationError: ``base_url`` is not an http or https URL with a host, or ``ca_file`` is unusable.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - three timeouts, each with a default
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
        record: Callable[[str, str, float], None] = lambda *_: None,
        record_refusal: Callable[[], None] = lambda: None,
    ) -> None:
        self._reactor = reactor
        self._infra_envs = parse_base_url(base_url).child(*_INFRA_ENVS)
        self._timeout_seconds = upstream_timeout_seconds
        self._silence_seconds = silence_timeout_seconds
        self._record = record
        self.slots = CallSlots(concurrency, reactor, record_refusal)
        self._accepted: LruCache[bytes, bool] = LruCache(MAX_ACCEPTED)
        self._in_flight: set[Deferred[Any]] = set()
        self._pool = HTTPConnectionPool(reactor)  # of calls without credentials
        self._pool.maxPersistentPerHost = _IDLE_CONNECTIONS
        self._pool.cachedConnectionTimeout = _IDLE_SECONDS
        uri = URI.fromBytes(self._infra_envs.to_text().encode("ascii"))
        policy = https_policy(ca_file, insecure=insecure)
        server = ServerEndpoint(reactor, uri, policy, connect_timeout_seconds)
        self._shared = HTTPClient(UncodedAgent(reactor, server, self._pool))
        self._single = HTTPClient(
            UncodedAgent(reactor, server, HTTPConnectionPool(reactor, persistent=False))
        )

    async def fetch_ignition(
        self,
        infra_env_id: str,
        discovery_iso_type: Kind | None,
        credentials: Credentials | None,
        *,
        is_revalidation: bool = False,
    ) -> IgnitionConfig:
        """Return the Ignition config for an ISO of this type; None: for an image that is not an ISO."""
        iso_type = (("discovery_iso_type", discovery_iso_type.value),) if discovery_iso_type else ()
        call = ApiCall(
            CallKind.IGNITION,
            f"the Ignition config of infra-env {infra_env_id}",
            (infra_env_id, "downloads", "files"),
            IGNITION_LIMIT_BYTES,
            (("file_name", "discovery.ign"), *iso_type),
            is_revalidation=is_revalidation,
        )
        return await self._call(call, parse_ignition, credentials)

    async def fetch_infra_env(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> InfraEnv:
        """Return the infra-env itself."""
        resource = f"infra-env {infra_env_id}"
        call = ApiCall(
            CallKind.INFRA_ENV,
            resource,
            (infra_env_id,),
            INFRA_ENV_LIMIT_BYTES,
            is_revalidation=is_revalidation,
        )
        return await self._call(call, parse_infra_env, credentials)

    async def fetch_ramdisk(
        self, infra_env_id: str, credentials: Credentials | None, *, is_revalidation: bool = False
    ) -> bytes | None:
        """Return a compressed archive, to be passed to the kernel unchanged; None: there is none."""
        call = ApiCall(
            CallKind.RAMDISK,
            f"the ramdisk of infra-env {infra_env_id}",
            (infra_env_id, "downloads", "minimal-initrd"),
            RAMDISK_LIMIT_BYTES,
            may_be_absent=True,
            is_revalidation=is_revalidation,
        )
        return await self._call(call, parse_ramdisk, credentials)

    async def close(self) -> None:
        """Cancel the calls in flight and close the connections, for which it waits a second at most."""
        self.slots.close()
        for call in tuple(self._in_flight):
            call.cancel()
        closed: Deferred[None] = self._pool.closeCachedConnections()
        await closed.addTimeout(_CLOSE_SECONDS, self._reactor, lambda *_: None)

    async def _call(
        self, call: ApiCall, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        caller = CALLER.get(None) or Caller("", self._reactor.seconds())
        send = partial(self._send, call, parse, credentials)
        try:
            result = await self.slots.run(caller, self._class_of(call, credentials), send)
        except (Unauthorized, Forbidden, NotFound):
            if credentials is not None:
                self._accepted.pop(credentials.digest)
            raise
        if credentials is not None:
            self._accepted[credentials.digest] = True
        return result

    def _class_of(self, call: ApiCall, credentials: Credentials | None) -> CallClass:
        if call.is_revalidation:
            return CallClass.REVALIDATION
        if credentials is None:
            return CallClass.ANONYMOUS
        is_accepted = self._accepted.get(credentials.digest)
        return CallClass.ACCEPTED if is_accepted else CallClass.UNPROVEN

    async def _send(
        self, call: ApiCall, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        started_at = self._reactor.seconds()
        detail = f"{call.resource} took more than {self._timeout_seconds:g} s (UPSTREAM_TIMEOUT)"
        work = Deferred.fromCoroutine(self._exchange_and_parse(call, parse, credentials))
        work.addTimeout(self._timeout_seconds, self._reactor, _raise_timeout(detail))
        cancelable = _make_cancelable(work)
        self._in_flight.add(cancelable)
        try:
            result = await cancelable
        except ImageServiceError as error:
            self._record(call.kind.value, outcome_of(error).value, self._reactor.seconds() - started_at)
            status = status_of(error)
            level = LogLevel.warn if status >= _SERVER_ERRORS else LogLevel.info
            self._log.emit(level, "{detail}", detail=error.detail, status=status, code=error.code)
            raise error from None  # its context may quote the response
        finally:
            self._in_flight.discard(cancelable)
        self._record(call.kind.value, CallOutcome.OK.value, self._reactor.seconds() - started_at)
        return result

    async def _exchange_and_parse(
        self, call: ApiCall, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        response = await self._exchange(call, credentials)
        if len(response.body) <= THREAD_BYTES:
            return parse(response)
        return await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), parse, response)

    async def _exchange(self, call: ApiCall, credentials: Credentials | None) -> CompleteResponse:
        resource, silence_seconds = call.resource, self._silence_seconds
        parameters, headers = list(call.parameters), Headers({"User-Agent": ["image-service"]})
        if credentials is not None:
            add_credentials(credentials, parameters, headers)
        http = self._shared if credentials is None else self._single
        request: Deferred[_Response] = http.get(
            self._infra_envs.child(*(quote(segment, safe="") for segment in call.path)),
            params=parameters,
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,  # type: ignore[arg-type]  # treq's own sum of interfaces
        )
        silent = _raise_timeout(f"no answer within {silence_seconds:g} s for {resource}")
        try:
            response = await request.addTimeout(silence_seconds, self._reactor, silent)
            # The body of an error is read too: only then does its connection return to the pool.
            body = await read_body(response, resource, call.limit_bytes, silence_seconds, self._reactor)
        except CLIENT_ERRORS as error:
            raise error_of_exception(error, resource) from None  # its text may quote the response
        if response.code != _OK and not (call.may_be_absent and response.code == _NO_CONTENT):
            raise error_of_status(response.code, response.headers, resource)
        return CompleteResponse(resource, response.headers, body)


def _make_cancelable(work: Deferred[T]) -> Deferred[T]:
    """Return a Deferred that fails with ``CancelledError`` if canceled, however ``work`` then fails."""

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
    def on_timeout(_: object, __: float) -> NoReturn:
        raise upstream_timeout(detail)

    return on_timeout
