"""Opens the database of the jobs role, and the secrets that seal its customizations."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.common.database.monitor import ABORT_SECONDS, CHECK_SECONDS
from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.core.errors import ConfigurationError
from image_service.jobs.database.composes import ComposeRepository
from image_service.jobs.database.images import ImageRepository
from image_service.jobs.database.job_queues import JobQueues
from image_service.jobs.database.jobs import JobRepository
from image_service.jobs.database.objects import ObjectRepository
from image_service.jobs.database.sealing import RowCipher
from image_service.jobs.database.tables import open_database
from image_service.jobs.database.tasks import TaskRepository
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.model import TenantBudget
from image_service.jobs.tenants.build_tenants import build_budgets
from image_service.server.snapshots.storage.encryption import load_or_create_secret

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.concurrency.process_parts import InThread, PartsStack
    from image_service.settings.jobs.role import JobsRoleSettings

SECRET_FILE = "jobs.secret"  # noqa: S105 - its name
_THREADS = 5  # connections of a process to PostgreSQL


@attrs.frozen
class JobsRows:
    """The rows of the jobs role.

    Args:
        secrets: of the instance; the first seals, all open.
    """

    composes: ComposeRepository
    jobs: JobRepository
    queues: JobQueues
    objects: ObjectRepository
    images: ImageRepository
    tasks: TaskRepository
    workers: WorkerRepository
    secrets: Sequence[bytes] = attrs.field(repr=False)
    in_thread: InThread


def open_rows(parts: PartsStack, settings: JobsRoleSettings) -> JobsRows:
    """Open the database; without ``INSTANCE_SECRET_FILE``, a secret is made in ``DATA_DIR``.

    Raises:
        ConfigurationError: the file of the secret, or that of the access list, cannot be used.
        StoreFailed: the secret can be neither read nor written.
    """
    data_dir = settings.storage.data_dir
    try:
        given = settings.database.secrets
    except ValueError as error:  # a file that could be read a moment before
        raise ConfigurationError(f"INSTANCE_SECRET_FILE: {error}") from None
    secrets = given or (load_or_create_secret(data_dir, name=SECRET_FILE),)
    database = open_database(settings.database.url, data_dir, secrets)
    parts.callback(database.close)
    if isinstance(database, PostgresqlDatabase):
        parts.call_every(CHECK_SECONDS, partial(database.abort, ABORT_SECONDS))
    own_bytes = build_budgets(settings.tenants)
    budget = TenantBudget(settings.jobs.max_composes, settings.jobs.max_bytes, own_bytes)
    cipher = RowCipher(secrets)
    composes = ComposeRepository(database, cipher, budget)
    return JobsRows(
        composes,
        JobRepository(database, cipher),
        JobQueues(database),
        ObjectRepository(database, cipher, budget),
        ImageRepository(database, cipher),
        TaskRepository(database, composes),
        WorkerRepository(database),
        secrets,
        parts.in_thread_pool(_THREADS, "rows"),
    )
