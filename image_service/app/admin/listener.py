"""The administrative listener of a service that serves images: its APIs and the status page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.app.admin.replica_figures import EXCHANGE_SECONDS, ReplicaFigures
from image_service.server.admin.activity import COLLECT_SECONDS, Activity
from image_service.server.admin.image_retries_api import ImageRetriesApi
from image_service.server.admin.infra_envs_api import InfraEnvsElsewhere
from image_service.server.admin.links_api import LinksApi
from image_service.server.admin.listener import MAX_BODY_BYTES, start_admin
from image_service.server.admin.progress_api import ProgressApi
from image_service.server.admin.status_api import StatusApi
from image_service.server.admin.status_page import page_files
from image_service.server.admin.webhook import start_webhook
from image_service.server.standalone import service

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.server.admin.activity import Collect
    from image_service.server.admin.admin_api import AdminApi
    from image_service.server.admin.state import ServingState
    from image_service.server.observability.metrics import Metrics
    from image_service.settings.settings import Settings

FOLLOW_SECONDS = 5
"""Between two looks whether the machine has the chosen address again."""
AT_THE_STAND_IN = "STANDALONE_LISTEN, because STANDALONE_TOKEN is set and ADMIN_TOKEN_FILE is not"
"""Where infra-envs are made, if a client needs a token for the stand-in but none for ``ADMIN_LISTEN``."""


def start_administration(  # noqa: PLR0913, PLR0917 - parts of the service
    parts: PartsStack,
    settings: Settings,
    state: ServingState,
    collect: Collect,
    metrics: Metrics,
    infra_envs: AdminApi | None,
) -> Activity:
    """Log and post mounts, and listen on ``ADMIN_LISTEN`` if it is set, until the parts stop.

    Args:
        parts: see `PartsStack`.
        collect: asks all processes for the activity of their clients.
        infra_envs: operations on those of the stand-in; None: assisted-service has them.

    Raises:
        ConfigurationError: see `start_admin`.
    """
    # Imported here because serving processes need none of the doctor's modules.
    from image_service.app.admin.examinations_api import ExaminationsApi  # noqa: PLC0415

    webhook = start_webhook(parts, settings.webhook, settings.proxies)
    activity = Activity(
        settings.snapshots.mount_stall_seconds,
        parts.reactor.seconds,
        collect,
        webhook.add if webhook else lambda _: None,
    )
    parts.callback(activity.progress.close)
    metrics.count_states("mounts", activity.progress.stages)
    metrics.read_gauge("mounts_moved", activity.progress.count_moved)
    parts.call_every(COLLECT_SECONDS, activity.check)
    parts.call_every(FOLLOW_SECONDS, state.follow_address)
    replicas = ReplicaFigures(state, activity)
    if settings.database.url is not None:
        parts.call_every(EXCHANGE_SECONDS, replicas.exchange)
    apis: list[AdminApi] = [
        StatusApi(state, activity, replicas.get),
        ProgressApi(activity, state, parts.reactor),
        ImageRetriesApi(state),
        ExaminationsApi(state, parts.reactor),
        LinksApi(state.links, settings.links.max_seconds),
    ]
    max_body_bytes = MAX_BODY_BYTES
    if infra_envs is None:
        apis.append(InfraEnvsElsewhere(f"assisted-service, {settings.upstream.url}"))
    elif settings.standalone.token is not None and settings.admin.token_file is None:
        apis.append(InfraEnvsElsewhere(AT_THE_STAND_IN))  # who lacks the token must gain nothing here
    else:
        apis.append(infra_envs)
        max_body_bytes = service.MAX_BODY_BYTES
    start_admin(parts, settings, state, apis=apis, files=page_files(), max_body_bytes=max_body_bytes)
    return activity
