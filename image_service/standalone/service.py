"""The embedded stand-in for assisted-service: two listeners over one store.

One listener is for people: plain HTTP, the whole API, guarded. The other is what image-service itself asks:
HTTPS on a free port of loopback, with a certificate of an authority made at the first start, so that
standing alone takes the same way through the same client as asking a real assisted-service.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, ParamSpec, TypeVar, cast

import attrs
from twisted.internet.defer import Deferred, DeferredLock, maybeDeferred
from twisted.internet.error import CannotListenError
from twisted.internet.ssl import DefaultOpenSSLContextFactory
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.protocols.policies import WrappingFactory

from image_service.coreos.kargs import KernelArgument, Operation
from image_service.errors import ConfigurationError
from image_service.management.authentication import Guard
from image_service.management.resource import ApiResource, ApiSite
from image_service.settings.parsers import Address, ListenAddress
from image_service.standalone.api import Api
from image_service.standalone.certificates import prepare_certificates
from image_service.standalone.double import Call, DownloadsResource, Fault
from image_service.standalone.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.address import IPv4Address, IPv6Address
    from twisted.internet.interfaces import IListeningPort
    from twisted.internet.posixbase import PosixReactorBase

    from image_service.standalone.certificates import CertificateFiles

P = ParamSpec("P")
T = TypeVar("T")

SAMPLE_ID = "5a3b1e00-0000-4000-8000-000000000001"
_SAMPLE_IGNITION = (
    '{"ignition":{"version":"3.0.0"},"storage":{"files":[{"path":"/etc/issue.d/sample.issue","mode":420,'
    '"contents":{"source":"data:,A%20sample%20of%20image-service%0A"}}]}}'
)
_LOOPBACK = "127.0.0.1"


@attrs.frozen
class _Running:
    store: Store
    certificates: CertificateFiles
    api: Api


class Standalone:
    """The stand-in.

    Args:
        reactor: listens and runs threads; only a whole reactor does both.
        data_dir: ``DATA_DIR``; a directory ``standalone`` in it is made and used.
        listen: where people reach the API.
        token: bearer token that people need; None: none.
        image_service_base_url: what the URLs of images begin with, without a slash at the end; may be set
            later, when the port is known.

    Attributes:
        calls: how often image-service asked, by infra-env and call.
        faults: what is to be different about the answers to a call, for tests.

    Raises:
        ConfigurationError: without a token only loopback is listened on.
    """

    _log = Logger()

    def __init__(
        self,
        reactor: PosixReactorBase,
        data_dir: Path,
        listen: ListenAddress,
        token: str | None,
        image_service_base_url: str,
    ) -> None:
        if token is None and not listen.is_loopback:
            raise ConfigurationError("STANDALONE_LISTEN: beyond loopback STANDALONE_TOKEN is required")
        self.image_service_base_url = image_service_base_url
        self.calls: Counter[tuple[str, Call]] = Counter()
        self.faults: dict[Call, Fault] = {}
        self._reactor = reactor
        self._directory = data_dir / "standalone"
        self._listen = listen
        self._token = token
        self._lock = DeferredLock()
        self._ports: list[IListeningPort] = []
        self._factories: list[WrappingFactory] = []
        self._running: _Running | None = None

    @property
    def base_url(self) -> str:
        """What ``AssistedService`` asks, while running."""
        return f"https://{_LOOPBACK}:{_number(self._ports[0])}"

    @property
    def ca_file(self) -> Path:
        """The certificate authority to trust for ``base_url``, while running."""
        return self._started().certificates.ca_file

    @property
    def api_url(self) -> str:
        """Where people find the API, while running: scheme, address and port."""
        return f"http://{Address(self._listen.host, _number(self._ports[1])).netloc}"

    async def start(self) -> None:
        """Open the store, make certificates where they are needed, and listen.

        Raises:
            ConfigurationError: the address cannot be listened on.
            OSError: the directory cannot be written.
        """
        self._running = running = await self._in_thread(self._prepare)
        downloads = DownloadsResource(Guard(), running.api, self.calls, self.faults, self._reactor)
        people = ApiResource(Guard(self._token, any_host=not self._listen.is_loopback), running.api.answer)
        server_file = str(running.certificates.server_file)
        tls = DefaultOpenSSLContextFactory(server_file, server_file)
        try:
            self._ports.append(self._reactor.listenSSL(0, self._site(downloads), tls, interface=_LOOPBACK))
            self._ports.append(
                self._reactor.listenTCP(self._listen.port, self._site(people), interface=self._listen.host)
            )
        except CannotListenError as error:
            await self.stop()
            raise ConfigurationError(f"STANDALONE_LISTEN: {error}") from None
        self._log.info("the stand-in's API is at {url}", url=self.api_url)

    async def stop(self) -> None:
        """Stop listening, close every connection, and close the store once its last call has ended."""
        for port in self._ports:
            await maybeDeferred(port.stopListening)
        for factory in self._factories:
            for protocol in tuple(factory.protocols):
                protocol.transport.abortConnection()
        self._ports.clear()
        self._factories.clear()
        if self._running is not None:
            await self._in_thread(self._running.store.close)
            self._running = None

    async def ensure_sample(self, openshift_version: str, cpu_architecture: str = "x86_64") -> str | None:
        """Register the sample infra-env at the first start.

        Args:
            openshift_version: of the base image that it is for.
            cpu_architecture: of the same.

        Returns:
            ``SAMPLE_ID``; None where the sample is not there because others are.
        """
        running = self._started()
        ids = {infra_env.id for infra_env in await self._in_thread(running.store.list_all)}
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

    def _prepare(self) -> _Running:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificates = prepare_certificates(self._directory, datetime.now(UTC))
        store = Store(self._directory / "infra-envs.sqlite")
        api = Api(store, self._in_thread, self._reactor.seconds, lambda: self.image_service_base_url)
        return _Running(store, certificates, api)

    def _site(self, resource: ApiResource) -> WrappingFactory:
        """A site whose connections are known, so that they can be closed."""
        factory = WrappingFactory(ApiSite(resource, self._reactor))
        factory.noisy = False
        self._factories.append(factory)
        return factory

    def _started(self) -> _Running:
        if self._running is None:
            raise RuntimeError("not running")
        return self._running

    def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Deferred[T]:
        """Call what blocks in a thread, one call after another.

        Cancelling the result does not cancel the call: what it began to change is changed, and the next
        call does not overtake it.
        """
        result: Deferred[T] = Deferred()
        pool = self._reactor.getThreadPool()
        calling = self._lock.run(lambda: deferToThreadPool(self._reactor, pool, function, *args, **kwargs))
        calling.chainDeferred(result)
        return result


def _number(port: IListeningPort) -> int:
    return cast("IPv4Address | IPv6Address", port.getHost()).port
