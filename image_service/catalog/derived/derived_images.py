"""What is derived from base images, made beside the requests: who asks too soon is told when to come back.

Files are made in a thread, one after the other, and stay open for as long as anything refers to their base
image, or to them. While one is made, its base image is open a second time, so that it does not matter whether
that is closed meanwhile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from image_service.catalog.derived.derivation import WITHOUT_MINIMAL_ISO
from image_service.catalog.derived.derived_files import DerivedFiles
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import ImageServiceError, Unavailable
from image_service.files.open_files import OpenFiles
from image_service.images.base import BaseImage, NmstateImage

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from twisted.internet.interfaces import IReactorFromThreads, IReactorTime

    from image_service.catalog.storage.data_dir import DataDir
    from image_service.files.base_file import BaseFile

T = TypeVar("T", BaseImage, NmstateImage)
R = TypeVar("R")
_Key: TypeAlias = tuple[str, str, str]

RETRY_SECONDS = 60.0  # after an attempt that failed
BUSY_RETRY_AFTER_SECONDS = 5


class DerivedImages:
    """The minimal ISOs, and the initrds with nmstatectl, that are derived from base images.

    Args:
        reactor: where results of threads arrive.
        clock: times the retries.
        data_dir: where the files are kept.
    """

    def __init__(self, reactor: IReactorFromThreads, clock: IReactorTime, data_dir: DataDir) -> None:
        self._interruption = Interruption()
        self._thread = ThreadPool(0, 1, "templates")
        self._thread.start()
        files = DerivedFiles(data_dir, self._interruption)
        worker = _Worker(reactor, clock, self._thread, self._interruption)
        self._minimal_isos = _Shelf("the minimal ISO", files.get_minimal_iso, worker)
        self._nmstates = _Shelf("the initrd with nmstatectl", files.get_nmstate_image, worker)

    def prepare(self, base: BaseImage) -> None:
        """Begin with what images of this base will need.

        Args:
            base: a base image that has just been opened.
        """
        for shelf in self._shelves(base):
            shelf.begin(base)

    def derive(self, base: BaseImage) -> Coroutine[Any, Any, None] | None:
        """Begin with what images of this base will need, and wait for it.

        Args:
            base: a base image.

        Returns:
            ends when all is there; with Unavailable where something could not be made, with Interrupted where
            this stops. None: all is there.
        """
        self.prepare(base)
        missing = [shelf for shelf in self._shelves(base) if not shelf.holds(base)]
        return self._made(missing, base) if missing else None

    @staticmethod
    async def _made(shelves: list[_Shelf[BaseImage] | _Shelf[NmstateImage]], base: BaseImage) -> None:
        for shelf in shelves:
            await shelf.made(base)

    def _shelves(self, base: BaseImage) -> Iterator[_Shelf[BaseImage] | _Shelf[NmstateImage]]:
        """Those that something of a base belongs on."""
        if base.disconnected:
            return
        if base.needs_nmstate:
            yield self._nmstates
        virtual = base.layout.minimal and not base.needs_nmstate
        if not virtual and base.architecture not in WITHOUT_MINIMAL_ISO:
            yield self._minimal_isos

    def get_minimal_iso(self, base: BaseImage) -> BaseImage:
        """Give a minimal ISO with room for a ramdisk, and with nmstatectl where the base needs it.

        Args:
            base: the full ISO.

        Returns:
            the minimal ISO; its file stays open for as long as anything refers to it, or until
            ``stop``.

        Raises:
            Unavailable: not yet, or not now; says why and when to ask again.
        """
        return self._minimal_isos.take(base)

    def get_nmstate_image(self, base: BaseImage) -> NmstateImage:
        """Give an initrd that has nmstatectl and nothing else.

        Args:
            base: has it in its rootfs.

        Returns:
            the initrd; its file stays open for as long as anything refers to it, or until
            ``stop``.

        Raises:
            Unavailable: not yet, or not now; says why and when to ask again.
        """
        return self._nmstates.take(base)

    async def stop(self) -> None:
        """End what is going on, leave nothing half written and close every file; then nothing is made."""
        self._interruption.interrupt()
        await self._minimal_isos.stop()
        await self._nmstates.stop()
        if self._thread.started:
            self._thread.stop()


@attrs.frozen(eq=False)
class _Worker:
    """Where files are made, and by which clock.

    Args:
        reactor: where results of the thread arrive.
        clock: times the retries.
        thread: a pool of one.
        interruption: comes with the end.
    """

    reactor: IReactorFromThreads
    clock: IReactorTime
    thread: ThreadPool
    interruption: Interruption

    async def run(self, make: Callable[[BaseImage], R], base: BaseImage) -> R:
        """Make a file of a base image, which may be closed meanwhile."""
        own = base.file.duplicate()
        try:
            return await deferToThreadPool(self.reactor, self.thread, make, attrs.evolve(base, file=own))
        finally:
            own.close()


@attrs.define(eq=False)
class _Derived(Generic[T]):
    """One derived file.

    Args:
        name: what messages call it.
        file: the file, open.
        attempt: is over when it is there, or could not be made; None: it is not being made.
        reason: why the last attempt failed.
        retry_at: when it is worth another, by the clock.
    """

    name: str
    file: T | None = None
    attempt: Deferred[None] | None = None
    reason: str = ""
    retry_at: float = -math.inf


class _Shelf(Generic[T]):
    """All derived files of one sort.

    Args:
        sort: what messages call them.
        make: finds or makes one, in a thread.
        worker: runs it.
    """

    _log = Logger()

    def __init__(self, sort: str, make: Callable[[BaseImage], T], worker: _Worker) -> None:
        self._sort = sort
        self._make: Callable[[BaseImage], T] = make
        self._worker = worker
        self._all: WeakKeyDictionary[BaseFile, dict[_Key, _Derived[T]]] = WeakKeyDictionary()
        self._files = OpenFiles()
        self._running: set[Deferred[None]] = set()

    def begin(self, base: BaseImage) -> _Derived[T]:
        """See to it that a file is made, unless it is there, under way, or has failed just now."""
        key = (base.sha256, base.version, base.architecture)
        derived_of_file = self._all.setdefault(base.file, {})
        derived = derived_of_file.setdefault(key, _Derived(f"{self._sort} of {base.name}"))
        idle = not (derived.file or derived.attempt or self._worker.interruption.is_set)
        if idle and self._worker.clock.seconds() >= derived.retry_at:
            attempt = derived.attempt = Deferred.fromCoroutine(self._attempt(derived, base))
            self._running.add(attempt)
            attempt.addBoth(lambda _: self._end(derived, attempt))
        return derived

    def holds(self, base: BaseImage) -> bool:
        """Whether a file is there."""
        return self.begin(base).file is not None

    async def made(self, base: BaseImage) -> None:
        """Wait for the attempt to make a file."""
        derived = self.begin(base)
        if derived.attempt:
            await derived.attempt
        if self._worker.interruption.is_set:
            raise Interrupted
        self.take(base)

    def take(self, base: BaseImage) -> T:
        """Give a file that is there."""
        derived = self.begin(base)
        if derived.file is None:
            raise self._refusal(derived)
        return derived.file

    async def stop(self) -> None:
        """Wait for what is going on, which was interrupted, and close every file."""
        await gatherResults(list(self._running))
        self._files.close()
        self._all.clear()

    async def _attempt(self, derived: _Derived[T], base: BaseImage) -> None:
        """Make one file. Is not cancelled; raises nothing."""
        self._log.info("{name} is being made", name=derived.name)
        try:
            made = await self._worker.run(self._make, base)
        except Interrupted:
            self._log.info("{name} is left for the next start", name=derived.name)
        except ImageServiceError as error:
            self._fail(derived, error.detail)
        except OSError as error:
            self._fail(derived, error.strerror or str(error))
        except Exception:  # noqa: BLE001 - a fault of ours in making one must not harm the others
            self._log.failure("{name} met a fault", name=derived.name)
            self._fail(derived, "making it met a fault of this service; the log has it")
        else:
            self._files.add_file(made.file)
            derived.file = made
            self._log.info("{name} is ready", name=derived.name)

    def _end(self, derived: _Derived[T], attempt: Deferred[None]) -> None:
        derived.attempt = None
        self._running.discard(attempt)

    def _fail(self, derived: _Derived[T], reason: str) -> None:
        derived.reason = reason
        derived.retry_at = self._worker.clock.seconds() + RETRY_SECONDS
        self._log.warn("{name} could not be made: {reason}", name=derived.name, reason=reason)

    def _refusal(self, derived: _Derived[T]) -> Unavailable:
        if self._worker.interruption.is_set:
            return Unavailable("this service stops", retry_after_seconds=BUSY_RETRY_AFTER_SECONDS)
        if derived.attempt:
            return Unavailable(f"{derived.name} is being made", retry_after_seconds=BUSY_RETRY_AFTER_SECONDS)
        seconds = derived.retry_at - self._worker.clock.seconds()
        return Unavailable(
            f"{derived.name} could not be made: {derived.reason}",
            retry_after_seconds=max(1, math.ceil(seconds)),
        )
