"""The composition root: options, and the service made of all rooms. Only this module knows the reactor."""

from __future__ import annotations

import os
import resource
import secrets
import signal
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

import attrs
from twisted.application.service import Service
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.error import ReactorNotRunning
from twisted.internet.task import LoopingCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.threadpool import ThreadPool

from image_service.assisted.archive import Archive
from image_service.assisted.client import AssistedService
from image_service.assisted.customizations import Customizations
from image_service.assisted.instance_secret import load_or_create_secret
from image_service.assisted.sealing import SECRET_BYTES, Vault
from image_service.assisted.snapshots import Lifetimes, Snapshots
from image_service.assisted.sqlite_store import SqliteStore
from image_service.catalog.backoff import Backoff
from image_service.catalog.catalog import Catalog
from image_service.catalog.configured_http import ConfiguredHttp
from image_service.catalog.data_dir import DataDir
from image_service.catalog.download import Downloader
from image_service.catalog.following import Following
from image_service.catalog.interruption import Interruption
from image_service.catalog.mirror import Mirror
from image_service.catalog.mirrored import Preparation
from image_service.catalog.signature import KeyRing
from image_service.catalog.status import render_statuses
from image_service.catalog.streams import Streams
from image_service.catalog.templates import Templates
from image_service.config import Settings
from image_service.errors import ConfigurationError, StoreFailed
from image_service.http.access_log import AccessLog
from image_service.http.admission import PATIENCE_SECONDS, Slots
from image_service.http.application import Application
from image_service.http.boot_images import BootImages
from image_service.http.composer import Composer
from image_service.http.cors import Cors
from image_service.http.digests import Digests, in_background
from image_service.http.factory import ConnectionFactory, Limits
from image_service.http.listeners import Listeners, bind
from image_service.http.page_cache import PageCache
from image_service.http.resolver import Resolver
from image_service.http.tls import ServerCertificate, TlsFactory
from image_service.observe.metrics import Metrics
from image_service.os_images import FULL_ISO, OsImage
from image_service.standalone.sample import (
    SAMPLE_ARCHITECTURE,
    SAMPLE_OPENSHIFT_VERSION,
    SAMPLE_VERSION,
    unpack_sample,
)
from image_service.standalone.service import Standalone

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IProtocolFactory
    from twisted.python.failure import Failure

    from image_service.assisted.archive import InThread
    from image_service.images.base import BaseImage

_log = Logger()

T = TypeVar("T")

COMPOSING_THREADS = 2
DISK_THREADS = 8
STORE_THREADS = 2
"""So that reading does not wait for a large write."""
SAVE_SECONDS = 10
"""How often it is noted who is reading what: less than any mount's window."""
COLLECT_SECONDS = 600
"""How often it is said which base images are wanted, and what nobody wants is removed."""
SWEEP_SECONDS = 600
HASTE_SECONDS = 2
"""What is left, at the second signal, to what cannot be interrupted, such as the look-up of a name."""
UNUSED_SECONDS = 6 * 3600
"""How long a snapshot is kept that nobody uses."""


class Options(usage.Options):
    """``twistd image-service``: everything but the mode comes from the environment."""

    optFlags = [  # noqa: RUF012 - Twisted's way to declare
        ["standalone", None, "with the embedded stand-in for assisted-service"],
    ]
    settings: Settings

    def postOptions(self) -> None:
        """Read the environment, and tell every fault of it before anything starts.

        Raises:
            UsageError: it makes no configuration.
        """
        try:
            self.settings = Settings.from_environment(os.environ, standalone=bool(self["standalone"]))
        except ConfigurationError as error:
            raise usage.UsageError(f"the configuration is not valid:\n{error.detail}") from error


def makeService(options: Options) -> Service:
    """Make the service.

    Args:
        options: parsed.

    Returns:
        not yet started.
    """
    from twisted.internet import reactor  # noqa: PLC0415, TID251 - here and nowhere else

    return ImageService(
        cast("EPollReactor", reactor), options.settings, standalone=bool(options["standalone"])
    )


class ImageService(Service):
    """The whole service.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        standalone: with the embedded stand-in.
    """

    def __init__(self, reactor: EPollReactor, settings: Settings, *, standalone: bool) -> None:
        self._reactor = reactor
        self._settings = settings
        self._standalone = standalone
        self._metrics = Metrics()
        self._data_dir = DataDir(settings.data_dir, settings.retention, settings.data_dir_max_bytes)
        self._sockets: list[socket.socket] = []
        self._following: Following | None = None
        self._images: BootImages | None = None
        self._listeners = Listeners(reactor)
        self._told_to_end = False
        self._drain_delay = 0.0
        self._running = AsyncExitStack()
        self._started: Deferred[None] = succeed(None)

    def privilegedStartService(self) -> None:
        """Take the port, so that one in use ends the start at once.

        Raises:
            SystemExit: it cannot be had.
        """
        Service.privilegedStartService(self)
        self._reactor.callWhenRunning(self._end_well_on_signals)
        _raise_descriptor_limit()
        for port in (self._settings.listen_port, self._settings.http_listen_port):
            if port is not None:
                self._take(port)

    def _take(self, port: int) -> None:
        try:
            self._sockets.append(bind(port))
        except OSError as error:
            _log.critical("port {port}: {reason}", port=port, reason=error.strerror)
            raise SystemExit(1) from None

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
        base_url = attrs.evolve(settings, listen_port=main.getsockname()[1]).base_url
        templates = self._start_templates()
        http = ConfiguredHttp.from_settings(settings)
        catalog = self._start_catalog(templates, http)
        mirror = await self._start_streams(catalog, http, base_url)
        standalone = await self._start_standalone(base_url) if self._standalone else None
        assisted = self._start_assisted(standalone)
        images = await self._start_images(catalog, templates, assisted, base_url)
        application = partial(
            Application,
            images,
            self._start_digests(),
            lambda: catalog.ready and not self._listeners.leaving,
            settings.base_path,
            cors=Cors(settings.allowed_domains) if settings.allowed_domains else None,
            proxies=settings.trusted_proxies,
            metrics=self._metrics.render,
            base_images=lambda: render_statuses(catalog.states()),
            mirror=mirror.find,
        )
        connections = self._connections()
        self._listen(main, connections(application=application(), secure=settings.https))
        for listener in beside:
            plain = application(serves_isos=settings.http_serves_images)
            self._listen(listener, connections(application=plain))
        self._running.push_async_callback(self._close_listeners)
        _log.info("serving at {url}", url=base_url)
        if standalone is not None:
            # On its own: it waits for the base image, and stopping must not wait for that.
            announcing = Deferred.fromCoroutine(self._announce_sample(standalone, catalog, base_url))
            announcing.addErrback(lambda failure: _log.failure("no sample", failure=failure))

    async def _start_images(
        self, catalog: Catalog, templates: Templates, assisted: AssistedService, base_url: str
    ) -> BootImages:
        settings = self._settings
        in_thread = self._in_pool(COMPOSING_THREADS, "compose")
        customizations = Customizations(assisted)
        archive = await self._start_archive(in_thread)
        lifetimes = Lifetimes(settings.snapshot_ttl, settings.snapshot_grace, settings.snapshot_max_age)
        snapshots = Snapshots(
            customizations.get, archive, self._reactor, lifetimes=lifetimes, count=self._metrics.snapshot
        )
        images = BootImages(
            Composer(catalog, templates, in_thread, base_url),
            Resolver(customizations, self._reactor, settings.snapshot_ttl, settings.snapshot_grace),
            snapshots,
            archive,
            self._reactor,
            window_seconds=settings.mount_window,
            held_bytes=settings.snapshot_cache_bytes,
            count=self._metrics.snapshot,
        )
        self._metrics.watch("snapshot_held_bytes", lambda: images.held_bytes)
        self._metrics.watch("snapshot_grace_active", lambda: snapshots.in_grace)
        self._images = images
        self._every(SAVE_SECONDS, images.save_mounts)
        self._every(SAVE_SECONDS, images.forget_superseded)
        self._every(SWEEP_SECONDS, lambda: archive.sweep(self._reactor.seconds() - UNUSED_SECONDS))
        self._running.push_async_callback(images.save_mounts)
        return images

    async def _start_archive(self, in_thread: InThread) -> Archive:
        """Open what outlives the process."""
        data_dir = self._settings.data_dir
        in_store = self._in_pool(STORE_THREADS, "store")
        store = SqliteStore(data_dir / "snapshots.sqlite", in_store)
        self._running.push_async_callback(store.close)
        try:
            secret = await in_store(partial(load_or_create_secret, data_dir))
        except StoreFailed as error:
            _log.error("snapshots will not outlive this process: {reason}", reason=error.detail)
            secret = secrets.token_bytes(SECRET_BYTES)
        return Archive(store, Vault(secret), in_thread)

    def _every(self, seconds: float, work: Callable[[], Awaitable[object] | None]) -> None:
        """Do something again and again until the end; a failure is logged and ends nothing."""

        def attempt() -> Deferred[object]:
            done = maybeDeferred(work)
            return done.addErrback(lambda failure: _log.failure("a regular task failed", failure=failure))

        loop = LoopingCall(attempt)
        loop.clock = self._reactor
        loop.start(seconds, now=False)
        self._running.callback(loop.stop)

    def _start_digests(self) -> Digests:
        in_thread = self._in_pool(1, "digest")
        digests = Digests(self._reactor, lambda work: in_thread(partial(in_background, work)))
        self._running.push_async_callback(digests.stop)
        return digests

    def _start_templates(self) -> Templates:
        settings = self._settings
        scratch = settings.data_temp_dir or settings.data_dir
        return Templates(self._reactor, self._reactor, self._data_dir, scratch)

    def _start_catalog(self, templates: Templates, http: ConfiguredHttp) -> Catalog:
        settings = self._settings
        catalog = Catalog(
            self._reactor,
            self._reactor,
            self._os_images(),
            self._data_dir,
            Downloader(http).fetch,
            keys=KeyRing.read(settings.signing_keys) if settings.signing_keys else None,
            derive=templates.derive,
            downloads=settings.download_concurrency,
            backoff=Backoff(settings.download_retry_min, settings.download_retry_max),
            any_is_enough=settings.ready_when == "any",
            changed=self._images_changed,
            superseded=self._superseded,
        )
        catalog.start()
        in_thread = self._in_pool(1, "data directory")
        self._every(COLLECT_SECONDS, lambda: in_thread(partial(self._data_dir.collect, catalog.kept)))
        self._metrics.watch_each("base_images", lambda: [status.state.value for status in catalog.states()])
        self._running.push_async_callback(catalog.stop)
        self._running.push_async_callback(templates.stop)  # before the files that it reads are closed
        return catalog

    async def _start_streams(self, catalog: Catalog, http: ConfiguredHttp, base_url: str) -> Mirror:
        settings = self._settings
        streams = Streams(
            self._reactor,
            self._in_pool(1, "streams"),
            http,
            settings.coreos_streams,
            settings.data_dir,
            refresh_seconds=settings.stream_refresh,
        )
        mirror = self._start_mirror(streams, catalog, http, base_url)
        self._following = following = Following(self._os_images(), catalog, streams, mirror)
        self._running.push_async_callback(streams.stop)
        await streams.start(following.offers_changed)
        self._running.callback(self._stop_following)
        return mirror

    def _stop_following(self) -> None:
        """What ends now changes images for the last time."""
        self._following = None

    def _superseded(self, base: BaseImage) -> None:
        if self._images is not None:
            self._images.supersede(base)

    def _images_changed(self) -> None:
        if self._following is not None:
            self._following.images_changed()

    def _start_mirror(
        self, streams: Streams, catalog: Catalog, http: ConfiguredHttp, base_url: str
    ) -> Mirror:
        in_thread, interruption = self._in_pool(1, "mirror"), Interruption()
        preparation = Preparation(self._settings.data_dir, http, interruption, self._data_dir.claim)
        mirror = Mirror(
            streams,
            catalog.find,
            lambda work: in_thread(partial(in_background, work)),
            preparation.prepare,
            base_url,
        )

        self._every(self._settings.stream_refresh, mirror.update)
        self._running.push_async_callback(mirror.settled)
        self._running.callback(interruption.interrupt)
        return mirror

    def _os_images(self) -> tuple[OsImage, ...]:
        """What is configured; standing alone without a configuration, the sample."""
        if self._standalone and not self._settings.os_images and not self._settings.coreos_streams:
            return (_sample(self._settings.data_dir),)
        return self._settings.os_images

    async def _start_standalone(self, base_url: str) -> Standalone:
        settings = self._settings
        standalone = Standalone(
            self._reactor, settings.data_dir, settings.standalone_listen, settings.standalone_token, base_url
        )
        await standalone.start()
        self._running.push_async_callback(standalone.stop)
        return standalone

    def _start_assisted(self, standalone: Standalone | None) -> AssistedService:
        settings = self._settings
        assisted = AssistedService(
            self._reactor,
            standalone.base_url if standalone else settings.assisted_service_url,
            ca_file=standalone.ca_file if standalone else settings.assisted_service_ca_file,
            insecure=settings.insecure_skip_verify,
            upstream_timeout_seconds=settings.upstream_timeout,
            concurrency=settings.upstream_concurrency,
            count=self._metrics.upstream,
        )
        self._running.push_async_callback(assisted.close)
        return assisted

    async def _announce_sample(self, standalone: Standalone, catalog: Catalog, base_url: str) -> None:
        """Register an infra-env where there is none, and tell a URL that can be fetched at once."""
        image = next((image for image in self._os_images() if image.image_type == FULL_ISO), None)
        if image is None:
            return
        infra_env = await standalone.ensure_sample(image.openshift_versions[0], image.cpu_architecture)
        await catalog.settled()
        if infra_env is not None and catalog.ready:
            path = f"byid/{infra_env}/{image.version}/{image.cpu_architecture}/full.iso"
            _log.info("try it: curl -fo full.iso {url}", url=f"{base_url}/{path}")

    def _connections(self) -> Callable[..., ConnectionFactory]:
        """Give what makes factories of connections that share everything but their application."""
        settings, metrics = self._settings, self._metrics
        downloads = settings.max_concurrent_requests
        slots = Slots(downloads, downloads, PATIENCE_SECONDS, self._reactor, metrics)
        metrics.watch("slots_limit", lambda: slots.limit)
        metrics.watch("slots_taken", lambda: slots.taken)
        metrics.watch("slots_queue_length", lambda: slots.waiting)
        metrics.watch("connections", lambda: self._listeners.connections)
        metrics.watch_each("http_requests_inflight", self._listeners.handlers)
        return partial(
            ConnectionFactory,
            clock=self._reactor,
            page_cache=PageCache(self._reactor, self._start_pool(DISK_THREADS, "disk")),
            access_log=AccessLog(self._reactor, each_range=settings.log_ranges == "each"),
            limits=_limits(settings),
            slots=slots,
            observer=metrics,
        )

    def _listen(self, listener: socket.socket, connections: ConnectionFactory) -> None:
        """Accept on a port that was taken at the start."""
        factory = self._with_tls(connections) if connections.secure else connections
        port = self._reactor.adoptStreamPort(listener.fileno(), listener.family, factory)
        listener.close()  # the reactor has a duplicate; with both, stopping to listen would stop nothing
        self._listeners.add(port, connections)

    def _with_tls(self, connections: ConnectionFactory) -> IProtocolFactory:
        key_file, certificate_file = self._settings.https_key_file, self._settings.https_cert_file
        if key_file is None or certificate_file is None:
            return connections
        certificate = ServerCertificate(key_file, certificate_file, self._reactor)
        return TlsFactory(certificate, isClient=False, wrappedFactory=connections)

    def _in_pool(self, threads: int, name: str) -> Callable[[Callable[[], T]], Deferred[T]]:
        """Run work in threads of their own."""
        return partial(deferToThreadPool, self._reactor, self._start_pool(threads, name))

    def _start_pool(self, threads: int, name: str) -> ThreadPool:
        pool = ThreadPool(0, threads, name)
        pool.start()
        self._running.callback(pool.stop)
        return pool

    def _end_well_on_signals(self) -> None:
        """Let SIGTERM and SIGINT end the process with status 0; twistd would send itself the signal again."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, _frame: object) -> None:
        if self._told_to_end:
            signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
            signal.alarm(HASTE_SECONDS)
        self._reactor.callFromThread(self._end, number)

    def _end(self, number: int) -> None:
        """Begin to end, or, when told a second time, end at once."""
        if self._told_to_end:
            self._listeners.hasten()
            return
        self._told_to_end = True
        if number == signal.SIGTERM:  # else nobody balances load, and a person waits
            self._drain_delay = self._settings.drain_delay
        with suppress(ReactorNotRunning):
            self._reactor.stop()

    async def _close_listeners(self) -> None:
        _log.info("going away")
        await self._listeners.close(self._drain_delay, self._settings.drain_timeout)

    async def _stop(self) -> None:
        await self._started
        await self._running.aclose()
        for listener in self._sockets:
            listener.close()
        _log.info("stopped")

    def _give_up(self, failure: Failure) -> None:
        _log.failure("the service cannot start", failure=failure)
        reactor = self._reactor
        # twistd knows no exit status of its own; this comes behind everything that stops in order.
        reactor.addSystemEventTrigger("after", "shutdown", os._exit, 1)
        reactor.callWhenRunning(reactor.stop)


def _limits(settings: Settings) -> Limits:
    return Limits(
        handshake_seconds=settings.handshake_timeout,
        head_seconds=settings.head_timeout,
        idle_seconds=settings.idle_timeout,
        stall_seconds=settings.stall_timeout,
        connections=settings.max_connections,
    )


def _sample(data_dir: Path) -> OsImage:
    data_dir.mkdir(parents=True, exist_ok=True)
    path = unpack_sample(data_dir)
    return OsImage(
        version=SAMPLE_VERSION,
        cpu_architecture=SAMPLE_ARCHITECTURE,
        image_type=FULL_ISO,
        openshift_versions=(SAMPLE_OPENSHIFT_VERSION,),
        url=path.resolve().as_uri(),
    )


def _raise_descriptor_limit() -> None:
    """Every connection is a descriptor: take as many as the system lets this process have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
