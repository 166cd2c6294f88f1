"""Builds the parts that make and serve the bytes of composes, from settings."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.interruption import Interruption
from image_service.jobs.artifacts.actions import ArtifactActions
from image_service.jobs.artifacts.bases import Bases
from image_service.jobs.artifacts.compose_statements import ComposeStatements
from image_service.jobs.artifacts.composed_images import ComposedImages
from image_service.jobs.artifacts.contents import Contents
from image_service.jobs.artifacts.disk_images import DiskImages
from image_service.jobs.artifacts.image_catalog import ImageCatalog
from image_service.server.catalog.build_catalog import COLLECT_SECONDS
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.serving.digests import Digests
from image_service.server.serving.signed_statements import SignedStatements

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.objects.store import ObjectStorage
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.images import ImageRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.server.catalog.build_catalog import BaseImages
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.server.streams.streams import Streams
    from image_service.settings.base_images import CatalogSettings, StorageSettings
    from image_service.settings.os_images import OsImage

DISKS = "disks"
"""The directory of disk images in ``DATA_DIR``. The byte server would remove them from its own."""

_READS = 16
"""At a time; an object of S3 may take a second."""
_FETCHES = 2
_DIGEST_SECONDS = 3600.0


@attrs.frozen
class ArtifactParts:
    """The parts of this package for its users."""

    bases: Bases
    catalog: ImageCatalog
    contents: Contents
    actions: ArtifactActions
    statements: ComposeStatements | None  # None: nothing is signed


def build_artifacts(  # noqa: PLR0913 - the inputs of all parts
    parts: PartsStack,
    catalog_settings: CatalogSettings,
    storage: StorageSettings,
    *,
    http: OriginClient,
    isos: BaseImages,
    streams: Streams,
    disks: Iterable[OsImage],
    aliases: Mapping[str, str],
    byte_server_url: str | None,
    composes: ComposeRepository,
    jobs: JobRepository,
    images: ImageRepository,
    store: ObjectStorage,
    get_signing_keys: Callable[[], SigningKeys] | None,
) -> ArtifactParts:
    """Open the directory of disk images, and build the parts.

    Args:
        get_signing_keys: returns the keys of statements, as they are now; None: nothing is signed.

    Raises:
        OSError: the directory cannot be created or read.
        ConfigurationError: the key ring cannot be read.
    """
    data_dir = DataDir(storage.data_dir / DISKS, storage.retention_seconds, storage.max_bytes)
    data_dir.open()
    parts.callback(data_dir.close)
    keys = KeyRing.read(catalog_settings.signing_keys) if catalog_settings.signing_keys else None
    bases = Bases(isos.catalog, streams, disks, aliases, byte_server_url)
    interruption = Interruption()
    fetcher = ImageFetcher(data_dir, partial(download_file, http), keys)
    disk_images = DiskImages(parts.in_thread_pool(_FETCHES, "disk images"), fetcher, interruption)
    parts.callback(disk_images.close)
    in_thread = parts.in_thread_pool(_READS, "artifacts")
    hash_in_thread = parts.in_thread_pool(1, "digests", low_priority=True)
    digests = Digests(parts.reactor, hash_in_thread, _DIGEST_SECONDS, max_waiting=sys.maxsize)
    parts.push_async_callback(digests.stop)
    parts.callback(interruption.interrupt)
    remove_in_thread = parts.in_thread_pool(1, "disks")

    def remove_superseded() -> Awaitable[object]:
        names = bases.disk_names
        disk_images.forget_others(names)
        return remove_in_thread(partial(data_dir.collect_garbage, names))

    parts.call_every(COLLECT_SECONDS, remove_superseded)
    composed = ComposedImages(in_thread, bases, isos.derived, composes)
    contents = Contents(in_thread, bases, disk_images, composed, digests, composes, jobs, images, store)
    actions = ArtifactActions(in_thread, bases, disk_images, composed, digests, composes, jobs, images, store)
    statements = None
    if get_signing_keys is not None:
        # In a thread of their own, because clients ask for them: jobs wait for the digests above.
        stated = Digests(parts.reactor, parts.in_thread_pool(1, "statements", low_priority=True))
        parts.push_async_callback(stated.stop)
        signed = SignedStatements(stated, get_signing_keys, isos.find_origin)
        statements = ComposeStatements(signed, composed, composes, in_thread, stated)
    return ArtifactParts(bases, ImageCatalog(images, bases), contents, actions, statements)
