"""All base images: each makes its own way from waiting to ready, and none waits for another.

They come and go at run time, as streams do: what is superseded is not found any more, and stays open for
whoever is reading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.python.threadpool import ThreadPool

from image_service.catalog.derived.derived_files import derived_names
from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
from image_service.catalog.lifecycle.lifecycle import BaseImageLifecycle, LifecycleDependencies
from image_service.catalog.lifecycle.status import BaseImageState, ImageStatus
from image_service.concurrency.backoff import Backoff
from image_service.errors import UnknownBaseImage
from image_service.files.open_files import OpenFiles

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime

    from image_service.catalog.lifecycle.image_fetcher import Fetch
    from image_service.catalog.lifecycle.signature import KeyRing
    from image_service.catalog.storage.data_dir import DataDir
    from image_service.images.base import BaseImage
    from image_service.images.reference import Kind
    from image_service.settings.os_images import OsImage

DOWNLOADS = 2  # at a time
VERIFICATIONS = 2  # at a time; they keep a processor and a disk busy
RECHECKS = 1  # same, in the background


class Catalog:
    """The base images.

    Args:
        reactor: where results of threads arrive.
        clock: times the retries.
        entries: the images to begin with.
        data_dir: the only directory that is written; is open from ``start`` to ``stop``.
        fetch: makes a partial file complete, as ``Downloader.fetch`` does.
        keys: one of which must have signed an image; None: no signature is asked for.
        derive: makes what images of a base will need, as ``Templates.derive`` does.
        downloads: as many there may be at a time.
        backoff: when an image that failed is tried again.
        any_is_enough: whether one image that is ready makes the whole ready.
        changed: is called whenever an image may have become ready, or not.
        superseded: is told of each base image that will not be found any more.
    """

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        reactor: IReactorFromThreads,
        clock: IReactorTime,
        entries: Iterable[OsImage],
        data_dir: DataDir,
        fetch: Fetch,
        *,
        keys: KeyRing | None = None,
        derive: Callable[[BaseImage], Awaitable[None] | None] = lambda _: None,
        downloads: int = DOWNLOADS,
        backoff: Backoff | None = None,
        any_is_enough: bool = False,
        changed: Callable[[], None] = lambda: None,
        superseded: Callable[[BaseImage], None] = lambda _: None,
    ) -> None:
        self._data_dir = data_dir
        self._any_is_enough = any_is_enough
        self._pool = ThreadPool(0, downloads + VERIFICATIONS + RECHECKS, "catalog")
        self._files = OpenFiles()
        self._means = LifecycleDependencies(
            reactor=reactor,
            clock=clock,
            pool=self._pool,
            downloads=DeferredSemaphore(downloads),
            verifications=DeferredSemaphore(VERIFICATIONS),
            keeper=lambda interruption: ImageFetcher(data_dir, fetch, interruption, keys),
            files=self._files,
            derive=derive,
            backoff=backoff or Backoff(),
            rechecks=DeferredSemaphore(RECHECKS),
            changed=changed,
            superseded=superseded,
        )
        self._arrivals: list[BaseImageLifecycle] = []
        self._aliases: Mapping[tuple[str, str], str] = {}
        self._index: dict[tuple[str, str, Kind], BaseImageLifecycle] = {}
        self._ending: set[Deferred[None]] = set()
        self.replace_images(entries)

    def start(self) -> None:
        """Begin with all images.

        Raises:
            OSError: ``data_dir`` cannot be made or read.
        """
        self._data_dir.open()
        self._pool.start()
        for arrival in self._arrivals:
            arrival.begin()

    async def wait_for_attempts(self) -> None:
        """Wait for the attempts that are going on; right after ``start``, every image's first."""
        await _all(arrival.wait_until_idle() for arrival in self._arrivals)

    async def stop(self) -> None:
        """End what is going on, leave nothing half written and close every file; then nothing is found."""
        await _all(arrival.end() for arrival in self._arrivals)
        await gatherResults(list(self._ending))
        self._files.close()
        if self._pool.started:
            self._pool.stop()
        self._data_dir.close()

    def replace_images(self, entries: Iterable[OsImage]) -> None:
        """Have these images from now on: go on with those that are there, begin with the others.

        Args:
            entries: the images; those that differ in nothing but OpenShift versions are one.
        """
        before = {_source(arrival.entry): arrival for arrival in self._arrivals}
        self._arrivals = [self._arrival(before, entry) for entry in _merged(entries)]
        self._reindex()
        for arrival in before.values():
            self._dismiss(arrival)

    def set_aliases(self, aliases: Mapping[tuple[str, str], str]) -> None:
        """Let names stand for certain images, whichever else they would be found by.

        Args:
            aliases: by OpenShift version and architecture, the OS build.
        """
        self._aliases = aliases
        self._reindex()

    def find_base_image(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """Give the base image to make a boot image from.

        Args:
            version: the OS build of an entry, else its OpenShift version.
            architecture: as the entry spells it.
            kind: the kind of boot image.

        Returns:
            the image; its file stays open for as long as anything refers to it, or until ``stop``.

        Raises:
            UnknownBaseImage: there is no such image; says which there are.
            Unavailable: not yet, or not now; says why and when to ask again.
            BaseImageError: the image was refused; says why.
        """
        arrival = self._index.get((version, architecture, kind.base_kind))
        if arrival is None:
            raise UnknownBaseImage(self._absence(version, architecture, kind.base_kind))
        if arrival.base is None:
            raise arrival.refusal()
        return arrival.base

    def find_by_digest(self, sha256: str, kind: Kind) -> BaseImage | None:
        """Give the base image that has certain bytes, whatever it is found by now.

        Args:
            sha256: of its file, lower-case hex.
            kind: the kind of boot image.

        Returns:
            the image; None: there is none that is ready, or several are alike and only a name tells which.
        """
        bases = [arrival.base for arrival in self._arrivals if arrival.kind is kind.base_kind]
        alike = [base for base in bases if base is not None and base.sha256 == sha256]
        return alike[0] if len(alike) == 1 else None

    @property
    def is_ready(self) -> bool:
        """Whether images can be served, and none but those that failed will be ready only later."""
        served = [arrival.attempted for arrival in self._arrivals if arrival.base]
        if self._any_is_enough:
            return any(served)
        return bool(served) and all(arrival.attempted for arrival in self._arrivals)

    def has_ready_image(self, version: str, architecture: str) -> bool:
        """Whether all is there that images of an OS build need."""
        return any(
            (arrival.entry.version, arrival.entry.cpu_architecture) == (version, architecture)
            and arrival.state is BaseImageState.READY
            for arrival in self._arrivals
        )

    def statuses(self) -> tuple[ImageStatus, ...]:
        """Tell how far each image has come, in the order of the configuration."""
        return tuple(arrival.status for arrival in self._arrivals)

    @property
    def retained_names(self) -> set[str]:
        """What must stay in ``DATA_DIR``, by name: the images, and what is derived from them."""
        entries = [arrival.entry for arrival in self._arrivals]
        derived = [derived_names(entry.version, entry.cpu_architecture) for entry in entries]
        return {entry.file_name for entry in entries}.union(*derived)

    def _arrival(self, before: dict[OsImage, BaseImageLifecycle], entry: OsImage) -> BaseImageLifecycle:
        arrival = before.pop(_source(entry), None)
        if arrival is not None:
            arrival.entry = entry
            return arrival
        arrival = BaseImageLifecycle(entry, self._means)
        if self._pool.started:
            arrival.begin()
        return arrival

    def _dismiss(self, arrival: BaseImageLifecycle) -> None:
        ending = Deferred.fromCoroutine(arrival.end())
        self._ending.add(ending)
        ending.addCallback(lambda _: self._ending.discard(ending))

    def _reindex(self) -> None:
        """Look up by OS build before aliases before OpenShift version, the first entry before the later."""
        builds = {
            (arrival.entry.version, arrival.entry.cpu_architecture, arrival.kind): arrival
            for arrival in reversed(self._arrivals)
        }
        index = dict(builds)
        for arrival in self._arrivals:
            architecture, kind = arrival.entry.cpu_architecture, arrival.kind
            for name in arrival.entry.openshift_versions:
                build = self._aliases.get((name, architecture), arrival.entry.version)
                index.setdefault((name, architecture, kind), builds.get((build, architecture, kind), arrival))
        self._index = index

    def _absence(self, version: str, architecture: str, kind: Kind) -> str:
        there = "; ".join(
            f"{arrival.kind.value} {arrival.entry.version} for {arrival.entry.cpu_architecture} "
            f"({', '.join(arrival.entry.openshift_versions)})"
            for arrival in self._arrivals
        )
        asked = f"{kind.value} {version!r:.100} for {architecture!r:.100}"
        return f"there is no {asked}; there is {there or 'none at all'}"


def _source(entry: OsImage) -> OsImage:
    """What makes an image the same, whatever it is for."""
    return attrs.evolve(entry, openshift_versions=())


def _merged(entries: Iterable[OsImage]) -> list[OsImage]:
    """One entry for each image."""
    merged: dict[OsImage, OsImage] = {}
    for entry in entries:
        known = merged.setdefault(_source(entry), entry)
        versions = dict.fromkeys((*known.openshift_versions, *entry.openshift_versions))
        merged[_source(entry)] = attrs.evolve(known, openshift_versions=tuple(versions))
    return list(merged.values())


async def _all(work: Iterable[Coroutine[Any, Any, None]]) -> None:
    await gatherResults([Deferred.fromCoroutine(each) for each in work])
