"""Images derived from base images, beside the requests: a client that asks too early is told when to retry.

Files are derived in a thread, one after the other, and stay open while anything refers to them or to their
base image. During a derivation the base image has a second descriptor, so that the first may be closed
meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel
from twisted.python.threadpool import ThreadPool

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.files.open_files import OpenFiles
from image_service.core.errors import ImageServiceError, Unavailable, describe_os_error
from image_service.core.families.coreos.family import WITHOUT_MINIMAL_ISO
from image_service.core.images.base_image import BaseImage, NmstateImage
from image_service.server.catalog.derived.derived_files import DerivedFileStore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime

    from image_service.core.base_file import BaseFile
    from image_service.server.catalog.storage.data_dir import DataDir

T = TypeVar("T", BaseImage, NmstateImage)
R = TypeVar("R")
_Key: TypeAlias = tuple[str, str, str]

RETRY_SECONDS = 60.0  # after a failure
BUSY_RETRY_AFTER_SECONDS = 5


class DerivedImages:
    """The minimal ISOs, and the initrds with nmstatectl, that are derived from base images."""

    def __init__(self, reactor: IReactorFromThreads, clock: IReactorTime, data_dir: DataDir) -> None:
        self._interruption = Interruption()
        self._pool = ThreadPool(0, 1, "derived images")
        self._pool.start()
        files = DerivedFileStore(data_dir, self._interruption)
        runner = _Runner(reactor, clock, self._pool, self._interruption)
        self._minimal_isos = DerivedFileCache("the minimal ISO", files.get_minimal_iso, runner)
        self._nmstate_images = DerivedFileCache("the initrd with nmstatectl", files.get_nmstate_image, runner)

    def derive(self, base: BaseImage) -> Coroutine[Any, Any, None] | None:
        """Start to derive what images of a base need.

        Returns:
            None if all is there; else a coroutine that ends when it is, raises Unavailable if something
            cannot be derived, and Interrupted when this stops.
        """
        missing = [cache for cache in self._caches_for(base) if cache.start_deriving(base).file is None]

        async def wait() -> None:
            failures: list[Unavailable] = []
            for cache in missing:
                try:
                    await cache.wait_for_file(base)
                except Unavailable as error:
                    failures.append(error)
            if failures:
                raise Unavailable(
                    "; ".join(failure.detail for failure in failures),
                    retry_after_seconds=max(failure.retry_after_seconds or 0 for failure in failures),
                )

        return wait() if missing else None

    def _caches_for(
        self, base: BaseImage
    ) -> Iterator[DerivedFileCache[BaseImage] | DerivedFileCache[NmstateImage]]:
        if base.disconnected or base.family is not None:
            return
        if base.needs_nmstate:
            yield self._nmstate_images
        can_be_spliced = base.coreos.minimal and not base.needs_nmstate
        if not can_be_spliced and base.architecture not in WITHOUT_MINIMAL_ISO:
            yield self._minimal_isos

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """Return a minimal ISO with an area for a ramdisk, and with nmstatectl if the base needs it.

        Its file stays open while anything refers to it, until ``stop``.

        Raises:
            Unavailable: not yet, or it cannot be derived; says why and when to retry.
        """
        return self._minimal_isos.get_file(base)

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """Return an initrd with nmstatectl and nothing else; see `get_minimal_iso`."""
        return self._nmstate_images.get_file(base)

    async def stop(self) -> None:
        """Cancel all attempts and close every file."""
        self._interruption.interrupt()
        await self._minimal_isos.stop()
        await self._nmstate_images.stop()
        if self._pool.started:
            self._pool.stop()


@attrs.frozen(eq=False)
class _Runner:
    """The thread, its clock, and the interruption that stops it."""

    reactor: IReactorFromThreads
    clock: IReactorTime
    pool: ThreadPool
    interruption: Interruption

    async def run(self, derive: Callable[[BaseImage], R], base: BaseImage) -> R:
        """Derive a file from a base image, which may be closed meanwhile."""
        duplicate = base.file.duplicate()
        try:
            return await deferToThreadPool(
                self.reactor, self.pool, derive, attrs.evolve(base, file=duplicate)
            )
        finally:
            duplicate.close()


@attrs.define(eq=False)
class _CachedFile(Generic[T]):
    """A derived file, or the attempt to derive it.

    Args:
        file: None: absent.
        attempt: fires when it is over; None: there is none in progress.
        reason: why the last attempt failed.
        retry_at: seconds of the clock.
    """

    name: str
    file: T | None = None
    attempt: Deferred[None] | None = None
    reason: str = ""
    retry_at: float = -math.inf


class DerivedFileCache(Generic[T]):
    """All derived files of one kind, open."""

    _log = Logger()

    def __init__(self, kind: str, derive: Callable[[BaseImage], T], runner: _Runner) -> None:
        self._kind = kind
        self._derive: Callable[[BaseImage], T] = derive
        self._runner = runner
        self._entries: WeakKeyDictionary[BaseFile, dict[_Key, _CachedFile[T]]] = WeakKeyDictionary()
        self._files = OpenFiles()

    def start_deriving(self, base: BaseImage) -> _CachedFile[T]:
        """Start an attempt unless the file is there, one is in progress, or one failed just now."""
        key = (base.sha256, base.version, base.architecture)
        entries = self._entries.setdefault(base.file, {})
        entry = entries.setdefault(key, _CachedFile(f"{self._kind} of {base.name}"))
        is_idle = not (entry.file or entry.attempt or self._runner.interruption.is_set)
        if is_idle and self._runner.clock.seconds() >= entry.retry_at:
            entry.attempt = Deferred.fromCoroutine(self._attempt(entry, base))
            entry.attempt.addBoth(lambda _: setattr(entry, "attempt", None))
        return entry

    async def wait_for_file(self, base: BaseImage) -> None:
        """Wait for the attempt in progress; raise Unavailable if it failed, Interrupted if it was stopped."""
        entry = self.start_deriving(base)
        if entry.attempt:
            await entry.attempt
        if self._runner.interruption.is_set:
            raise Interrupted
        self.get_file(base)

    def get_file(self, base: BaseImage) -> T:
        """Return the file if it is there; else raise Unavailable, and start an attempt."""
        entry = self.start_deriving(base)
        if entry.file is not None:
            return entry.file
        if self._runner.interruption.is_set:
            raise Unavailable("the service is stopping", retry_after_seconds=BUSY_RETRY_AFTER_SECONDS)
        if entry.attempt:
            detail = f"{entry.name} is being derived"
            raise Unavailable(detail, retry_after_seconds=BUSY_RETRY_AFTER_SECONDS)
        seconds = max(1, math.ceil(entry.retry_at - self._runner.clock.seconds()))
        detail = f"{entry.name} could not be derived: {entry.reason}"
        raise Unavailable(detail, retry_after_seconds=seconds)

    async def stop(self) -> None:
        """Wait for the interrupted attempts, and close every file."""
        # An attempt refers to its base image, so that its entry stays.
        entries = [entry for by_key in self._entries.values() for entry in by_key.values()]
        await gatherResults([entry.attempt for entry in entries if entry.attempt])
        self._files.close()
        self._entries.clear()

    async def _attempt(self, entry: _CachedFile[T], base: BaseImage) -> None:
        """Derive one file. Is not canceled; raises nothing."""
        level = LogLevel.debug if entry.reason else LogLevel.info
        self._log.emit(level, "{name} is being derived", name=entry.name)
        try:
            derived = await self._runner.run(self._derive, base)
        except Interrupted:
            self._log.info("{name} is not derived: the service is stopping", name=entry.name)
        except ImageServiceError as error:
            self._fail(entry, error.detail)
        except OSError as error:
            self._fail(entry, describe_os_error(error))
        except Exception:  # noqa: BLE001 - a bug in deriving one must not harm the others
            self._log.failure("unexpected error while deriving {name}", name=entry.name)
            self._fail(entry, "unexpected error; see the log")
        else:
            self._files.add_file(derived.file)
            entry.file = derived
            self._log.info("{name} is ready", name=entry.name)

    def _fail(self, entry: _CachedFile[T], reason: str) -> None:
        level = LogLevel.warn if entry.reason != reason else LogLevel.debug
        self._log.emit(
            level,
            "{name} could not be derived: {reason}; next attempt in {seconds:.0f} s or later",
            name=entry.name,
            reason=reason,
            seconds=RETRY_SECONDS,
        )
        entry.reason = reason
        entry.retry_at = self._runner.clock.seconds() + RETRY_SECONDS
