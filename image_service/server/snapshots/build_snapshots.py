"""Builds the snapshots, and the boot images made of them, from settings."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.common.concurrency.circuit_breaker import CircuitBreaker
from image_service.common.concurrency.single_flight import shielded
from image_service.common.database.monitor import CHECK_SECONDS, CLOCK_ERROR_SECONDS, DatabaseMonitor
from image_service.common.database.sqlite import SqliteDatabase
from image_service.core.errors import ConfigurationError, StoreFailed
from image_service.server.assisted.customizations import fetch_customization
from image_service.server.snapshots.image_cache import BootImageCache
from image_service.server.snapshots.image_finder import ImageFinder
from image_service.server.snapshots.mounts import Mounts, save_seconds
from image_service.server.snapshots.replicas.build_replicas import start_replica_coordination
from image_service.server.snapshots.replicas.data_key import open_data_key
from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.replicas.figures import FigureExchange
from image_service.server.snapshots.replicas.layouts import EXCHANGE_SECONDS, LayoutExchange
from image_service.server.snapshots.resolver import Resolver, VersionFinder
from image_service.server.snapshots.snapshots import Snapshots
from image_service.server.snapshots.storage.encryption import (
    SnapshotCipher,
    load_or_create_secret,
    new_data_key,
)
from image_service.server.snapshots.storage.sealed_repository import SealedRepository
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import (
    DATABASE_FILE,
    SCHEMA_VERSION,
    TABLES,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.common.concurrency.process_parts import InThread, PartsStack
    from image_service.common.database.postgresql import PostgresqlDatabase
    from image_service.server.assisted.client import AssistedService
    from image_service.server.assisted.customizations import AssistedApi
    from image_service.server.snapshots.image_builder import ImageBuilder
    from image_service.server.snapshots.replicas.observer import ReplicaObserver
    from image_service.server.snapshots.storage.snapshot import SnapshotEvent
    from image_service.settings.settings import Settings
    from image_service.settings.upstream import SnapshotSettings

T = TypeVar("T")

_log = Logger()

COMPOSE_THREADS = 2
REPOSITORY_THREADS = 2
"""Of a database that replicas share: one transaction waits for its answers while another works."""
CLEANUP_SECONDS = 60
START_SECONDS = 3
"""How long the start waits for a database that does not answer."""
UNUSED_SECONDS = 6 * 3600
"""How long a snapshot is stored that is not used."""


@attrs.frozen
class BootImageParts:
    """Boot images, with their parts.

    Args:
        sealed: has the cipher of the present data key.
        repository: of snapshots, mounts and links.
        coordination: of all processes that share the repository.
        monitor: of the database that replicas share; None: they share none.
        figures: of the replicas in that database.
    """

    images: ImageFinder
    sealed: SealedRepository
    repository: SqlRepository
    coordination: Coordination
    monitor: DatabaseMonitor | None
    figures: FigureExchange | None

    @property
    def wall_clock(self) -> Callable[[], float]:
        """Returns seconds since 1970, alike in all processes that share the repository."""
        return time.time if self.monitor is None else self.monitor.wall_clock


async def build_boot_images(  # noqa: PLR0913 - what boot images are made of
    parts: PartsStack,
    settings: Settings,
    assisted: AssistedService,
    coordination: Coordination,
    *,
    get_base_url: Callable[[], str],
    make_builder: Callable[[InThread], ImageBuilder],
    is_leader: bool,
    count: Callable[[SnapshotEvent], None],
    observer: ReplicaObserver,
    fail: Callable[[ConfigurationError], None],
) -> BootImageParts:
    """Open the repository, and make what finds and composes boot images.

    The parts stack saves mounts and closes the repository; the leader's also removes unused snapshots.

    Args:
        coordination: of the processes of this host.
        get_base_url: returns the URL by which clients reach the service now.
        make_builder: gets the thread pool for long compositions.
        is_leader: True in one process of this host.
        fail: is called if a database that could not be reached at the start has another instance's data.

    Raises:
        ConfigurationError: the instance's secret is not that of the data.
    """
    clock, in_thread = parts.reactor, parts.in_thread_pool(COMPOSE_THREADS, "compose")
    monitor, figures, url = None, None, settings.database.url
    if url is None:
        repository, sealed = await _open_local_repository(parts, settings, in_thread, get_base_url)
    else:
        database = open_replica_database(url)
        parts.callback(database.close)
        repository, sealed, monitor, figures = await _open_shared_repository(
            parts, settings, database, in_thread, get_base_url, is_leader=is_leader, fail=fail
        )
        coordination = start_replica_coordination(
            parts,
            database,
            settings.database.listen_url or url,
            coordination,
            settings.storage.data_dir,
            observer=observer,
        )
        parts.callback(database.abort)  # or a server that hangs would hold up the threads
    images = connect_boot_images(
        settings.snapshots,
        assisted,
        make_builder(in_thread),
        sealed,
        clock,
        coordination=coordination,
        count=count,
    )
    parts.call_every(images.mounts.save_seconds, images.save)
    parts.call_every(images.mounts.save_seconds, images.retention.release_superseded)
    if is_leader:
        parts.call_every(CLEANUP_SECONDS, lambda: sealed.remove_unused(UNUSED_SECONDS))
    parts.push_async_callback(images.save_at_last)
    return BootImageParts(images, sealed, repository, coordination, monitor, figures)


def connect_boot_images(  # noqa: PLR0913 - same
    settings: SnapshotSettings,
    assisted: AssistedApi,
    builder: ImageBuilder,
    sealed: SealedRepository,
    clock: IReactorTime,
    *,
    coordination: Coordination,
    count: Callable[[SnapshotEvent], None] = lambda _: None,
) -> ImageFinder:
    """Return boot images over an open repository (see `build_boot_images`)."""
    fetch = partial(fetch_customization, assisted)
    snapshots = Snapshots(fetch, sealed, clock, coordination, settings, count=count)
    resolver = Resolver(assisted.fetch_infra_env, sealed, clock, coordination, settings)
    mounts = Mounts(sealed.mounts, clock, settings.mount_window_seconds, coordination)
    cache = BootImageCache(builder, snapshots, settings.cache_bytes, count)
    return ImageFinder(VersionFinder(builder, resolver, snapshots), snapshots, mounts, cache, clock)


def open_repository(
    data_dir: Path, to_read: InThread, to_write: InThread, settings: SnapshotSettings
) -> SqlRepository:
    """Return the repository in a data directory, which it opens when it is first used."""
    database = SqliteDatabase(data_dir / DATABASE_FILE, TABLES, SCHEMA_VERSION)
    return SqlRepository(database, to_read, to_write, _limits(settings))


def _limits(settings: SnapshotSettings) -> StoreLimits:
    window = settings.mount_window_seconds
    return StoreLimits(settings.store_bytes, window + save_seconds(window))


async def _open_local_repository(
    parts: PartsStack, settings: Settings, in_thread: InThread, get_base_url: Callable[[], str]
) -> tuple[SqlRepository, SealedRepository]:
    data_dir = settings.storage.data_dir
    # A thread each: reading does not wait for a large write, and SQLite has one writer at a time.
    # A store may be readable while it cannot be written, such as one that is locked, or on a full disk.
    in_reading_thread = parts.in_thread_pool(1, "store-read")
    to_read = CircuitBreaker(in_reading_thread, parts.reactor)
    to_write = CircuitBreaker(parts.in_thread_pool(1, "store-write"), parts.reactor)
    repository = open_repository(data_dir, to_read, to_write, settings.snapshots)
    parts.push_async_callback(repository.close)
    instance_secrets = _read_secrets(settings)
    try:
        secret = await in_reading_thread(partial(load_or_create_secret, data_dir, instance_secrets))
    except StoreFailed as error:
        _log.error("snapshots are kept in memory only, until a restart: {reason}", reason=error.detail)
        secret = new_data_key()
    sealed = SealedRepository(
        repository, SnapshotCipher(secret), in_thread, parts.reactor, get_base_url=get_base_url
    )
    return repository, sealed


async def _open_shared_repository(  # noqa: PLR0913 - same
    parts: PartsStack,
    settings: Settings,
    database: PostgresqlDatabase,
    in_thread: InThread,
    get_base_url: Callable[[], str],
    *,
    is_leader: bool,
    fail: Callable[[ConfigurationError], None],
) -> tuple[SqlRepository, SealedRepository, DatabaseMonitor, FigureExchange]:
    """Return the repository in a database, which may be away: until it was reached, all of it fails."""
    instance_secrets = _read_secrets(settings)
    in_repository_thread = parts.in_thread_pool(REPOSITORY_THREADS, "store")
    in_check_thread = parts.in_thread_pool(1, "database")

    async def open_() -> None:
        data_key = await in_check_thread(partial(open_data_key, database, instance_secrets))
        sealed.cipher = SnapshotCipher(data_key)
        await layouts.exchange()

    monitor = DatabaseMonitor(database, in_check_thread, parts.reactor, open_)
    to_read, to_write = (
        _once_reached(monitor, CircuitBreaker(in_repository_thread, parts.reactor)) for _ in range(2)
    )
    repository = SqlRepository(database, to_read, to_write, _limits(settings.snapshots), monitor.wall_clock)
    provisional = SnapshotCipher(new_data_key())
    sealed = SealedRepository(
        repository,
        provisional,
        in_thread,
        parts.reactor,
        monitor.wall_clock,
        get_base_url=get_base_url,
        clock_error_seconds=CLOCK_ERROR_SECONDS,
    )
    layouts = LayoutExchange(
        database, CircuitBreaker(in_repository_thread, parts.reactor), sealed.layouts, is_leader=is_leader
    )
    await _start(parts, monitor, fail)
    parts.call_every(EXCHANGE_SECONDS, layouts.exchange)
    parts.push_async_callback(layouts.leave)
    to_exchange = _once_reached(monitor, CircuitBreaker(in_repository_thread, parts.reactor))
    figures = FigureExchange(database, to_exchange)
    parts.push_async_callback(figures.leave)
    return repository, sealed, monitor, figures


def _once_reached(monitor: DatabaseMonitor, in_thread: InThread) -> InThread:
    """Return what fails until the database was reached: what could be stored before has another key."""

    async def run(work: Callable[[], T], /) -> T:
        if not monitor.was_reached:
            raise StoreFailed("the database was not reached yet")
        return await in_thread(work)

    return run


async def _start(
    parts: PartsStack, monitor: DatabaseMonitor, fail: Callable[[ConfigurationError], None]
) -> None:
    """Check the database for the first time; one that does not answer delays the start by a moment."""

    async def check() -> None:
        try:
            await monitor.check()
        except ConfigurationError as error:
            fail(error)

    first = Deferred.fromCoroutine(monitor.check())
    await shielded(first).addTimeout(START_SECONDS, parts.reactor, lambda *_: None)
    parts.call_every(CHECK_SECONDS, check)
    parts.call_every(CHECK_SECONDS, monitor.abort_late)


def _read_secrets(settings: Settings) -> tuple[bytes, ...]:
    try:
        return settings.database.secrets
    except ValueError as error:  # the file has changed since the settings were read
        raise ConfigurationError(f"INSTANCE_SECRET_FILE: {error}") from None
