"""The composition root: builds the service of its packages."""

from __future__ import annotations

import signal
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import succeed
from twisted.logger import Logger

from image_service.app.admin.process_status import ProcessStatus
from image_service.app.admin.state import ProcessState
from image_service.app.boot_images import start_boot_images
from image_service.app.gauges import add_gauges, add_leader_gauges
from image_service.app.process_service import ProcessService
from image_service.app.remote_gauges import add_remote_gauges
from image_service.app.shared_resources import SharedResources
from image_service.app.signing import start_signing
from image_service.app.standalone_mode import announce_sample, configured_images, start_stand_in
from image_service.common.files.reloaded import prepare_changed
from image_service.server.admin.activity import ProcessActivity
from image_service.server.admin.links_api import LocalLinks
from image_service.server.catalog.build_catalog import build_base_images
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.status import count_ready
from image_service.server.observability.log import set_level
from image_service.server.observability.metrics import Metrics
from image_service.server.serving.build_handlers import build_request_handlers
from image_service.server.streams.build_streams import start_streams
from image_service.server.transport.factory import ConnectionFactory, build_transport
from image_service.server.transport.listeners import Listeners
from image_service.server.transport.tls.certificate import ServerCertificate
from image_service.server.transport.tls_protocol import TlsFactory

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IListeningPort, IProtocolFactory

    from image_service.app.reload import Configuration
    from image_service.settings.settings import Settings

_log = Logger()

STATUS_SECONDS = 1.0
"""Interval at which the service manager learns how many base images are ready, if that has changed."""


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
        self.activity = ProcessActivity(
            reactor.seconds,
            self._listeners.record_progress,
            lambda: (self.metrics.count_requests(), sum(attrs.astuple(self.metrics.sent))),
        )

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
        await super().start_parts()
        settings, shared, get_base_url = self._settings, self._shared, self.base_url.get
        self._http = http = OriginClient.from_settings(
            settings.download, settings.source_urls, settings.proxies, settings.registries
        )
        base_images = build_base_images(
            self._parts,
            settings.catalog,
            settings.storage,
            settings.download,
            http,
            settings.remote,
            settings.s3.options,
            configured=configured_images(settings, standalone=self._standalone),
            is_leader=shared.is_leader,
        )
        catalog = base_images.catalog
        self._sync = sync = await start_streams(
            self._parts,
            settings.streams,
            http,
            base_images,
            directory=settings.storage.data_dir,
            get_base_url=get_base_url,
            is_leader=shared.is_leader,
        )
        stand_in, infra_envs = shared.stand_in, None
        if self._standalone and stand_in is None:
            stand_in, infra_envs = await start_stand_in(
                self._parts,
                settings,
                base_images.configured,
                get_base_url,
                find_family=lambda *image: succeed(catalog.find_family(*image)),
            )
        built, links, upstream = await start_boot_images(
            self._parts,
            settings,
            shared,
            self.metrics,
            base_images=base_images,
            stand_in=stand_in,
            base_url=self.base_url,
            activity=self.activity,
        )
        images, database = built.images, built.monitor
        base_images.options.on_superseded = images.retention.supersede
        images.retention.bases = catalog.superseded
        catalog.superseded.start()
        certificate = ServerCertificate.from_settings(settings.tls, self._reactor)
        status = ProcessStatus(
            upstream=upstream,
            listeners=self._listeners,
            get_base_url=get_base_url,
            standalone=self._standalone,
            database=database,
            streams=sync.streams if shared.is_leader else None,
            certificate=certificate,
        )
        state = ProcessState(
            catalog,
            self._listeners,
            self.metrics,
            status,
            LocalLinks(links),
            self.base_url,
            database,
            built.figures,
        )
        has_admin = settings.admin.is_enabled
        base_images.options.tells_reasons = not has_admin
        main, plain = build_request_handlers(
            self._parts,
            settings.listen,
            images,
            links,
            self.activity.reads,
            get_base_url=get_base_url,
            get_plain_url=self.get_plain_url,
            unready=lambda: state.public_unready if has_admin else state.unready,
            impairment=lambda: state.impairment,
            metrics=None if has_admin else partial(shared.metrics_page, self.metrics),
            base_images=None if has_admin else lambda: state.images,
            mirror=sync.mirror.find_boot_image,
            get_signing_keys=start_signing(settings.signing),
            find_origin=base_images.find_origin,
        )
        transport = build_transport(
            self._parts,
            settings,
            slot_pool=shared.slot_pool(settings.limits.downloads, shared.counts),
            observer=self.metrics,
            failures=self.activity.failures,
        )
        add_gauges(
            self.metrics,
            catalog=catalog,
            images=images,
            slots=transport.slots,
            listeners=self._listeners,
            handlers=(main, plain),
        )
        self.metrics.read_counts("registry_requests_total", http.registry_options.counts.read)
        if catalog.remote is not None:
            add_remote_gauges(self.metrics, self._parts, catalog.remote, is_leader=shared.is_leader)
        if shared.is_leader:
            streams, quota = sync.streams, base_images.data_dir.quota
            add_leader_gauges(self.metrics, self._parts, settings, streams, quota, certificate=certificate)
            set_status = shared.set_status or self.manager.set_status
            self._parts.call_every(STATUS_SECONDS, lambda: set_status(count_ready(catalog.statuses())))
        factory = transport.make_factory(main, secure=certificate is not None)
        self._factories = [(factory, factory if certificate is None else TlsFactory(certificate, factory))]
        if len(self._ports) > 1:
            plain_factory = transport.make_factory(plain)
            self._factories.append((plain_factory, plain_factory))
        shared.start_admin(self._parts, settings, state, self.activity.collect_own, self.metrics, infra_envs)
        self.adopt(listener for (listener,) in self._ports)
        self._parts.push_async_callback(self._close_listeners)
        _log.info("serving at {url}", url=get_base_url())
        shared.serving()
        self.manager.ready()

        def announce_page() -> None:
            if shared.set_status is None:  # else the supervisor does
                self.announce_page(settings.admin, settings.tls)

        if stand_in is not None and stand_in.sample is not None and shared.is_leader:
            announce_sample(catalog, f"{get_base_url()}/{stand_in.sample}", announce_page)
        else:
            announce_page()

    async def _close_listeners(self) -> None:
        _log.info("shutting down")
        process = self._settings.process
        # Only SIGTERM comes from a platform with a load balancer; at SIGINT a person waits.
        is_terminated = self.shutdown.signal_number == signal.SIGTERM
        delay_seconds = process.drain_delay_seconds if is_terminated else 0
        await self._listeners.close(delay_seconds, process.drain_timeout_seconds)

    async def reload_parts(self, configuration: Configuration) -> list[str]:
        """Replace base images, streams, certificates, keys, CAs and the log's level."""
        settings = configuration.settings
        images = configured_images(settings, standalone=self._standalone)
        replace_files = prepare_changed()
        set_level(settings.log.level)
        self._http.set_credential_urls(settings.source_urls)
        self._sync.configure(images, settings.streams.sources)
        return replace_files()
