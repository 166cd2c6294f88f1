"""Starts the parts that find and make boot images, with all that they need of other packages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.app.shutdown import stop_with_failure
from image_service.app.upstream import connect_assisted_service
from image_service.server.links.links import Links
from image_service.server.links.repository import LinkRepository
from image_service.server.links.target_url import OwnUrls
from image_service.server.snapshots.build_snapshots import build_boot_images
from image_service.server.snapshots.image_builder import ImageBuilder

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.app.admin.base_url import BaseUrl
    from image_service.app.shared_resources import SharedResources
    from image_service.app.standalone_mode import StandIn
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.database.monitor import DatabaseMonitor
    from image_service.core.errors import ConfigurationError
    from image_service.server.admin.activity import ProcessActivity
    from image_service.server.assisted.failure_log import UpstreamHealth
    from image_service.server.catalog.build_catalog import BaseImages
    from image_service.server.observability.metrics import Metrics
    from image_service.server.snapshots.build_snapshots import BootImageParts
    from image_service.settings.settings import Settings

_log = Logger()

LINK_CLEANUP_SECONDS = 60.0


async def start_boot_images(  # noqa: PLR0913 - what they are made of
    parts: PartsStack,
    settings: Settings,
    shared: SharedResources,
    metrics: Metrics,
    *,
    base_images: BaseImages,
    stand_in: StandIn | None,
    base_url: BaseUrl,
    activity: ProcessActivity,
) -> tuple[BootImageParts, Links, UpstreamHealth]:
    """Return boot images with their parts, links to them, and assisted-service's health."""

    def fail(fault: ConfigurationError) -> None:
        _log.critical("{fault}", fault=fault.detail)
        stop_with_failure(parts.reactor, os.EX_CONFIG)

    assisted = connect_assisted_service(
        parts, settings, stand_in, metrics, record_name=activity.record_name, is_leader=shared.is_leader
    )
    built = await build_boot_images(
        parts,
        settings,
        assisted,
        shared.coordination,
        get_base_url=base_url.get,
        make_builder=lambda in_thread: ImageBuilder(
            base_images.catalog, base_images.derived, in_thread, base_url.get
        ),
        is_leader=shared.is_leader,
        count=metrics.record_snapshot_event,
        observer=metrics,
        fail=fail,
    )
    if built.monitor is not None:
        _add_gauges(metrics, built.monitor, is_leader=shared.is_leader)
    links = _build_links(
        parts, built, settings, base_url, record_use=activity.record_link_use, is_leader=shared.is_leader
    )
    return built, links, assisted.health


def _add_gauges(metrics: Metrics, monitor: DatabaseMonitor, *, is_leader: bool) -> None:
    metrics.read_gauge("database_unreachable", lambda: float(monitor.failing_seconds is not None))
    if is_leader:
        metrics.read_gauge(
            "database_round_trip_seconds",
            lambda: monitor.round_trip_seconds if monitor.was_reached else None,
        )
        metrics.read_gauge(
            "database_clock_offset_seconds",
            lambda: monitor.clock_offset_seconds if monitor.was_reached else None,
        )


def _build_links(  # noqa: PLR0913 - what they are made of
    parts: PartsStack,
    built: BootImageParts,
    settings: Settings,
    base_url: BaseUrl,
    *,
    record_use: Callable[[str], None],
    is_leader: bool,
) -> Links:
    """Return the short links, which are in the repository of snapshots; the leader erases expired ones."""
    links = Links(
        LinkRepository(built.repository),
        lambda: built.sealed.cipher,
        built.images,
        OwnUrls(base_url.find_all, {settings.listen.port, settings.listen.http_port}),
        settings.links.max_seconds,
        coordination=built.coordination,
        clock=parts.reactor,
        wall_clock=built.wall_clock,
        record_use=record_use,
    )
    if is_leader:
        parts.call_every(LINK_CLEANUP_SECONDS, links.remove_expired)
    return links
