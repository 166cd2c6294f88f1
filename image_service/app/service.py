"""The composition root: builds the service of its packages."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.app.process_service import ProcessService
from image_service.app.standalone_mode import announce_sample, configured_images, start_stand_in
from image_service.app.upstream import connect_assisted_service
from image_service.catalog.build import BaseImages, build_base_images
from image_service.catalog.download.origin_client import OriginClient
from image_service.catalog.lifecycle.status import render_statuses
from image_service.concurrency.coordination import Coordination
from image_service.observability.metrics import Metrics
from image_service.serving.build import build_request_handlers
from image_service.snapshots.build import build_boot_images
from image_service.snapshots.image_builder import ImageBuilder
from image_service.streams.build import start_streams
from image_service.transport.admission.counts import Counts
from image_service.transport.admission.slot_pool import LocalSlotPool, SlotPool
from image_service.transport.factory import ConnectionFactory, build_transport
from image_service.transport.listeners import Listeners
from image_service.transport.tls import with_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable

    from twisted.internet.defer import Deferred
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory

    from image_service.app.standalone_mode import StandIn
    from image_service.catalog.catalog import Catalog
    from image_service.serving.request_handler import ImageRequestHandler, Page
    from image_service.settings.settings import Settings
    from image_service.snapshots.boot_images import BootImages
    from image_service.transport.admission.slots import Slots

_log = Logger()


@attrs.frozen(kw_only=True)
class SharedResources:
    """Resources that the processes of the service share; the defaults are those of a single process."""

    is_leader: bool = True  # in the one process that does the work that is done once
    counts: Counts = attrs.field(factory=Counts)  # of slots and connections
    slot_pool: Callable[[int, Counts], SlotPool] = LocalSlotPool  # makes the pool, by its number of slots
    coordination: Coordination = attrs.field(factory=Coordination)
    stand_in: StandIn | None = None  # in another process; None: in standalone mode it is started here
    metrics_page: Callable[[Metrics], Page | Deferred[Page]] = Metrics.render  # of all processes
    serving: Callable[[], None] = lambda: None  # is called when connections are accepted


class ImageService(ProcessService):
    """The whole service, in one process.

    Args:
        sockets: listening, that of ``LISTEN_PORT`` first; none: the ports are bound at the start.
    """

    def __init__(
        self,
        reactor: EPollReactor,
        settings: Settings,
        *,
        standalone: bool,
        sockets: Iterable[socket.socket] = (),
        shared: SharedResources | None = None,
    ) -> None:
        self._listeners = Listeners(reactor)
        super().__init__(reactor, settings, self._listeners.force, standalone=standalone)
        self._shared = shared or SharedResources()
        self._ports = [[each] for each in sockets]
        self._factories: list[tuple[ConnectionFactory, IProtocolFactory]] = []
        self.metrics = Metrics()

    def adopt(self, sockets: Iterable[socket.socket]) -> list[IListeningPort]:
        """Accept the connections of listening sockets, one of each port, in order; the sockets are closed."""
        adopt = partial(self._listeners.adopt, self._reactor)
        return [adopt(each, *factories) for each, factories in zip(sockets, self._factories, strict=True)]

    def release(self, ports: Iterable[IListeningPort]) -> None:
        """Accept no more connections on ports that ``adopt`` returned; open connections stay."""
        for port in ports:
            self._listeners.remove(port)

    async def start_parts(self) -> None:
        """Start the parts in the order in which they need each other; they stop in reverse order."""
        settings, shared, base_url = self._settings, self._shared, self.base_url
        http = OriginClient.from_settings(settings.download, settings.source_urls)
        base_images = build_base_images(
            self._parts,
            settings.catalog,
            settings.storage,
            settings.download,
            http,
            configured=configured_images(settings, standalone=self._standalone),
            is_leader=shared.is_leader,
        )
        catalog = base_images.catalog
        mirror = await start_streams(
            self._parts,
            settings.streams,
            http,
            base_images,
            directory=settings.storage.data_dir,
            base_url=base_url,
            is_leader=shared.is_leader,
        )
        stand_in = shared.stand_in
        if self._standalone and stand_in is None:
            stand_in = await start_stand_in(self._parts, settings, base_images.configured, base_url)
        images = await self._build_boot_images(base_images, stand_in, base_url)
        base_images.options.on_superseded = images.supersede
        main, plain = build_request_handlers(
            self._parts,
            settings.listen,
            images,
            is_ready=lambda: catalog.is_ready and not self._listeners.shutting_down,
            metrics=partial(shared.metrics_page, self.metrics),
            base_images=lambda: render_statuses(catalog.statuses()),
            mirror=mirror.find_boot_image,
        )
        transport = build_transport(
            self._parts,
            settings,
            slot_pool=shared.slot_pool(settings.limits.downloads, shared.counts),
            observer=self.metrics,
        )
        self._add_gauges(catalog, images, transport.slots, (main, plain))
        factory = transport.make_factory(main, secure=settings.tls.is_enabled)
        self._factories = [(factory, with_tls(factory, settings.tls, self._reactor))]
        if len(self._ports) > 1:
            plain_factory = transport.make_factory(plain)
            self._factories.append((plain_factory, plain_factory))
        self.adopt(listener for (listener,) in self._ports)
        self._parts.push_async_callback(self._close_listeners)
        _log.info("serving at {url}", url=base_url)
        shared.serving()
        if stand_in is not None and stand_in.sample is not None and shared.is_leader:
            announce_sample(catalog, f"{base_url}/{stand_in.sample}")

    async def _build_boot_images(
        self, base_images: BaseImages, stand_in: StandIn | None, base_url: str
    ) -> BootImages:
        settings = self._settings
        return await build_boot_images(
            self._parts,
            settings.snapshots,
            settings.storage.data_dir,
            connect_assisted_service(self._parts, settings.upstream, stand_in, self.metrics),
            self._shared.coordination,
            make_builder=lambda in_thread: ImageBuilder(
                base_images.catalog, base_images.derived, in_thread, base_url
            ),
            is_leader=self._shared.is_leader,
            count=self.metrics.record_snapshot_event,
        )

    def _add_gauges(
        self, catalog: Catalog, images: BootImages, slots: Slots, handlers: Iterable[ImageRequestHandler]
    ) -> None:
        metrics, listeners = self.metrics, self._listeners
        metrics.count_states("base_images", lambda: [status.state.value for status in catalog.statuses()])
        metrics.read_gauge("snapshot_held_bytes", lambda: images.cache.held_bytes)
        metrics.read_gauges(
            "cache_bytes",
            lambda: {**images.cache_bytes(), "routes": sum(each.routes_bytes for each in handlers)},
        )
        metrics.read_gauge("snapshot_grace_active", lambda: images.snapshots.in_grace)
        metrics.read_gauge("slots_limit", lambda: slots.limit)
        metrics.read_gauge("slots_taken", lambda: slots.acquired)
        metrics.read_gauge("slots_queue_length", lambda: slots.waiting)
        metrics.read_gauge("connections", lambda: listeners.connections)
        metrics.count_states("http_requests_inflight", listeners.handlers)

    async def _close_listeners(self) -> None:
        _log.info("shutting down")
        process = self._settings.process
        # Only SIGTERM comes from a platform with a load balancer; at SIGINT a person waits.
        is_terminated = self.shutdown.signal_number == signal.SIGTERM
        delay_seconds = process.drain_delay_seconds if is_terminated else 0
        await self._listeners.close(delay_seconds, process.drain_timeout_seconds)

    async def stop_parts(self) -> None:
        """Stop the parts in reverse order."""
        await self._parts.aclose()
        self.close_sockets()
