"""All base images: each makes its own way from waiting to ready, and none waits for another.

Files are fetched, read and hashed in threads of the catalog's own; everything else happens in the reactor.
What a thread runs is never cancelled, so that the descriptor it opened always comes back: it is interrupted
and ends by itself.
"""

from __future__ import annotations

import enum
import math
import os
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore, gatherResults
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel
from twisted.python.threadpool import ThreadPool

from image_service.catalog.interruption import Interrupted, Interruption
from image_service.catalog.keeper import Keeper
from image_service.errors import BaseImageError, Unavailable, UnknownBaseImage
from image_service.images.reference import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads, IReactorTime

    from image_service.catalog.data_dir import DataDir
    from image_service.catalog.keeper import Fetch
    from image_service.catalog.signature import KeyRing
    from image_service.images.base import BaseImage
    from image_service.os_images import OsImage

T = TypeVar("T")

DOWNLOADS = 4  # at a time
VERIFICATIONS = 2  # at a time; they keep a processor and a disk busy
RETRY_SECONDS = 60.0  # after an attempt that failed
BUSY_RETRY_AFTER_SECONDS = 10
REFUSED_RETRY_AFTER_SECONDS = 3600  # takes an operator


class State(enum.Enum):
    """How far a base image has come."""

    WAITING = "waiting"
    DOWNLOADING = "downloading"
    VERIFYING = "verifying"
    READY = "ready"
    FAILED = "failed"  # is tried again
    REFUSED = "refused"  # is not what it should be, and stays so until the next start
    STOPPED = "stopped"


_LEVELS = {State.FAILED: LogLevel.warn, State.REFUSED: LogLevel.error}


@attrs.frozen
class ImageStatus:
    """What is told about one base image.

    Args:
        image: its name, as in ``DATA_DIR``.
        state: how far it has come.
        reason: why it failed or was refused; else empty.
    """

    image: str
    state: State
    reason: str


@attrs.define(eq=False)
class _Image:
    """One base image on its way."""

    entry: OsImage
    kind: Kind
    state: State = State.WAITING
    reason: str = ""
    attempted: bool = False
    base: BaseImage | None = None
    retry: IDelayedCall | None = None


class Catalog:
    """The base images of ``OS_IMAGES``.

    Args:
        reactor: where results of threads arrive.
        clock: times the retries.
        entries: the images, no two of one file name.
        data_dir: the only directory that is written; is open from ``start`` to ``stop``.
        fetch: makes a partial file complete, as ``Downloader.fetch`` does.
        prepare_templates: begins with what is derived from a base image.
        keys: one of which must have signed an image; None: no signature is asked for.
    """

    _log = Logger()

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        reactor: IReactorFromThreads,
        clock: IReactorTime,
        entries: Iterable[OsImage],
        data_dir: DataDir,
        fetch: Fetch,
        *,
        prepare_templates: Callable[[BaseImage], None] = lambda _: None,
        keys: KeyRing | None = None,
    ) -> None:
        self._reactor = reactor
        self._clock = clock
        self._data_dir = data_dir
        self._prepare_templates = prepare_templates
        self._images = [_Image(entry, Kind(entry.image_type)) for entry in entries]
        self._index = _index(self._images)
        self._interruption = Interruption()
        self._keeper = Keeper(data_dir, fetch, self._interruption, keys)
        self._pool = ThreadPool(0, DOWNLOADS + VERIFICATIONS, "catalog")
        self._downloads = DeferredSemaphore(DOWNLOADS)
        self._verifications = DeferredSemaphore(VERIFICATIONS)
        self._running: set[Deferred[None]] = set()

    def start(self) -> None:
        """Begin with all images.

        Raises:
            OSError: ``data_dir`` cannot be made or read.
        """
        self._data_dir.open()
        self._pool.start()
        for image in self._images:
            self._attempt(image)

    async def settled(self) -> None:
        """Wait for the attempts that are going on; right after ``start``, every image's first."""
        await gatherResults(list(self._running))

    async def stop(self) -> None:
        """End what is going on, leave nothing half written and close every file; then nothing is found."""
        self._interruption.interrupt()
        for image in self._images:
            if image.retry:
                image.retry.cancel()
                image.retry = None
        await self.settled()
        for image in self._images:
            self._close(image)
        if self._pool.started:
            self._pool.stop()
        self._data_dir.close()

    def find(self, version: str, architecture: str, kind: Kind) -> BaseImage:
        """Give the base image to make a boot image from.

        Args:
            version: the OS build of an entry, else its OpenShift version.
            architecture: as the entry spells it.
            kind: the kind of boot image.

        Returns:
            the image; its file stays open until ``stop``.

        Raises:
            UnknownBaseImage: there is no such image; says which there are.
            Unavailable: not yet, or not now; says why and when to ask again.
            BaseImageError: the image was refused; says why.
        """
        image = self._index.get((version, architecture, kind.base))
        if image is None:
            raise UnknownBaseImage(self._absence(version, architecture, kind.base))
        if image.base is None:
            raise self._refusal(image)
        return image.base

    @property
    def ready(self) -> bool:
        """Whether no image is on its first way any more, and at least one has arrived."""
        return all(image.attempted for image in self._images) and any(image.base for image in self._images)

    def states(self) -> tuple[ImageStatus, ...]:
        """Tell how far each image has come, in the order of the configuration."""
        return tuple(ImageStatus(image.entry.file_name, image.state, image.reason) for image in self._images)

    def _absence(self, version: str, architecture: str, kind: Kind) -> str:
        there = "; ".join(
            f"{image.kind.value} {image.entry.version} for {image.entry.cpu_architecture} "
            f"({', '.join(image.entry.openshift_versions)})"
            for image in self._images
        )
        asked = f"{kind.value} {version!r:.100} for {architecture!r:.100}"
        return f"there is no {asked}; there is {there or 'none at all'}"

    def _refusal(self, image: _Image) -> Unavailable | BaseImageError:
        name = image.entry.file_name
        if image.state is State.REFUSED:
            return BaseImageError(
                f"{name} was refused: {image.reason}", retry_after_seconds=REFUSED_RETRY_AFTER_SECONDS
            )
        seconds = BUSY_RETRY_AFTER_SECONDS
        if image.retry:
            seconds = max(1, math.ceil(image.retry.getTime() - self._clock.seconds()))
        reason = f": {image.reason}" if image.reason else ""
        return Unavailable(f"{name} is {image.state.value}{reason}", retry_after_seconds=seconds)

    def _attempt(self, image: _Image) -> None:
        image.retry = None
        attempt = Deferred.fromCoroutine(self._prepare(image))
        self._running.add(attempt)

        def forget(result: T) -> T:
            self._running.discard(attempt)
            return result

        attempt.addBoth(forget)

    async def _prepare(self, image: _Image) -> None:
        """Take one image all the way. Is not cancelled; raises nothing."""
        try:
            image.base = await self._obtain(image)
        except Interrupted:
            self._change(image, State.STOPPED)
        except BaseImageError as error:
            self._change(image, State.REFUSED, error.detail)
        except Unavailable as error:
            self._fail(image, error.detail)
        except OSError as error:
            self._fail(image, error.strerror or str(error))
        except Exception:  # noqa: BLE001 - a fault of ours in reading one image must not harm the others
            self._log.failure("base image {image} met a fault", image=image.entry.file_name)
            self._change(image, State.REFUSED, "reading it met a fault of this service; the log has it")
        else:
            self._change(image, State.READY)
            self._tell_of_limits(image.entry.file_name, image.base)
            self._prepare_templates(image.base)
        image.attempted = True

    def _tell_of_limits(self, name: str, base: BaseImage) -> None:
        """Tell of what only a ``disconnected-iso`` may be, customised before, and what an image cannot do."""
        if base.layout.no_minimal and not base.disconnected:
            self._log.info(
                "base image {image} has no minimal ISO in it: {reason}",
                image=name,
                reason=base.layout.no_minimal,
            )
        if base.layout.customized:
            self._log.warn(
                "base image {image} was customised before, which will be overwritten: {reason}",
                image=name,
                reason=base.layout.customized,
            )

    async def _obtain(self, image: _Image) -> BaseImage:
        if not self._keeper.is_there(image.entry):
            obtain = partial(self._keeper.obtain, image.entry)
            await self._downloads.run(self._in_thread, image, State.DOWNLOADING, obtain)
        verify = partial(self._keeper.open, image.entry)
        return await self._verifications.run(self._in_thread, image, State.VERIFYING, verify)

    def _in_thread(self, image: _Image, state: State, work: Callable[[], T]) -> Deferred[T]:
        self._change(image, state)
        return deferToThreadPool(self._reactor, self._pool, work)

    def _fail(self, image: _Image, reason: str) -> None:
        """Try again later, unless there is no later."""
        self._change(image, State.FAILED, reason)
        if not self._interruption.happened:
            image.retry = self._clock.callLater(RETRY_SECONDS, self._attempt, image)

    def _change(self, image: _Image, state: State, reason: str = "") -> None:
        """Go over to another state: one line in the log."""
        image.state, image.reason = state, reason
        self._log.emit(
            _LEVELS.get(state, LogLevel.info),
            "base image {image} is {state}: {reason}" if reason else "base image {image} is {state}",
            image=image.entry.file_name,
            state=state.value,
            reason=reason,
        )

    def _close(self, image: _Image) -> None:
        """Close the file, once."""
        if image.base:
            os.close(image.base.file.descriptor)
            image.base = None
            self._change(image, State.STOPPED)


def _index(images: Iterable[_Image]) -> dict[tuple[str, str, Kind], _Image]:
    """Look-up by OS build before OpenShift version, the first entry before the later ones."""
    index: dict[tuple[str, str, Kind], _Image] = {}
    for image in images:
        index[image.entry.version, image.entry.cpu_architecture, image.kind] = image
    for image in images:
        for version in image.entry.openshift_versions:
            index.setdefault((version, image.entry.cpu_architecture, image.kind), image)
    return index
