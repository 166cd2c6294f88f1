"""The catalog of base images: each becomes ready by itself, and none waits for another.

Images are added and removed at run time, as streams change: a superseded one is no longer found, and stays
open while anything reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.python.threadpool import ThreadPool

from image_service.common.files.open_files import OpenFiles
from image_service.core.errors import UnknownBaseImage
from image_service.core.images.reference import Kind
from image_service.server.catalog.derived.derived_files import derived_names
from image_service.server.catalog.lifecycle.lifecycle import BaseImageLifecycle
from image_service.server.catalog.lifecycle.options import CatalogOptions, LifecycleDependencies
from image_service.server.catalog.remote.lifecycle import RemoteImageLifecycle
from image_service.server.catalog.superseded import SupersededBases

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.image_fetcher import ImageFetcher
    from image_service.server.catalog.lifecycle.status import BaseImageState, ImageStatus
    from image_service.server.catalog.remote.opening import RemoteImages
    from image_service.settings.os_images import OsImage

VERIFICATIONS = 2  # at a time; each keeps a processor and a disk busy
RECHECKS = 1  # same, in the background
PINS = 4  # remote images that are opened, checked or fetched as a whole at a time


class Catalog:
    """The base images.

    Args:
        reactor: receives the results of threads.
        clock: times retries and rechecks.
        entries: the images at first.
        fetcher: its directory is opened by ``start`` and closed by ``stop``.
        remote: opens remote images; None: there are none.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - two of them have defaults
        self,
        reactor: IReactorFromThreads,
        clock: IReactorTime,
        entries: Iterable[OsImage],
        fetcher: ImageFetcher,
        options: CatalogOptions | None = None,
        remote: RemoteImages | None = None,
    ) -> None:
        self._options = options = options or CatalogOptions()
        self._data_dir = fetcher.data_dir
        self._pool = ThreadPool(0, options.downloads + VERIFICATIONS + RECHECKS + PINS, "catalog")
        self._files = OpenFiles()
        self._shared = LifecycleDependencies(
            reactor=reactor,
            clock=clock,
            pool=self._pool,
            downloads=DeferredSemaphore(options.downloads),
            verifications=DeferredSemaphore(VERIFICATIONS),
            rechecks=DeferredSemaphore(RECHECKS),
            pins=DeferredSemaphore(PINS),
            fetcher=fetcher,
            files=self._files,
            options=options,
            keep=self._keep_superseded,
        )
        self.remote = remote
        self.superseded = SupersededBases(self._shared, lambda: self._lifecycles, remote)
        self._lifecycles: list[BaseImageLifecycle] = []
        self._aliases: Mapping[tuple[str, str], str] = {}
        self._index: dict[tuple[str, str, Kind], BaseImageLifecycle] = {}
        self._stopping: list[Deferred[None]] = []
        self._was_ready = False
        self.replace_images(entries)

    def start(self) -> None:
        """Open the directory, and start all images.

        Raises:
            OSError: the directory cannot be created or read.
        """
        self._data_dir.open()
        self._pool.start()
        for lifecycle in self._lifecycles:
            lifecycle.start()

    async def wait_for_attempts(self) -> None:
        """Wait for the attempts in progress; right after ``start``, each image's first one."""
        await gatherResults([lifecycle.attempt for lifecycle in self._lifecycles])

    async def stop(self) -> None:
        """Cancel all attempts and close every file; partial downloads stay resumable."""
        self.superseded.interrupt()
        if self.remote is not None:
            self.remote.interrupt()
        self._stopping += [Deferred.fromCoroutine(lifecycle.stop()) for lifecycle in self._lifecycles]
        await gatherResults(self._stopping)
        await self.superseded.stop()
        self._files.close()
        if self.remote is not None and self._pool.started:
            await self._shared.run_in_thread(self.remote.close)
        if self._pool.started:
            self._pool.stop()
        self._data_dir.close()

    def replace_images(self, entries: Iterable[OsImage]) -> None:
        """Keep those images that are there already, start new ones, and stop the others.

        Args:
            entries: those that differ in OpenShift versions only are one image. One that is served already
                stays, though it has another URL now.
        """
        self._was_ready = self._was_ready or self.is_ready
        before = {_source(lifecycle.entry): lifecycle for lifecycle in self._lifecycles}
        lifecycles = []
        for source, entry in _merge_versions(entries).items():
            key = source
            if source not in before:  # a search for each would take minutes of a start with some hundred
                key = next((each for each, served in before.items() if served.serves(entry)), source)
            lifecycle = before.pop(key, None)
            if lifecycle is None:
                lifecycle = self._make_lifecycle(entry)
                if self._pool.started:
                    lifecycle.start()
            lifecycle.entry = entry
            lifecycles.append(lifecycle)
        self._lifecycles = lifecycles
        for lifecycle in before.values():
            if lifecycle.base is not None:
                self.superseded.add(lifecycle.base)
        self.superseded.update()
        self._rebuild_index()
        self._stopping = [stopping for stopping in self._stopping if not stopping.called]
        self._stopping += [Deferred.fromCoroutine(lifecycle.stop()) for lifecycle in before.values()]

    def _keep_superseded(self, base: BaseImage) -> None:
        self.superseded.add(base)

    def _make_lifecycle(self, entry: OsImage) -> BaseImageLifecycle:
        if entry.remote and self.remote is not None:
            return RemoteImageLifecycle(entry, self._shared, self.remote)
        return BaseImageLifecycle(entry, self._shared)

    def set_aliases(self, aliases: Mapping[tuple[str, str], str]) -> None:
        """Map names to images, in preference to OpenShift versions.

        Args:
            aliases: by OpenShift version and architecture, the OS build.
        """
        self._aliases = aliases
        self._rebuild_index()

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """Return the base image from which to make a boot image.

        Args:
            version: the OS build of an entry, else its OpenShift version.
            architecture: as the entry spells it.

        Returns:
            the image; its file stays open while anything refers to it, until ``stop``.

        Raises:
            UnknownBaseImage: there is no such image; lists those there are.
            Unavailable: it is not ready; says why and when to retry.
            BaseImageError: it was refused; says why.
        """
        lifecycle = self._find_lifecycle(version, architecture, kind)
        if lifecycle.base is None:
            raise lifecycle.unavailable_error()
        return lifecycle.base

    def find_entry(self, version: str, architecture: str, kind: Kind) -> OsImage:
        """Return the entry of a base image, ready or not; see `find_base_image`."""
        return self._find_lifecycle(version, architecture, kind).entry

    def find_family(self, version: str, architecture: str) -> str | None:
        """Return the name of the family of a full ISO; None if it is not known, or there is none."""
        lifecycle = self._index.get((version, architecture, Kind.FULL_ISO))
        return None if lifecycle is None else lifecycle.family

    def _find_lifecycle(self, version: str, architecture: str, kind: Kind) -> BaseImageLifecycle:
        lifecycle = self._index.get((version, architecture, kind.base_kind))
        if lifecycle is None:
            known = "; ".join(
                f"{lifecycle.kind.value} {lifecycle.entry.version} for {lifecycle.entry.cpu_architecture} "
                f"({', '.join(lifecycle.entry.openshift_versions)})"
                for lifecycle in self._lifecycles
            )
            asked = f"{kind.base_kind.value} {version!r:.100} for {architecture!r:.100}"
            raise UnknownBaseImage(f"there is no {asked}; there is {known or 'none at all'}")
        return lifecycle

    def find_by_digest(self, sha256: str, kind: Kind) -> BaseImage | None:
        """Return the base image with these bytes, served or superseded; None unless there is exactly one.

        Raises:
            Unavailable: it is being opened.
        """
        bases = [lifecycle.base for lifecycle in self._lifecycles if lifecycle.kind is kind.base_kind]
        found = [base for base in bases if base is not None and base.sha256 == sha256]
        found = found or self.superseded.find(sha256, kind.base_kind)
        return found[0] if len(found) == 1 else None

    @property
    def is_ready(self) -> bool:
        """True if images can be served, and (unless any is enough) each image at the start was attempted."""
        served = [lifecycle.was_attempted for lifecycle in self._lifecycles if lifecycle.base]
        if self._options.ready_when_any or self._was_ready:
            return any(served)
        return bool(served) and all(lifecycle.was_attempted for lifecycle in self._lifecycles)

    def is_served(self, entry: OsImage) -> bool:
        """Return True if the image that this entry names is there and can be served."""
        return any(
            each.base is not None and each.entry.file_name == entry.file_name for each in self._lifecycles
        )

    def retry_now(self, version: str, architecture: str, kind: Kind) -> bool:
        """Begin the next attempt of an image at once; return False if no attempt is due.

        Raises:
            UnknownBaseImage: there is no such image.
        """
        return self._find_lifecycle(version, architecture, kind).retry_now()

    def find_states(self, version: str, architecture: str) -> set[BaseImageState]:
        """Return the states of the images of an OS build; more than one if it has several types."""
        return {
            lifecycle.state
            for lifecycle in self._lifecycles
            if (lifecycle.entry.version, lifecycle.entry.cpu_architecture) == (version, architecture)
        }

    def statuses(self) -> tuple[ImageStatus, ...]:
        """Return the status of each image, in the order of the configuration."""
        return tuple(lifecycle.status for lifecycle in self._lifecycles)

    def remove_unused_blocks(self) -> None:
        """Remove the cached blocks of remote images that are not configured any more. Blocks.

        Nothing is removed while the version of a configured one is not known, or a superseded one is being
        opened.
        """
        if self.superseded.is_opening:
            return
        lifecycles = [each for each in self._lifecycles if isinstance(each, RemoteImageLifecycle)]
        opened = [each.opened for each in lifecycles if each.opened is not None]
        if self.remote is not None and self.remote.is_started and len(opened) == len(lifecycles):
            self.remote.remove_unused(opened)

    @property
    def retained_names(self) -> set[str]:
        """The names in ``DATA_DIR`` of the images, of their derived files, and those that others need."""
        entries = [lifecycle.entry for lifecycle in self._lifecycles]
        others = self._options.other_names() | self.superseded.names
        derived = [derived_names(entry.version, entry.cpu_architecture) for entry in entries]
        return {entry.file_name for entry in entries}.union(others, *derived)

    def _rebuild_index(self) -> None:
        """OS builds go before aliases, aliases before OpenShift versions, earlier entries before later."""
        builds = {
            (lifecycle.entry.version, lifecycle.entry.cpu_architecture, lifecycle.kind): lifecycle
            for lifecycle in reversed(self._lifecycles)
        }
        index = dict(builds)
        for lifecycle in self._lifecycles:
            architecture, kind = lifecycle.entry.cpu_architecture, lifecycle.kind
            for name in lifecycle.entry.openshift_versions:
                build = self._aliases.get((name, architecture), lifecycle.entry.version)
                index.setdefault(
                    (name, architecture, kind), builds.get((build, architecture, kind), lifecycle)
                )
        self._index = index


def _source(entry: OsImage) -> OsImage:
    """Return what makes two entries the same image."""
    return attrs.evolve(entry, openshift_versions=())


def _merge_versions(entries: Iterable[OsImage]) -> dict[OsImage, OsImage]:
    """Return one entry per source, with the OpenShift versions of all."""
    merged: dict[OsImage, OsImage] = {}
    for entry in entries:
        known = merged.setdefault(_source(entry), entry)
        versions = dict.fromkeys((*known.openshift_versions, *entry.openshift_versions))
        merged[_source(entry)] = attrs.evolve(known, openshift_versions=tuple(versions))
    return merged
