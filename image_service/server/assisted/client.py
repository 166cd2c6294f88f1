"""The client of assisted-service. Each call returns a complete, parsed response or raises an error.

A call that is canceled fails with ``CancelledError``. While it waits for a slot it is then never made; if it
has begun, it goes on to its end, and nobody gets its result. A timeout, and ``close``, abort its connection
at any step (name resolution, connect, TLS handshake, waiting for the response, within its body). The timeout
begins when the call has its slot: waiting for that is overload of this service, not a failure of the other.
Calls share the slots; those without credentials share connections too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.threads import deferToThreadPool

from image_service.common.concurrency.lru import LruCache
from image_service.core.errors import Forbidden, ImageServiceError, NotFound, Unauthorized
from image_service.server.assisted.call_slots import CallClass, CallSlots
from image_service.server.assisted.caller import CALLER, Caller
from image_service.server.assisted.calls import (
    IGNITION_LIMIT_BYTES,
    RAMDISK_LIMIT_BYTES,
    ApiCall,
    Attempt,
    CallKind,
    CallOutcome,
    infra_env_limit,
    outcome_of,
)
from image_service.server.assisted.connections import (
    CONNECT_SECONDS,
    SILENCE_SECONDS,
    ApiConnections,
    raise_timeout,
)
from image_service.server.assisted.failure_log import FailureLog, UpstreamHealth
from image_service.server.assisted.failures import error_of_status
from image_service.server.assisted.responses import (
    CompleteResponse,
    IgnitionConfig,
    InfraEnv,
    parse_ignition,
    parse_infra_env,
    parse_ramdisk,
)
from image_service.server.assisted.server import Server
from image_service.settings.proxies import NO_PROXIES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.posixbase import PosixReactorBase
    from twisted.python.failure import Failure

    from image_service.core.images.reference import Credentials, Kind
    from image_service.settings.proxies import ProxySettings

T = TypeVar("T")

THREAD_BYTES = 128 * 1024
"""Larger bodies are parsed in a thread: for 8 MiB of JSON the parser takes more than a second."""
MAX_ACCEPTED = 16384
"""Credentials that are known to be accepted: as many as there are cached snapshots."""
_OK = 200
_NO_CONTENT = 204


class AssistedService:
    """Calls assisted-service.

    Each call raises an ``ImageServiceError`` if assisted-service refuses it (401, 403, 404, 409, …), fails
    or sends an invalid response (502, 422), or is too slow (504); ``UpstreamQueueFull`` (503) if it gets no
    slot in time. Credentials are passed on.

    Args:
        reactor: connects, resolves names and measures time; only a whole reactor does all three.
        base_url: scheme, host and port, with the path before the API if a proxy adds one.
        ca_file: PEM certificates to trust beside the system's.
        proxies: one of them may be for assisted-service.
        upstream_timeout_seconds: for a whole call, from when it has a slot.
        silence_timeout_seconds: without a byte of the response.
        concurrency: the number of concurrent calls; more of them wait.
        record: is called after each call with its kind, outcome and duration in seconds, for the metrics.
        record_refusal: is called for each request whose calls get no slot.
        record_name: is called with the identifier and the name of each infra-env that was fetched.

    Raises:
        ConfigurationError: ``base_url`` is not an http or https URL with a host, or ``ca_file`` is unusable.
    """

    def __init__(  # noqa: PLR0913 - three timeouts, each with a default
        self,
        reactor: PosixReactorBase,
        base_url: str,
        *,
        ca_file: Path | None = None,
        insecure: bool = False,
        proxies: ProxySettings = NO_PROXIES,
        upstream_timeout_seconds: float = 30.0,
        connect_timeout_seconds: float = CONNECT_SECONDS,
        silence_timeout_seconds: float = SILENCE_SECONDS,
        concurrency: int = 32,
        ignition_bytes: int = IGNITION_LIMIT_BYTES,
        record: Callable[[str, str, float], None] = lambda *_: None,
        record_refusal: Callable[[], None] = lambda: None,
        record_name: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self._reactor = reactor
        self._timeout_seconds = upstream_timeout_seconds
        self._record = record
        self._record_name = record_name
        self._ignition_bytes = ignition_bytes
        self.slots = CallSlots(concurrency, reactor, record_refusal)
        self._accepted: LruCache[bytes, bool] = LruCache(MAX_ACCEPTED)
        self._in_flight: set[Deferred[Any]] = set()
        server = Server.make(base_url, ca_file, insecure=insecure, proxies=proxies)
        self._failures = FailureLog(server, reactor)
        self.health = UpstreamHealth(server.url.to_text())
        self._connections = ApiConnections(reactor, server, connect_timeout_seconds, silence_timeout_seconds)

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
            self._ignition_bytes,
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
            infra_env_limit(self._ignition_bytes),
            is_revalidation=is_revalidation,
        )
        infra_env = await self._call(call, parse_infra_env, credentials)
        self._record_name(infra_env_id, infra_env.name)
        return infra_env

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
        await self._connections.close()

    async def _call(
        self, call: ApiCall, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        caller = CALLER.get(None) or Caller("", self._reactor.seconds())
        send = partial(self._send, Attempt(call, caller.request_id), parse, credentials)
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
        self, attempt: Attempt, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        call = attempt.call
        started_at = self._reactor.seconds()
        detail = f"{call.resource} took more than {self._timeout_seconds:g} s (UPSTREAM_TIMEOUT)"
        work = Deferred.fromCoroutine(self._exchange_and_parse(attempt, parse, credentials))
        work.addTimeout(self._timeout_seconds, self._reactor, raise_timeout(detail))
        cancelable = _make_cancelable(work)
        self._in_flight.add(cancelable)
        try:
            result = await cancelable
        except ImageServiceError as error:
            self._record(call.kind.value, outcome_of(error).value, self._reactor.seconds() - started_at)
            self._failures.add(error, attempt)
            self.health.record(error)
            raise error from None  # its context may quote the response
        finally:
            self._in_flight.discard(cancelable)
        self._record(call.kind.value, CallOutcome.OK.value, self._reactor.seconds() - started_at)
        self.health.record(None)
        return result

    async def _exchange_and_parse(
        self, attempt: Attempt, parse: Callable[[CompleteResponse], T], credentials: Credentials | None
    ) -> T:
        call, response = attempt.call, await self._connections.exchange(attempt, credentials)
        if response.status != _OK and not (call.may_be_absent and response.status == _NO_CONTENT):
            raise error_of_status(response.status, response.headers, call.resource)
        # A small ramdisk may unpack to a large one.
        if len(response.body) <= THREAD_BYTES and (call.kind is not CallKind.RAMDISK or not response.body):
            return parse(response)
        return await deferToThreadPool(self._reactor, self._reactor.getThreadPool(), parse, response)


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
