"""Builds EC2's API, its operations, and the actions of imports."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.common.transfer.client import TransferClient
from image_service.jobs.conversion_tasks.image_operations import ImageOperations
from image_service.jobs.conversion_tasks.operations import TaskOptions
from image_service.jobs.exports.buckets import ExportBuckets
from image_service.jobs.imports.actions import THREADS, TIMES, ImportActions
from image_service.jobs.imports.objects import ObjectSources
from image_service.jobs.task_model import TaskLimits

if TYPE_CHECKING:
    from image_service.app.jobs.rows import JobsRows
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.jobs.artifacts.image_catalog import ImageCatalog
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.dispatch.compose_plans import ComposePlans
    from image_service.jobs.ec2.ec2_api import Ec2Api
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics
    from image_service.settings.jobs.ec2 import Ec2Settings
    from image_service.settings.jobs.role import JobsRoleSettings

_S3_THREADS = 4
_log = Logger()


def build_ec2_api(  # noqa: PLR0913, PLR0917 - the inputs of its parts
    parts: PartsStack,
    settings: JobsRoleSettings,
    rows: JobsRows,
    catalog: ImageCatalog,
    plans: ComposePlans,
    metrics: JobsMetrics,
) -> Ec2Api | None:
    """Return the API; None if it is not served.

    Raises:
        ConfigurationError: the access keys cannot be used.
    """
    if "ec2" not in settings.jobs.apis:
        return None
    if settings.ec2.credentials_file is None:
        _log.info("EC2's API is not served: EC2_CREDENTIALS_FILE is not set")
        return None
    from image_service.jobs.ec2.ec2_api import Ec2Api  # noqa: PLC0415 - botocore is slow to import
    from image_service.jobs.ec2.signatures import SignatureVerifier  # noqa: PLC0415 - same

    verifier = SignatureVerifier.of_file(settings.ec2.credentials_file)
    operations = ImageOperations(
        rows.tasks,
        rows.workers,
        catalog,
        ExportBuckets(settings.s3.options),
        plans,
        rows.in_thread,
        parts.in_thread_pool(_S3_THREADS, "buckets"),
        _task_options(settings),
        sources=ObjectSources(settings.s3.options, _allowed_object_stores(settings.ec2), TIMES),
    )
    return Ec2Api(verifier, operations.handlers, metrics)


def _task_options(settings: JobsRoleSettings) -> TaskOptions:
    """Return the options of tasks, which workers of this machine's architecture do."""
    return TaskOptions(
        _allowed_object_stores(settings.ec2),
        TaskLimits(settings.ec2.max_tasks, settings.ec2.max_bytes),
        platform.machine(),
        settings.jobs.heartbeat_seconds,
    )


def build_imports(parts: PartsStack, settings: Ec2Settings, composes: ComposeRepository) -> ImportActions:
    """Build the actions; their requests end with the parts."""
    allowed = _allowed_object_stores(settings)
    in_thread = parts.in_thread_pool(THREADS, "imports")
    client = TransferClient(allowed, times=TIMES)
    parts.callback(client.abort)
    return ImportActions(
        in_thread, composes, allowed, client, settings.poll_seconds, settings.bundle_key_file is not None
    )


def _allowed_object_stores(settings: Ec2Settings) -> AllowedOrigins:
    """Return the origins of imports."""
    origins = frozenset(map(parse_origin, settings.object_stores))
    return AllowedOrigins(origins, setting="EC2_OBJECT_STORES")
