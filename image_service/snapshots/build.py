"""Builds the snapshots, and the boot images made of them, from settings."""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.assisted.customizations import Customizations
from image_service.errors import StoreFailed
from image_service.snapshots.archive import Archive
from image_service.snapshots.boot_images import BootImages
from image_service.snapshots.cache_entry import Lifetimes
from image_service.snapshots.encryption import SECRET_BYTES, SnapshotCipher
from image_service.snapshots.instance_secret import load_or_create_secret
from image_service.snapshots.resolver import Resolver
from image_service.snapshots.shared_infra_envs import SharedInfraEnvs
from image_service.snapshots.snapshots import Snapshots
from image_service.snapshots.sqlite import STORE_FILE, SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.assisted.client import AssistedService
    from image_service.concurrency.coordination import Coordination
    from image_service.concurrency.lifecycle import Lifecycle
    from image_service.concurrency.threads import InThread
    from image_service.settings.upstream import SnapshotSettings
    from image_service.snapshots.composer import Composer

_log = Logger()

COMPOSER_THREADS = 2
STORE_THREADS = 2
"""So that reading does not wait for a large write."""
SWEEP_SECONDS = 600
UNUSED_SECONDS = 6 * 3600
"""How long a snapshot is stored that is not used."""


@attrs.frozen
class SnapshotParts:
    """Boot images, and the snapshots that they are made of."""

    images: BootImages
    snapshots: Snapshots


async def build_boot_images(  # noqa: PLR0913 - what boot images are made of
    lifecycle: Lifecycle,
    settings: SnapshotSettings,
    data_dir: Path,
    assisted: AssistedService,
    coordination: Coordination,
    *,
    make_composer: Callable[[InThread], Composer],
    is_leader: bool,
    count: Callable[[str], None],
) -> SnapshotParts:
    """Open the store and make what finds and composes boot images.

    Args:
        lifecycle: saves and stops it.
        settings: of snapshots and mounts.
        data_dir: where the store and its secret are.
        assisted: answers for infra-envs.
        coordination: with the processes on the same store.
        make_composer: makes the composer, which runs long compositions in the given thread pool.
        is_leader: True in the one process that sweeps the store.
        count: records an event, for metrics.
    """
    reactor = lifecycle.reactor
    in_thread = lifecycle.in_thread_pool(COMPOSER_THREADS, "compose")
    archive = await _open_archive(lifecycle, data_dir, in_thread)
    customizations = Customizations(assisted)
    lifetimes = Lifetimes(settings.ttl_seconds, settings.grace_seconds, settings.max_age_seconds)
    snapshots = Snapshots(
        customizations.get, archive, reactor, lifetimes=lifetimes, count=count, coordination=coordination
    )
    infra_envs = SharedInfraEnvs(customizations, archive, reactor, settings.ttl_seconds, coordination)
    images = BootImages(
        make_composer(in_thread),
        Resolver(infra_envs, reactor, settings.ttl_seconds, settings.grace_seconds),
        snapshots,
        archive,
        reactor,
        window_seconds=settings.mount_window_seconds,
        held_bytes=settings.cache_bytes,
        count=count,
        coordination=coordination,
    )
    lifecycle.call_every(images.save_seconds, images.save_mounts)
    lifecycle.call_every(images.save_seconds, images.forget_superseded)
    if is_leader:
        lifecycle.call_every(SWEEP_SECONDS, lambda: archive.sweep(reactor.seconds() - UNUSED_SECONDS))
    lifecycle.push_async_callback(images.save_mounts)
    return SnapshotParts(images, snapshots)


async def _open_archive(lifecycle: Lifecycle, data_dir: Path, in_thread: InThread) -> Archive:
    in_store_thread = lifecycle.in_thread_pool(STORE_THREADS, "store")
    store = SqliteStore(data_dir / STORE_FILE, in_store_thread)
    lifecycle.push_async_callback(store.close)
    try:
        secret = await in_store_thread(partial(load_or_create_secret, data_dir))
    except StoreFailed as error:
        _log.error("snapshots are kept in memory only, until a restart: {reason}", reason=error.detail)
        secret = secrets.token_bytes(SECRET_BYTES)
    return Archive(store, SnapshotCipher(secret), in_thread)
