"""Catalogs over one directory, and the images for them."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.concurrency.backoff import Backoff
from image_service.core.images.reference import Kind
from image_service.server.catalog.catalog import Catalog
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.lifecycle.options import CatalogOptions
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.storage.base_records import RECORDS, BaseRecords
from image_service.server.catalog.storage.data_dir import LOCKS, MANIFEST, DataDir
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files

if TYPE_CHECKING:
    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.task import Clock

    from image_service.server.catalog.lifecycle.signature import KeyRing
    from tests.server.catalog.lines import Lines

ISO = build_live_iso()
SHA256 = hashlib.sha256(ISO).hexdigest()
RETRY_SECONDS = 60.0
NOWHERE = "http://127.0.0.1:1/never-asked.iso"


def entry(
    url: str, version: str = "9.6.1-0", openshift: str = "4.19", image_type: str = "full-iso"
) -> OsImage:
    return OsImage(version, "x86_64", image_type, (openshift,), url)


@attrs.frozen
class Catalogs:
    """Starts catalogs over one directory, and stops them after the test."""

    reactor: EPollReactor
    clock: Clock
    data_dir: Path
    started: list[Catalog]

    def start(
        self, *entries: OsImage, keys: KeyRing | None = None, is_recorded: bool = False, **options: Any
    ) -> Catalog:
        client = OriginClient.from_settings(DownloadSettings())
        backoff = Backoff(RETRY_SECONDS, 4 * RETRY_SECONDS, jitter=lambda _, most: most)
        data_dir = DataDir(self.data_dir)
        records = BaseRecords(data_dir) if is_recorded else None
        fetcher = ImageFetcher(data_dir, partial(download_file, client), keys, records)
        catalog = Catalog(
            self.reactor, self.clock, entries, fetcher, CatalogOptions(backoff=backoff, **options)
        )
        self.started.append(catalog)
        catalog.start()
        catalog.superseded.start()
        return catalog

    def names(self) -> set[str]:
        return {path.name for path in self.data_dir.iterdir()} - {LOCKS, MANIFEST, RECORDS}


def write(path: Path, content: bytes = ISO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def partial_names(image: OsImage) -> set[str]:
    return {f".{image.file_name}.part", f".{image.file_name}.part.json"}


def is_open(descriptor: int) -> bool:
    return Path(f"/proc/self/fd/{descriptor}").exists()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def customized() -> bytes:
    return build_live_iso({**live_files(), "images/ignition.img": b"\x1f\x8b".ljust(262144, b"\0")})


async def digest_of(catalogs: Catalogs, lines: Lines, image: OsImage) -> str:
    catalog = catalogs.start(image)
    await lines.until(image.file_name, BaseImageState.READY)
    digest = catalog.find_base_image("4.19", "x86_64", Kind.FULL_ISO).sha256
    await catalog.stop()
    return digest
