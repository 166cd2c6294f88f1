"""The administrative listener of a service that serves images: its APIs and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.admin.activity import COLLECT_SECONDS, Activity
from image_service.server.admin.links_api import LinksApi
from image_service.server.admin.listener import start_admin
from image_service.server.admin.progress_api import ProgressApi
from image_service.server.admin.status_api import StatusApi
from image_service.server.admin.status_page import page_routes

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.activity import Collect
    from image_service.server.admin.admin_api import AdminApi
    from image_service.server.admin.state import ServingState
    from image_service.server.observability.metrics import Metrics
    from image_service.settings.settings import Settings


def start_administration(
    parts: PartsStack, settings: Settings, state: ServingState, collect: Collect, metrics: Metrics
) -> Activity:
    """Log mounts, and listen on ``ADMIN_LISTEN`` if it is set, until the parts stop.

    Args:
        parts: see `PartsStack`.
        collect: asks all processes for the activity of their clients.

    Raises:
        ConfigurationError: see `start_admin`.
    """
    activity = Activity(settings.snapshots.mount_stall_seconds, parts.reactor.seconds, collect)
    parts.callback(activity.progress.close)
    metrics.count_states("mounts", activity.progress.stages)
    metrics.read_gauge("mounts_moved", activity.progress.count_moved)
    parts.call_every(COLLECT_SECONDS, activity.check)
    apis: list[AdminApi] = [
        StatusApi(state, activity),
        ProgressApi(activity, state, parts.reactor),
        LinksApi(state.links, settings.links.max_seconds),
    ]
    start_admin(parts, settings, state, apis=apis, pages=page_routes())
    return activity
