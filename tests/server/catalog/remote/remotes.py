"""Catalogs of remote images over one cache."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.task import Clock

from image_service.common.objects.s3_client import S3Options
from image_service.core.images.reference import Kind
from image_service.server.catalog.catalog import Catalog
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.options import CatalogOptions
from image_service.server.catalog.lifecycle.status import render_statuses
from image_service.server.catalog.remote.build_remote import build_remote_images
from image_service.server.catalog.storage.base_records import BaseRecords
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from image_service.settings.registries import RegistrySettings
from image_service.settings.remote import RemoteSettings

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.signature import KeyRing

CHECK_SECONDS = 3600.0


def remote_entry(url: str, **members: Any) -> OsImage:
    return OsImage("9.6.1-0", "x86_64", "full-iso", ("4.19",), url, remote=True, **members)


@attrs.frozen
class RemoteCatalogs:
    """Starts catalogs of remote images over one cache, and stops them after the test."""

    reactor: EPollReactor
    directory: Path
    clock: Clock = attrs.field(factory=Clock)
    started: list[Catalog] = attrs.field(factory=list)

    def start(
        self,
        *entries: OsImage,
        keys: KeyRing | None = None,
        prefetch: str = "boot",
        options: CatalogOptions | None = None,
        insecure: tuple[str, ...] = (),
        is_leader: bool = True,
    ) -> Catalog:
        client = OriginClient.from_settings(
            DownloadSettings(), registries=RegistrySettings(insecure=insecure)
        )
        settings = RemoteSettings(prefetch=prefetch, check_seconds=CHECK_SECONDS)
        remote = build_remote_images(
            self.reactor,
            settings,
            S3Options(),
            client,
            data_dir=self.directory,
            keys=keys,
            is_leader=is_leader,
        )
        data_dir = DataDir(self.directory)
        fetcher = ImageFetcher(data_dir, partial(download_file, client), records=BaseRecords(data_dir))
        catalog = Catalog(self.reactor, self.clock, entries, fetcher, options or CatalogOptions(), remote)
        self.started.append(catalog)
        catalog.start()
        catalog.superseded.start()
        return catalog


def found(catalog: Catalog) -> BaseImage:
    return catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO)


def rendered(catalog: Catalog) -> dict[str, object]:
    (image,) = json.loads(render_statuses(catalog.statuses()))["images"]
    return dict(image)
