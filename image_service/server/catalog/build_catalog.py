"""Builds the catalog of base images from settings."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.backoff import Backoff
from image_service.core.errors import UnknownBaseImage
from image_service.core.images.reference import Kind
from image_service.server.catalog.catalog import Catalog
from image_service.server.catalog.derived.derived_images import DerivedImages
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.opening import signature_path
from image_service.server.catalog.lifecycle.options import CatalogOptions
from image_service.server.catalog.lifecycle.signature import KeyRing
from image_service.server.catalog.remote.build_remote import build_remote_images
from image_service.server.catalog.storage.base_records import BaseRecords, superseded_name
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.catalog.superseded import RETRY_SECONDS

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import PartsStack
    from image_service.common.objects.s3_client import S3Options
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.download.origin_client import OriginClient
    from image_service.settings.base_images import CatalogSettings, DownloadSettings, StorageSettings
    from image_service.settings.os_images import OsImage
    from image_service.settings.remote import RemoteSettings

COLLECT_SECONDS = 600
"""Interval at which files of images that are no longer configured are removed."""


@attrs.frozen
class BaseOrigin:
    """Where a base image came from.

    Args:
        url: may have credentials; None: it is a file of this machine.
        signature: the file of its vendor's detached signature, which was verified; None: none was.
    """

    url: str | None = attrs.field(repr=False)
    signature: Path | None


@attrs.frozen
class BaseImages:
    """The catalog and what belongs to it."""

    configured: tuple[OsImage, ...]
    catalog: Catalog
    derived: DerivedImages
    data_dir: DataDir
    options: CatalogOptions
    """Of the catalog; the callbacks are set once their receivers are built."""
    fetcher: ImageFetcher

    def find_origin(self, base: BaseImage) -> BaseOrigin:
        """Return where a base image came from.

        A file of this machine has no origin: its path tells others nothing, and differs among replicas.
        """
        kind = Kind.DISCONNECTED_ISO if base.disconnected else Kind.FULL_ISO
        path = Path(base.file.path)
        try:
            url = self.catalog.find_entry(base.version, base.architecture, kind).url
        except UnknownBaseImage:  # it has just been removed from the configuration
            url = None
        if self.fetcher.records is not None and (key := self.catalog.superseded.find_key(base)):
            # The configured image of its name is another one.
            entries = [record.entry for record in self.fetcher.records.read() if record.key == key]
            url = entries[0].url if entries else None
            renamed = self.data_dir.path / superseded_name(key)
            path = renamed if renamed.exists() else path
        is_signed = self.fetcher.keys is not None and base.file.residency is None
        return BaseOrigin(
            None if url is None or url.startswith("file:") else url,
            signature_path(path) if is_signed else None,
        )


def build_base_images(  # noqa: PLR0913, PLR0917 - five groups of settings
    parts: PartsStack,
    settings: CatalogSettings,
    storage: StorageSettings,
    downloads: DownloadSettings,
    http: OriginClient,
    remote: RemoteSettings,
    s3: S3Options,
    *,
    configured: tuple[OsImage, ...],
    is_leader: bool,
    has_mounts: bool = True,
) -> BaseImages:
    """Start the catalog with the configured images; the leader removes files that are no longer needed.

    Args:
        has_mounts: False: no superseded base image is kept, because no mount reads one.

    Raises:
        OSError: ``DATA_DIR`` cannot be created or read.
    """
    reactor = parts.reactor
    data_dir = DataDir(
        storage.data_dir, storage.retention_seconds, storage.max_bytes, scratch=storage.scratch_dir
    )
    keys = KeyRing.read(settings.signing_keys) if settings.signing_keys else None
    derived = DerivedImages(reactor, reactor, data_dir)
    options = CatalogOptions(
        downloads=downloads.concurrency,
        backoff=Backoff(downloads.retry_min_seconds, downloads.retry_max_seconds),
        ready_when_any=settings.ready_when == "any",
        logs_progress=is_leader,
        derive=derived.derive,
    )
    records = BaseRecords(data_dir) if has_mounts else None
    fetcher = ImageFetcher(data_dir, partial(download_file, http), keys, records)
    opener = build_remote_images(
        reactor, remote, s3, http, data_dir=storage.data_dir, keys=keys, is_leader=is_leader
    )
    catalog = Catalog(reactor, reactor, configured, fetcher, options, opener)
    catalog.start()
    if is_leader:
        in_thread = parts.in_thread_pool(1, "data directory")
        parts.call_every(
            COLLECT_SECONDS, lambda: in_thread(partial(data_dir.collect_garbage, catalog.retained_names))
        )
        parts.call_every(COLLECT_SECONDS, lambda: in_thread(catalog.remove_unused_blocks))
    parts.call_every(RETRY_SECONDS, catalog.superseded.update)
    parts.push_async_callback(catalog.stop)
    parts.push_async_callback(derived.stop)  # before the files that it reads are closed
    parts.callback(opener.interrupt)  # before: what is derived may wait for an origin
    return BaseImages(configured, catalog, derived, data_dir, options, fetcher)
