"""The service: what serves images, made of all rooms."""

from __future__ import annotations

import secrets
import signal
from functools import partial
from typing import TYPE_CHECKING

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from image_service.app.base_images import BaseImages, configured_images
from image_service.app.lifecycle import Running
from image_service.app.ports import raise_descriptor_limit, take_ports
from image_service.app.shared_resources import SharedResources
from image_service.app.shutdown import ShutdownHandler, end_with_failure
from image_service.app.stand_in import StandIn, start_stand_in
from image_service.assisted.client import AssistedService
from image_service.assisted.customizations import Customizations
from image_service.catalog.lifecycle.status import render_statuses
from image_service.concurrency.threads import run_at_low_priority
from image_service.errors import StoreFailed
from image_service.files.page_cache import PageCache
from image_service.http.cors import Cors
from image_service.observability.metrics import Metrics
from image_service.serving.application import Application
from image_service.serving.digests import Digests
from image_service.snapshots.archive import Archive
from image_service.snapshots.boot_images import BootImages
from image_service.snapshots.cache_entry import Lifetimes
from image_service.snapshots.composer import Composer
from image_service.snapshots.encryption import SECRET_BYTES, SnapshotCipher
from image_service.snapshots.instance_secret import load_or_create_secret
from image_service.snapshots.resolver import Resolver
from image_service.snapshots.shared_infra_envs import SharedInfraEnvs
from image_service.snapshots.snapshots import Snapshots
from image_service.snapshots.sqlite import SqliteStore
from image_service.transport.access_log import AccessLog
from image_service.transport.admission import SLOT_TIMEOUT_SECONDS, Slots
from image_service.transport.context import ConnectionContext, Limits
from image_service.transport.factory import ConnectionFactory
from image_service.transport.listeners import Listeners
from image_service.transport.sendfile_threads import THREADS, SendfileThreads
from image_service.transport.tls import ServerCertificate, TlsFactory

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory
    from twisted.python.failure import Failure

    from image_service.catalog.catalog import Catalog
    from image_service.concurrency.threads import InThread
    from image_service.images.base import BaseImage
    from image_service.settings.settings import Settings

_log = Logger()

COMPOSING_THREADS = 2
DISK_THREADS = 8
STORE_THREADS = 2
"""So that reading does not wait for a large write."""
SWEEP_SECONDS = 600
UNUSED_SECONDS = 6 * 3600
"""How long a snapshot is kept that nobody uses."""


class ImageService(Service):
    """The whole service.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        standalone: with the embedded stand-in.
        sockets: which listen already, that of ``LISTEN_PORT`` first; none: the ports are to be taken.
        share: of what several processes share.
    """

    def __init__(
        self,
        reactor: EPollReactor,
        settings: Settings,
        *,
        standalone: bool,
        sockets: Iterable[socket.socket] = (),
        share: SharedResources | None = None,
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._standalone = standalone
        self._share = share or SharedResources()
        self.metrics = Metrics()
        self._sockets = list(sockets)
        self._images: BootImages | None = None
        self._factories: list[ConnectionFactory] = []
        self._listeners = Listeners(reactor)
        self.ending = ShutdownHandler(reactor, self._listeners.force)
        self._running = Running(reactor)
        self._started: Deferred[None] = succeed(None)

    def privilegedStartService(self) -> None:
        """Take the port, so that one in use ends the start at once.

        Raises:
            SystemExit: it cannot be had.
        """
        Service.privilegedStartService(self)
        self._reactor.callWhenRunning(self.ending.on_signals)
        raise_descriptor_limit()
        self._sockets = [listener for (listener,) in take_ports(self._settings, 1)]

    def startService(self) -> None:
        """Start all parts."""
        Service.startService(self)
        self._started = Deferred.fromCoroutine(self._start())
        self._started.addErrback(self._give_up)

    def stopService(self) -> Deferred[None]:
        """Stop all parts, the last one started first."""
        Service.stopService(self)
        return Deferred.fromCoroutine(self._stop())

    async def _start(self) -> None:
        settings = self._settings
        main, *beside = self._sockets
        base_url = settings.base_url(main.getsockname()[1])
        base_images = self._start_base_images()
        catalog = base_images.catalog
        mirror = await base_images.start_streams(base_url)
        stand_in = await self._stand_in(base_images, base_url)
        assisted = self._start_assisted(stand_in)
        images = await self._start_images(base_images, assisted, base_url)
        application = partial(
            Application,
            images,
            self._start_digests(),
            lambda: catalog.is_ready and not self._listeners.shutting_down,
            settings.listen.base_path,
            cors=Cors(settings.listen.allowed_origins) if settings.listen.allowed_origins else None,
            proxies=settings.listen.trusted_proxies,
            metrics=partial(self._share.page, self.metrics),
            base_images=lambda: render_statuses(catalog.statuses()),
            mirror=mirror.find,
        )
        make_factory = self._make_factories()
        plain = application(serves_isos=settings.listen.http_serves_isos)
        self._factories = [
            make_factory(application(), secure=settings.tls.is_enabled),
            *(make_factory(plain) for _ in beside),
        ]
        self.listen(self._sockets)
        self._running.push_async_callback(self._close_listeners)
        _log.info("serving at {url}", url=base_url)
        self._share.serving()
        if stand_in is not None and stand_in.sample is not None and self._share.leads:
            # On its own: it waits for the base image, and stopping must not wait for that.
            announcing = self._announce_sample(base_images.catalog, f"{base_url}/{stand_in.sample}")
            Deferred.fromCoroutine(announcing).addErrback(_tell_of_no_sample)

    def _start_base_images(self) -> BaseImages:
        entries = configured_images(self._settings, standalone=self._standalone)
        base_images = BaseImages(
            self._reactor,
            self._settings,
            self._running,
            entries,
            self._superseded,
            leads=self._share.leads,
        )
        base_images.start()
        catalog = base_images.catalog
        self.metrics.count_states(
            "base_images", lambda: [status.state.value for status in catalog.statuses()]
        )
        return base_images

    def _superseded(self, base: BaseImage) -> None:
        if self._images is not None:
            self._images.supersede(base)

    async def _stand_in(self, base_images: BaseImages, base_url: str) -> StandIn | None:
        if not self._standalone or self._share.stand_in is not None:
            return self._share.stand_in
        return await start_stand_in(
            self._reactor, self._settings, self._running, base_images.entries, base_url
        )

    def _start_assisted(self, stand_in: StandIn | None) -> AssistedService:
        settings = self._settings
        assisted = AssistedService(
            self._reactor,
            stand_in.base_url if stand_in else settings.upstream.url,
            ca_file=stand_in.ca_file if stand_in else settings.upstream.ca_file,
            insecure=settings.upstream.insecure,
            upstream_timeout_seconds=settings.upstream.timeout_seconds,
            concurrency=settings.upstream.concurrency,
            count=self.metrics.record_upstream_call,
        )
        self._running.push_async_callback(assisted.close)
        return assisted

    async def _start_images(
        self, base_images: BaseImages, assisted: AssistedService, base_url: str
    ) -> BootImages:
        settings = self._settings
        in_thread = self._running.in_pool(COMPOSING_THREADS, "compose")
        customizations = Customizations(assisted)
        archive = await self._start_archive(in_thread)
        lifetimes = Lifetimes(
            settings.snapshots.ttl_seconds,
            settings.snapshots.grace_seconds,
            settings.snapshots.max_age_seconds,
        )
        snapshots = Snapshots(
            customizations.get,
            archive,
            self._reactor,
            lifetimes=lifetimes,
            count=self.metrics.record_snapshot_event,
            coordination=self._share.coordination,
        )
        images = BootImages(
            Composer(base_images.catalog, base_images.templates, in_thread, base_url),
            Resolver(
                SharedInfraEnvs(
                    customizations,
                    archive,
                    self._reactor,
                    settings.snapshots.ttl_seconds,
                    self._share.coordination,
                ),
                self._reactor,
                settings.snapshots.ttl_seconds,
                settings.snapshots.grace_seconds,
            ),
            snapshots,
            archive,
            self._reactor,
            window_seconds=settings.snapshots.mount_window_seconds,
            held_bytes=settings.snapshots.cache_bytes,
            count=self.metrics.record_snapshot_event,
            coordination=self._share.coordination,
        )
        self.metrics.read_gauge("snapshot_held_bytes", lambda: images.held_bytes)
        self.metrics.read_gauge("snapshot_grace_active", lambda: snapshots.in_grace)
        self._images = images
        self._running.every(images.save_seconds, images.save_mounts)
        self._running.every(images.save_seconds, images.forget_superseded)
        if self._share.leads:
            self._running.every(
                SWEEP_SECONDS, lambda: archive.sweep(self._reactor.seconds() - UNUSED_SECONDS)
            )
        self._running.push_async_callback(images.save_mounts)
        return images

    async def _start_archive(self, in_thread: InThread) -> Archive:
        """Open what outlives the process."""
        data_dir = self._settings.storage.data_dir
        in_store = self._running.in_pool(STORE_THREADS, "store")
        store = SqliteStore(data_dir / "snapshots.sqlite", in_store)
        self._running.push_async_callback(store.close)
        try:
            secret = await in_store(partial(load_or_create_secret, data_dir))
        except StoreFailed as error:
            _log.error("snapshots will not outlive this process: {reason}", reason=error.detail)
            secret = secrets.token_bytes(SECRET_BYTES)
        return Archive(store, SnapshotCipher(secret), in_thread)

    def _start_digests(self) -> Digests:
        in_thread = self._running.in_pool(1, "digest")
        digests = Digests(self._reactor, lambda work: in_thread(partial(run_at_low_priority, work)))
        self._running.push_async_callback(digests.stop)
        return digests

    @staticmethod
    async def _announce_sample(catalog: Catalog, url: str) -> None:
        """Tell a URL that can be fetched at once."""
        await catalog.wait_for_attempts()
        if catalog.is_ready:
            _log.info("try it: curl -fo full.iso {url}", url=url)

    def _make_factories(self) -> Callable[..., ConnectionFactory]:
        """Return what makes factories of connections that share everything but their application."""
        settings, metrics = self._settings, self.metrics
        downloads = settings.limits.downloads
        slots = Slots(self._share.supply(downloads), downloads, SLOT_TIMEOUT_SECONDS, self._reactor, metrics)
        metrics.read_gauge("slots_limit", lambda: slots.limit)
        metrics.read_gauge("slots_taken", lambda: slots.acquired)
        metrics.read_gauge("slots_queue_length", lambda: slots.waiting)
        metrics.read_gauge("connections", lambda: self._listeners.connections)
        metrics.count_states("http_requests_inflight", self._listeners.handlers)
        make_context = partial(
            ConnectionContext,
            clock=self._reactor,
            page_cache=PageCache(self._reactor, self._running.pool(DISK_THREADS, "disk")),
            sendfile_threads=SendfileThreads(self._reactor, self._running.pool(THREADS, "sendfile")),
            access_log=AccessLog(self._reactor, each_range=settings.log.ranges == "each"),
            limits=_limits(settings),
            slots=slots,
            observer=metrics,
        )

        def make_factory(application: Application, *, secure: bool = False) -> ConnectionFactory:
            context = make_context(application=application)
            return ConnectionFactory(context, secure=secure, counter=self._share.headcount)

        return make_factory

    def listen(self, sockets: Iterable[socket.socket]) -> list[IListeningPort]:
        """Accept on ports that were taken at the start.

        Args:
            sockets: which listen, of each port one, in their order; are closed.

        Returns:
            what accepts, for ``ignore``.
        """
        return list(map(self._listen, sockets, self._factories))

    def ignore(self, ports: Iterable[IListeningPort]) -> None:
        """Accept no more.

        Args:
            ports: what ``listen`` gave.
        """
        for port in ports:
            self._listeners.remove(port)

    def _listen(self, listener: socket.socket, connections: ConnectionFactory) -> IListeningPort:
        factory = self._with_tls(connections) if connections.secure else connections
        port: IListeningPort = self._reactor.adoptStreamPort(listener.fileno(), listener.family, factory)
        listener.close()  # the reactor has a duplicate; with both, stopping to listen would stop nothing
        self._listeners.add(port, connections)
        return port

    def _with_tls(self, connections: ConnectionFactory) -> IProtocolFactory:
        key_file, certificate_file = self._settings.tls.key_file, self._settings.tls.certificate_file
        if key_file is None or certificate_file is None:
            return connections
        certificate = ServerCertificate(key_file, certificate_file, self._reactor)
        return TlsFactory(certificate, isClient=False, wrappedFactory=connections)

    async def _close_listeners(self) -> None:
        _log.info("going away")
        sigterm = self.ending.number == signal.SIGTERM  # else nobody balances load, and a person waits
        delay_seconds = self._settings.process.drain_delay_seconds if sigterm else 0
        await self._listeners.close(delay_seconds, self._settings.process.drain_timeout_seconds)

    async def _stop(self) -> None:
        await self._started
        await self._running.aclose()
        for listener in self._sockets:
            listener.close()
        _log.info("stopped")

    def _give_up(self, failure: Failure) -> None:
        _log.failure("the service cannot start", failure=failure)
        end_with_failure(self._reactor)


def _limits(settings: Settings) -> Limits:
    return Limits(
        handshake_seconds=settings.limits.handshake_seconds,
        head_seconds=settings.limits.head_seconds,
        idle_seconds=settings.limits.idle_seconds,
        stall_seconds=settings.limits.stall_seconds,
        connections=settings.limits.connections,
    )


def _tell_of_no_sample(failure: Failure) -> None:
    _log.failure("no sample", failure=failure)
