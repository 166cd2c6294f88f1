"""The embedded stand-in for assisted-service: two listeners over one store.

One listener has the whole API, on plain HTTP, with authentication. The other is for image-service itself:
HTTPS on a free port of loopback, with a certificate of an authority made at the first start, so that
standalone mode uses the same client in the same way as a real assisted-service.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.internet.threads import deferToThreadPool

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.files.modes import make_private_directory
from image_service.common.files.private_files import restrict_to_owner
from image_service.core.errors import ConfigurationError, Unavailable
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.server.standalone.admin_operations import InfraEnvOperations
from image_service.server.standalone.assisted_api import InfraEnvApi, find_no_family
from image_service.server.standalone.certificates import prepare_certificates
from image_service.server.standalone.store import InfraEnvStore
from image_service.server.standalone.translation.family_programs import check_by_program, has_program
from image_service.server.standalone.translation.fields import needs_programs, translate_fields
from image_service.server.transport.listeners import cannot_listen, log_listening
from image_service.server.web_api.authentication import RequestGuard
from image_service.server.web_api.connections import LimitedFactory
from image_service.server.web_api.resource import ApiResource, ApiSite
from image_service.settings.parsers import Address, ListenAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IListeningPort
    from twisted.internet.posixbase import PosixReactorBase

    from image_service.core.families.live.family import LiveFamily
    from image_service.server.standalone.assisted_api import FindFamily
    from image_service.server.standalone.certificates import CertificateFiles

P = ParamSpec("P")
T = TypeVar("T")

SAMPLE_ID = "5a3b1e00-0000-4000-8000-000000000001"
_SAMPLE_IGNITION = (
    '{"ignition":{"version":"3.0.0"},"storage":{"files":[{"path":"/etc/issue.d/sample.issue","mode":420,'
    '"contents":{"source":"data:,A%20sample%20of%20image-service%0A"}}]}}'
)
_LOOPBACK = "127.0.0.1"
MAX_BODY_BYTES = 144 * 1024 * 1024  # an Ignition config as an escaped string, and a ramdisk
_MAX_UNSENT_BYTES = 4 * MAX_BODY_BYTES  # replies have the same
MAX_CONNECTIONS = 1024


@attrs.frozen
class _StartedParts:
    store: InfraEnvStore
    certificates: CertificateFiles
    api: InfraEnvApi
    operations: InfraEnvOperations


class Standalone:
    """The stand-in.

    Args:
        reactor: listens and runs threads; only a whole reactor does both.
        data_dir: ``DATA_DIR``; the stand-in uses the directory ``standalone`` in it.
        token: bearer token of the API; None: none.
        get_base_url: returns that of images, without a final slash.

    Raises:
        ConfigurationError: the address is not loopback, and there is no token.
    """

    def __init__(
        self,
        reactor: PosixReactorBase,
        data_dir: Path,
        listen: ListenAddress,
        token: str | None,
        get_base_url: Callable[[], str],
    ) -> None:
        if token is None and not listen.is_loopback:
            raise ConfigurationError("STANDALONE_LISTEN: beyond loopback STANDALONE_TOKEN is required")
        self._get_base_url = get_base_url
        self.find_family: FindFamily = find_no_family
        self._reactor = reactor
        self._directory = data_dir / "standalone"
        self._listen = listen
        self._token = None if token is None else lambda: token
        self._store_lock, self._program_lock = DeferredLock(), DeferredLock()
        self._interruption = Interruption()
        self._ports: list[IListeningPort] = []
        self._factories: list[LimitedFactory] = []
        self._running: _StartedParts | None = None

    @property
    def base_url(self) -> str:
        """The base URL for ``AssistedService``, while running."""
        return f"https://{_LOOPBACK}:{_number(self._ports[0])}"

    @property
    def ca_file(self) -> Path:
        """The certificate authority to trust for ``base_url``, while running."""
        return self._started().certificates.ca_file

    @property
    def api_url(self) -> str:
        """The base URL of the API, while running."""
        return f"http://{Address(self._listen.host, _number(self._ports[1])).netloc}"

    @property
    def operations(self) -> InfraEnvOperations:
        """Of the administrative listener, while running."""
        return self._started().operations

    async def start(self) -> None:
        """Open the store, make missing certificates, and listen.

        Raises:
            ConfigurationError: the listener cannot bind to the address.
            OSError: the directory cannot be written.
        """
        self._running = running = await self._in_thread(self._prepare)
        downloads = self.service_resource(RequestGuard(), running.api)
        guard = RequestGuard(self._token, any_host=not self._listen.is_loopback)
        api_resource = ApiResource(guard, running.api.respond)
        server_file = str(running.certificates.server_file)
        tls = DefaultOpenSSLContextFactory(server_file, server_file)
        try:
            self._ports.append(self._reactor.listenSSL(0, self._site(downloads), tls, interface=_LOOPBACK))
            self._ports.append(
                self._reactor.listenTCP(
                    self._listen.port, self._site(api_resource), interface=self._listen.host
                )
            )
        except CannotListenError as error:
            await self.stop()
            listen = self._listen
            raise cannot_listen("STANDALONE_LISTEN", listen.host, listen.port, error.socketError) from None
        log_listening(self._listen.host, _number(self._ports[1]), "HTTP: the API of the stand-in")

    async def stop(self) -> None:
        """Stop listening, close every connection, end programs, and close the store after its last call."""
        self._interruption.interrupt()
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        for factory in self._factories:
            factory.abort_all()
        self._ports.clear()
        self._factories.clear()
        if self._running is not None:
            await self._in_thread(self._running.store.close)
            self._running = None

    async def ensure_sample(self, openshift_version: str, cpu_architecture: str = "x86_64") -> str | None:
        """Register the sample infra-env if there is none; return its id, or None if only others exist.

        Args:
            openshift_version: of its base image.
            cpu_architecture: same.
        """
        running = self._started()
        ids = {infra_env.id for infra_env in await self._in_thread(running.store.list_infra_envs)}
        if not ids:
            fields = {
                "name": "sample",
                "openshift_version": openshift_version,
                "cpu_architecture": cpu_architecture,
                "ignition_config_override": _SAMPLE_IGNITION,
                "kernel_arguments": (KernelArgument(Operation.APPEND, "console=ttyS0"),),
            }
            await running.api.register(fields, SAMPLE_ID)
        return SAMPLE_ID if not ids or SAMPLE_ID in ids else None

    def service_resource(self, guard: RequestGuard, api: InfraEnvApi) -> ApiResource:
        """Return the resource of the listener for image-service; a test double overrides it."""
        return ApiResource(guard, api.respond_to_service)

    def _prepare(self) -> _StartedParts:
        make_private_directory(self._directory)
        restrict_to_owner(self._directory)
        certificates = prepare_certificates(self._directory, datetime.now(UTC))
        store = InfraEnvStore(self._directory / "infra-envs.sqlite")
        find_family: FindFamily = lambda *image: self.find_family(*image)  # noqa: E731, PLW0108 - it is set later
        parts = (store, self._in_thread, time.time, self._get_base_url)
        translate, validate = self._translate, self._validate
        return _StartedParts(
            store,
            certificates,
            InfraEnvApi(*parts, translate=translate, validate=validate, find_family=find_family),
            InfraEnvOperations(*parts, translate=translate, validate=validate, find_family=find_family),
        )

    def _site(self, resource: ApiResource) -> LimitedFactory:
        """Return a site whose connections can be aborted."""
        site = ApiSite(resource, self._reactor, MAX_BODY_BYTES)
        factory = LimitedFactory(site, self._reactor, MAX_CONNECTIONS, _MAX_UNSENT_BYTES)
        self._factories.append(factory)
        return factory

    def _started(self) -> _StartedParts:
        if self._running is None:
            raise RuntimeError("not running")
        return self._running

    def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Call a blocking function in a thread, one call after another.

        Canceling the result does not cancel the call: its changes are completed before the next call.
        """
        return self._call(self._store_lock, partial(function, *args, **kwargs))

    async def _translate(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """See `translate_fields`; the store is used meanwhile."""
        translate = partial(translate_fields, fields, self._interruption)
        return await self._by_program(translate) if needs_programs(fields) else translate()

    async def _validate(self, config: bytes, family: LiveFamily) -> None:
        """See `check_by_program`; the store is used meanwhile."""
        if has_program(family):
            await self._by_program(partial(check_by_program, config, family, self._interruption))

    async def _by_program(self, work: Callable[[], T]) -> T:
        try:
            return await self._call(self._program_lock, work)
        except Interrupted:
            raise Unavailable("the service stops") from None

    def _call(self, lock: DeferredLock, function: Callable[[], T]) -> Deferred[T]:
        result: Deferred[T] = Deferred()
        pool = self._reactor.getThreadPool()
        lock.run(lambda: deferToThreadPool(self._reactor, pool, function)).chainDeferred(result)
        return result


def _number(port: IListeningPort) -> int:
    return cast("IPv4Address | IPv6Address", port.getHost()).port
