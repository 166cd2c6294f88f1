"""Everything that makes and serves the bytes of composes, over a catalog and streams of tests."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs
from twisted.internet.task import Clock

from image_service.common.concurrency.interruption import Interruption
from image_service.common.objects.directory import DirectoryStore
from image_service.core.errors import Unavailable, UnknownBaseImage
from image_service.jobs.artifacts.actions import ArtifactActions
from image_service.jobs.artifacts.bases import Bases
from image_service.jobs.artifacts.composed_images import ComposedImages
from image_service.jobs.artifacts.contents import Contents
from image_service.jobs.artifacts.disk_images import DiskImages
from image_service.jobs.plans.plan import UploadPlace, make_plan
from image_service.server.catalog.download.downloader import download_file
from image_service.server.catalog.download.origin_client import OriginClient
from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.server.catalog.storage.data_dir import DataDir
from image_service.server.serving.digests import Digests
from image_service.settings.base_images import DownloadSettings
from image_service.settings.os_images import OsImage
from tests.jobs.database.composing import NOW, ids_of_jobs, make_compose

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from twisted.internet.defer import Deferred

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.reference import Kind
    from image_service.jobs.model import Compose, ComposeRequest, ImageCustomization
    from image_service.server.streams.stream import StreamRelease
    from tests.jobs.database.composing import Rows

T = TypeVar("T")


async def run_here(work: Callable[[], T], /) -> T:
    """Run work at once, as a pool of threads does later."""
    return work()


def iso_entry(version: str = "9.6.1-0", *names: str, architecture: str = "x86_64") -> OsImage:
    """Return the entry of a live ISO."""
    return OsImage(version, architecture, "full-iso", names or ("4.19",), "http://127.0.0.1:1/x.iso")


def disk_entry(path: Path, *names: str, version: str = "9.6.1-0", **values: Any) -> OsImage:
    """Return the entry of a disk image that is there."""
    return OsImage(version, "x86_64", "metal-disk", names or ("4.19",), path.as_uri(), **values)


@attrs.define
class Isos:
    """A catalog whose images are ready once a test says so."""

    entries: list[OsImage] = attrs.field(factory=list)
    ready: dict[str, BaseImage] = attrs.field(factory=dict)

    @attrs.frozen
    class Status:
        """Of one image."""

        entry: OsImage

    def statuses(self) -> list[Status]:
        return [self.Status(entry) for entry in self.entries]

    def find_entry(self, version: str, architecture: str, _: Kind) -> OsImage:
        for entry in self.entries:
            if entry.cpu_architecture == architecture and version in {
                entry.version,
                *entry.openshift_versions,
            }:
                return entry
        raise UnknownBaseImage(f"there is no {version}")

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        entry = self.find_entry(version, architecture, kind)
        if entry.version not in self.ready:
            raise Unavailable("not yet", retry_after_seconds=1)
        return self.ready[entry.version]

    def get_minimal_iso(self, _: BaseImage) -> BaseImage:
        """Stand in for `DerivedImages`, too."""
        raise Unavailable("the minimal ISO is being derived", retry_after_seconds=5)


@attrs.define
class DesiredReleases:
    """The streams."""

    desired: tuple[StreamRelease, ...] = ()


@attrs.define(slots=False)
class Artifacts:
    """The parts, all in one thread."""

    rows: Rows
    directory: Path
    isos: Isos = attrs.field(factory=Isos)
    streams: DesiredReleases = attrs.field(factory=DesiredReleases)
    disk_entries: list[OsImage] = attrs.field(factory=list)
    aliases: Mapping[str, str] = attrs.field(factory=dict)
    byte_server_url: str | None = None

    def __attrs_post_init__(self) -> None:
        (self.directory / "disks").mkdir()
        self.store = DirectoryStore(self.directory / "store")
        self.images = self.rows.images
        client = OriginClient.from_settings(DownloadSettings())
        fetcher = ImageFetcher(DataDir(self.directory / "disks"), partial(download_file, client))
        self.interruption = Interruption()
        self.disks = DiskImages(run_here, fetcher, self.interruption)
        in_thread = cast("Callable[[Callable[[], bytes]], Deferred[bytes]]", run_here)
        self.digests = Digests(Clock(), in_thread)

    @property
    def bases(self) -> Bases:
        isos, streams = cast("Any", self.isos), cast("Any", self.streams)
        return Bases(isos, streams, self.disk_entries, self.aliases, self.byte_server_url)

    @property
    def composed(self) -> ComposedImages:
        return ComposedImages(run_here, self.bases, cast("Any", self.isos), self.rows.composes)

    @property
    def contents(self) -> Contents:
        return Contents(
            run_here,
            self.bases,
            self.disks,
            self.composed,
            self.digests,
            self.rows.composes,
            self.rows.jobs,
            self.images,
            self.store,
        )

    @property
    def actions(self) -> ArtifactActions:
        return ArtifactActions(
            run_here,
            self.bases,
            self.disks,
            self.composed,
            self.digests,
            self.rows.composes,
            self.rows.jobs,
            self.images,
            self.store,
            self.rows.clock,
        )

    def add(
        self, request: ComposeRequest, customization: ImageCustomization | None = None
    ) -> tuple[Compose, dict[str, str]]:
        """Add a compose of a request, with its plan; return it, and the ids of its jobs."""
        base = self.bases.find(request.distribution, request.architecture, request.image_type)
        compose = make_compose(
            distribution=request.distribution, image_type=request.image_type, created_at=NOW
        )
        plan = make_plan(compose.id, request, base, UploadPlace("bucket", ""))
        compose = attrs.evolve(compose, plan=plan)
        self.rows.composes.add(compose, customization or request.customization, 1000)
        return compose, ids_of_jobs(compose)
