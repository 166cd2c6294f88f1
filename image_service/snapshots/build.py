"""Builds the snapshots, and the boot images made of them, from settings."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

from twisted.logger import Logger

from image_service.assisted.customizations import fetch_customization
from image_service.concurrency.circuit_breaker import CircuitBreaker
from image_service.database.sqlite import SqliteDatabase
from image_service.errors import StoreFailed
from image_service.snapshots.boot_images import BootImages
from image_service.snapshots.encryption import SECRET_BYTES, SnapshotCipher, load_or_create_secret
from image_service.snapshots.image_cache import BootImageCache
from image_service.snapshots.mounts import Mounts, save_seconds
from image_service.snapshots.resolver import Resolver, VersionFinder
from image_service.snapshots.sealed_repository import SealedRepository
from image_service.snapshots.snapshots import Snapshots
from image_service.snapshots.sql_repository import SqlRepository, StoreLimits
from image_service.snapshots.sql_statements import DATABASE_FILE, MIGRATIONS, SCHEMA_VERSION, TABLES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from image_service.assisted.client import AssistedService
    from image_service.assisted.customizations import AssistedApi
    from image_service.concurrency.coordination import Coordination
    from image_service.concurrency.parts import InThread, PartsStack
    from image_service.settings.upstream import SnapshotSettings
    from image_service.snapshots.image_builder import ImageBuilder
    from image_service.snapshots.model import SnapshotEvent

_log = Logger()

COMPOSER_THREADS = 2
REPOSITORY_THREADS = 2
"""So that reading does not wait for a large write."""
CLEANUP_SECONDS = 60
UNUSED_SECONDS = 6 * 3600
"""How long a snapshot is stored that is not used."""


async def build_boot_images(  # noqa: PLR0913 - what boot images are made of
    parts: PartsStack,
    settings: SnapshotSettings,
    data_dir: Path,
    assisted: AssistedService,
    coordination: Coordination,
    *,
    make_builder: Callable[[InThread], ImageBuilder],
    is_leader: bool,
    count: Callable[[SnapshotEvent], None],
) -> BootImages:
    """Open the repository in a data directory, and make what finds and composes boot images.

    The parts stack saves mounts and closes the repository; the leader's also removes unused snapshots.
    ``make_builder`` gets the thread pool for long compositions.
    """
    clock, in_thread = parts.reactor, parts.in_thread_pool(COMPOSER_THREADS, "compose")
    sealed = await _open_sealed_repository(parts, settings, data_dir, in_thread)
    images = connect_boot_images(
        settings, assisted, make_builder(in_thread), sealed, clock, coordination=coordination, count=count
    )
    parts.call_every(images.mounts.save_seconds, images.mounts.save)
    parts.call_every(images.mounts.save_seconds, images.release_superseded)
    if is_leader:
        parts.call_every(CLEANUP_SECONDS, lambda: sealed.remove_unused(UNUSED_SECONDS))
    parts.push_async_callback(images.mounts.save)
    return images


def connect_boot_images(  # noqa: PLR0913 - same
    settings: SnapshotSettings,
    assisted: AssistedApi,
    builder: ImageBuilder,
    sealed: SealedRepository,
    clock: IReactorTime,
    *,
    coordination: Coordination,
    count: Callable[[SnapshotEvent], None] = lambda _: None,
) -> BootImages:
    """Return boot images over an open repository (see `build_boot_images`)."""
    fetch = partial(fetch_customization, assisted)
    snapshots = Snapshots(fetch, sealed, clock, coordination, settings, count=count)
    resolver = Resolver(assisted.fetch_infra_env, sealed, clock, coordination, settings)
    mounts = Mounts(sealed, clock, settings.mount_window_seconds, coordination)
    cache = BootImageCache(builder, snapshots, settings.cache_bytes, count)
    return BootImages(VersionFinder(builder, resolver, snapshots), snapshots, mounts, cache, clock)


def open_repository(
    data_dir: Path, to_read: InThread, to_write: InThread, settings: SnapshotSettings
) -> SqlRepository:
    """Return the repository in a data directory, which it opens when it is first used."""
    database = SqliteDatabase(data_dir / DATABASE_FILE, TABLES, SCHEMA_VERSION, MIGRATIONS)
    window = settings.mount_window_seconds
    return SqlRepository(
        database, to_read, to_write, StoreLimits(settings.store_bytes, window + save_seconds(window))
    )


async def _open_sealed_repository(
    parts: PartsStack, settings: SnapshotSettings, data_dir: Path, in_thread: InThread
) -> SealedRepository:
    in_repository_thread = parts.in_thread_pool(REPOSITORY_THREADS, "store")
    # A store may be readable while it cannot be written, such as one that is locked, or on a full disk.
    to_read, to_write = (CircuitBreaker(in_repository_thread, parts.reactor) for _ in range(2))
    repository = open_repository(data_dir, to_read, to_write, settings)
    parts.push_async_callback(repository.close)
    try:
        secret = await in_repository_thread(partial(load_or_create_secret, data_dir))
    except StoreFailed as error:
        _log.error("snapshots are kept in memory only, until a restart: {reason}", reason=error.detail)
        secret = secrets.token_bytes(SECRET_BYTES)
    return SealedRepository(repository, SnapshotCipher(secret), in_thread, parts.reactor)
