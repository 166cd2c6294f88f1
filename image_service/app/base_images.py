"""The parts that have base images be there: the catalog, what is derived, the streams and their mirror."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from image_service.catalog.catalog import Catalog
from image_service.catalog.derived.derived_images import DerivedImages
from image_service.catalog.download.downloader import Downloader
from image_service.catalog.download.origin_client import OriginClient
from image_service.catalog.lifecycle.signature import KeyRing
from image_service.catalog.storage.data_dir import DataDir
from image_service.concurrency.backoff import Backoff
from image_service.concurrency.interruption import Interruption
from image_service.concurrency.threads import run_at_low_priority
from image_service.settings.os_images import FULL_ISO, OsImage
from image_service.standalone.sample import (
    SAMPLE_ARCHITECTURE,
    SAMPLE_OPENSHIFT_VERSION,
    SAMPLE_VERSION,
    unpack_sample,
)
from image_service.streams.mirror import Mirror
from image_service.streams.release_preparer import ReleasePreparer
from image_service.streams.stream_sync import StreamSync
from image_service.streams.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.app.lifecycle import Running
    from image_service.images.base import BaseImage
    from image_service.settings.settings import Settings
    from image_service.streams.release_preparer import MirroredRelease
    from image_service.streams.streams import StreamRelease

COLLECT_SECONDS = 600
"""How often it is said which base images are wanted, and what nobody wants is removed."""

FOLLOW_SECONDS = 10.0
"""How often it is read what the process has been told that asks the streams."""


class BaseImages:
    """What images are made from.

    Args:
        reactor: the one that runs.
        settings: what the environment says.
        running: where the parts end.
        entries: the base images that are configured.
        superseded: is told of each base image that will not be found any more.
        leads: whether it does what only one of several processes is to do.
    """

    def __init__(  # noqa: PLR0913 - one more than are usual
        self,
        reactor: EPollReactor,
        settings: Settings,
        running: Running,
        entries: tuple[OsImage, ...],
        superseded: Callable[[BaseImage], None],
        *,
        leads: bool = True,
    ) -> None:
        self._leads = leads
        self._reactor = reactor
        self._settings = settings
        self._running = running
        self.entries = entries
        self._sync: StreamSync | None = None
        self._data_dir = DataDir(
            settings.storage.data_dir,
            settings.storage.retention_seconds,
            settings.storage.max_bytes,
            scratch=settings.storage.scratch_dir,
        )
        self._http = OriginClient.from_settings(settings.download, settings.source_urls)
        self.templates = DerivedImages(reactor, reactor, self._data_dir)
        self.catalog = self._catalog(superseded)

    def _catalog(self, superseded: Callable[[BaseImage], None]) -> Catalog:
        settings = self._settings
        return Catalog(
            self._reactor,
            self._reactor,
            self.entries,
            self._data_dir,
            Downloader(self._http).download,
            keys=KeyRing.read(settings.catalog.signing_keys) if settings.catalog.signing_keys else None,
            derive=self.templates.derive,
            downloads=settings.download.concurrency,
            backoff=Backoff(settings.download.retry_min_seconds, settings.download.retry_max_seconds),
            any_is_enough=settings.catalog.ready_when == "any",
            changed=self._images_changed,
            superseded=superseded,
        )

    def start(self) -> None:
        """Begin with all that are configured.

        Raises:
            OSError: ``DATA_DIR`` cannot be made or read.
        """
        self.catalog.start()
        if self._leads:
            self._collect()
        self._running.push_async_callback(self.catalog.stop)
        self._running.push_async_callback(self.templates.stop)  # before the files that it reads are closed

    def _collect(self) -> None:
        in_thread = self._running.in_pool(1, "data directory")
        collect = self._data_dir.collect_garbage
        self._running.every(COLLECT_SECONDS, lambda: in_thread(partial(collect, self.catalog.retained_names)))

    async def start_streams(self, base_url: str) -> Mirror:
        """Begin with those of streams.

        Args:
            base_url: that clients reach this service by.

        Returns:
            publishes what is held of them.
        """
        settings = self._settings
        streams = Streams(
            self._reactor,
            self._running.in_pool(1, "streams"),
            self._http,
            settings.streams.sources,
            settings.storage.data_dir,
            refresh_seconds=settings.streams.refresh_seconds if self._leads else _follow_seconds(settings),
            fetches=self._leads,
        )
        mirror = self._start_mirror(streams, base_url)
        self._sync = sync = StreamSync(self.entries, self.catalog, streams, mirror)
        self._running.push_async_callback(streams.stop)
        await streams.start(sync.update_catalog)
        self._running.callback(self._stop_sync)
        return mirror

    def _start_mirror(self, streams: Streams, base_url: str) -> Mirror:
        in_thread, interruption = self._running.in_pool(1, "mirror"), Interruption()
        preparer = ReleasePreparer(
            self._settings.storage.data_dir, self._http, interruption, self._data_dir.claim_files
        )
        mirror = Mirror(
            streams,
            self.catalog.find_base_image,
            lambda work: in_thread(partial(run_at_low_priority, work)),
            partial(self._prepare, preparer, interruption),
            base_url,
        )
        self._running.every(self._settings.streams.refresh_seconds, mirror.update)
        self._running.push_async_callback(mirror.settled)
        self._running.callback(interruption.interrupt)
        return mirror

    def _prepare(
        self, preparer: ReleasePreparer, interruption: Interruption, wanted: StreamRelease, base: BaseImage
    ) -> MirroredRelease:
        """Take turns with other processes: who comes second finds what the first has hashed and fetched."""
        with self._data_dir.lock(f"mirror of {wanted.entry.file_name}", interruption):
            return preparer.prepare(wanted, base)

    def _stop_sync(self) -> None:
        """What ends now changes images for the last time."""
        self._sync = None

    def _images_changed(self) -> None:
        if self._sync is not None:
            self._sync.update_aliases()


def _follow_seconds(settings: Settings) -> float:
    return min(FOLLOW_SECONDS, settings.streams.refresh_seconds)


def configured_images(settings: Settings, *, standalone: bool) -> tuple[OsImage, ...]:
    """Give the base images that are configured; standing alone without a configuration, the sample.

    Args:
        settings: what the environment says.
        standalone: with the embedded stand-in.

    Raises:
        OSError: the sample cannot be written.
    """
    if standalone and not settings.catalog.images and not settings.streams.sources:
        return (_sample(settings.storage.data_dir),)
    return settings.catalog.images


def _sample(data_dir: Path) -> OsImage:
    data_dir.mkdir(parents=True, exist_ok=True)
    path = unpack_sample(data_dir)
    return OsImage(
        version=SAMPLE_VERSION,
        cpu_architecture=SAMPLE_ARCHITECTURE,
        image_type=FULL_ISO,
        openshift_versions=(SAMPLE_OPENSHIFT_VERSION,),
        url=path.resolve().as_uri(),
    )
