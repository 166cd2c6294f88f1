"""Builds the APIs of the jobs role, and the dispatching of jobs between them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import attrs

from image_service.app.jobs.built_in_worker import WORKER_SCRATCH
from image_service.app.jobs.ec2 import build_ec2_api, build_imports
from image_service.common.objects.s3_links import S3Links
from image_service.jobs.composer.compose_routes import ComposeRoutes
from image_service.jobs.composer.composer_api import ComposerApi
from image_service.jobs.composer.image_routes import ImageRoutes
from image_service.jobs.composer.reference_routes import ReferenceRoutes
from image_service.jobs.composer.registry_api import RegistryApi
from image_service.jobs.composer.requests import ComposeLimits
from image_service.jobs.composer.service import ComposeService
from image_service.jobs.dispatch.actions import JobPlanActions
from image_service.jobs.dispatch.attempts import ArtifactUploads, WorkerAttempts
from image_service.jobs.dispatch.compose_plans import ComposePlans
from image_service.jobs.dispatch.dispatcher import JobDispatcher
from image_service.jobs.dispatch.handout import JobHandout
from image_service.jobs.dispatch.rows import DispatchRows
from image_service.jobs.dispatch.tokens import JobTokens
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.metrics.jobs_metrics import COMPOSER, REGISTRY, WORKER
from image_service.jobs.metrics.measured_api import MeasuredApi
from image_service.jobs.plans.plan import UploadPlace
from image_service.jobs.worker_api.worker_api import WorkerApi

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.app.jobs.rows import JobsRows
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.objects.store import ObjectStorage
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.jobs.api.front import ServedApi
    from image_service.jobs.artifacts.build_artifacts import ArtifactParts
    from image_service.jobs.ec2.ec2_api import Ec2Api
    from image_service.jobs.engine.engine import Engine
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics
    from image_service.settings.jobs.role import JobsRoleSettings

_UPLOADS = 32  # that are received at a time; each has up to 2 MiB in memory, and a part of S3's
_UPLOAD_THREADS = 8  # each writes received bytes to the store


@attrs.frozen
class JobParts:
    """The parts of the APIs.

    Args:
        actions: of plans, for the engine.
        ec2_api: None: this process does not serve it.
    """

    actions: JobPlanActions
    composes: ComposeService
    apis: tuple[ServedApi, ...]
    ec2_api: Ec2Api | None


def build_jobs(  # noqa: PLR0913, PLR0917 - the inputs of the parts
    parts: PartsStack,
    settings: JobsRoleSettings,
    rows: JobsRows,
    store: ObjectStorage,
    artifacts: ArtifactParts,
    engine: Engine,
    metrics: JobsMetrics,
    get_signing_keys: Callable[[], SigningKeys] | None,
) -> JobParts:
    """Build the dispatching of jobs, and the APIs of ``JOBS_APIS`` that have routes."""
    dispatch_rows = DispatchRows(
        rows.composes, rows.jobs, rows.queues, rows.objects, rows.workers, rows.in_thread
    )
    tokens = JobTokens(rows.secrets)
    handout = JobHandout(dispatch_rows, engine, artifacts.contents, tokens, metrics)
    dispatcher = JobDispatcher(parts.reactor, dispatch_rows, engine, handout, settings.jobs)
    imports = build_imports(parts, settings.ec2, rows.composes)
    actions_by_name = {**artifacts.actions.by_name, **imports.by_name}
    actions = JobPlanActions(dispatch_rows, actions_by_name, dispatcher.wake, metrics)
    in_upload_thread = parts.in_thread_pool(_UPLOAD_THREADS, "uploads", low_priority=True)
    slots = UploadSlots(_UPLOADS, settings.jobs.min_upload_rate, parts.reactor)
    scratch = settings.storage.data_dir / WORKER_SCRATCH
    uploads = ArtifactUploads(store, in_upload_thread, slots, scratch)
    attempts = WorkerAttempts(dispatch_rows, engine, artifacts.contents, tokens, uploads)
    plans = ComposePlans(engine)
    composes = _build_composes(settings, rows, artifacts, plans)
    served: dict[str, ComposerApi | WorkerApi | RegistryApi] = {
        COMPOSER: _build_composer_api(settings, rows, artifacts, composes, get_signing_keys),
        WORKER: WorkerApi(dispatch_rows, dispatcher, attempts, artifacts.contents),
        REGISTRY: RegistryApi(rows.composes, artifacts.contents, rows.in_thread),
    }
    apis = [
        MeasuredApi(name, api, api.operations, metrics)
        for name, api in served.items()
        if name in settings.jobs.apis
    ]
    ec2_api = build_ec2_api(parts, settings, rows, artifacts.catalog, plans, metrics)
    return JobParts(actions, composes, tuple(apis), ec2_api)


def _build_composes(
    settings: JobsRoleSettings, rows: JobsRows, artifacts: ArtifactParts, plans: ComposePlans
) -> ComposeService:
    upload_url = settings.jobs.upload_s3_url
    place = None if upload_url is None else UploadPlace.parse(upload_url)
    limits = ComposeLimits(
        settings.jobs.max_queued,
        settings.jobs.max_request_bytes,
        settings.jobs.max_ignition_bytes,
        settings.jobs.max_disk_bytes,
        place,
        settings.jobs.upload_registry,
    )
    return ComposeService(
        rows.composes, artifacts.catalog, plans, artifacts.bases, rows.in_thread, time.time, limits
    )


def _build_composer_api(
    settings: JobsRoleSettings,
    rows: JobsRows,
    artifacts: ArtifactParts,
    service: ComposeService,
    get_signing_keys: Callable[[], SigningKeys] | None,
) -> ComposerApi:
    links = S3Links(settings.s3.options)
    routes = ComposeRoutes(
        service,
        rows.composes,
        rows.jobs,
        artifacts.contents,
        rows.in_thread,
        links,
        get_signing_keys,
        artifacts.statements,
    )
    images = ImageRoutes(artifacts.catalog, service, artifacts.contents, rows.in_thread)
    return ComposerApi(routes, images, ReferenceRoutes(artifacts.bases))
