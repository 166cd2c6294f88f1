"""One base image on its way from waiting to ready, and what is told of it meanwhile.

Files are fetched, read and hashed in threads; everything else happens in the reactor. What a thread runs is
never cancelled, so that the descriptor it opened always comes back: it is interrupted and ends by itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.internet.defer import Deferred, DeferredSemaphore, succeed
from twisted.internet.interfaces import (  # noqa: TC002 - attrs resolves annotations at run time
    IDelayedCall,
    IReactorFromThreads,
    IReactorTime,
)
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger, LogLevel
from twisted.python.threadpool import ThreadPool  # noqa: TC002 - same

from image_service.catalog.lifecycle.status import BaseImageState, ImageStatus
from image_service.concurrency.backoff import Backoff  # noqa: TC001 - same
from image_service.concurrency.interruption import Interrupted, Interruption
from image_service.errors import BaseImageError, Unavailable
from image_service.files.open_files import OpenFiles  # noqa: TC001 - same
from image_service.images.reference import Kind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.catalog.lifecycle.image_fetcher import ImageFetcher
    from image_service.images.base import BaseImage
    from image_service.settings.os_images import OsImage

T = TypeVar("T")

BUSY_RETRY_AFTER_SECONDS = 10
REFUSED_RETRY_AFTER_SECONDS = 3600  # takes an operator
RECHECK_AFTER_SECONDS = 60.0  # when the service has come up

_LEVELS = {BaseImageState.FAILED: LogLevel.warn, BaseImageState.REFUSED: LogLevel.error}


@attrs.frozen(eq=False)
class LifecycleDependencies:
    """What all base images share.

    Args:
        reactor: where results of threads arrive.
        clock: times the retries.
        pool: the threads.
        downloads: as many as there may be at a time.
        verifications: same.
        keeper: makes images be there, and opens them; each gets an interruption of its own.
        files: has charge of what is open.
        derive: makes what images of a base will need; None: nothing is to be made.
        backoff: when to try again.
        rechecks: as many as there may be at a time of those that take a disk in the background.
        changed: is called whenever an attempt is over.
        superseded: is told of each base image that will not be found any more.
    """

    reactor: IReactorFromThreads
    clock: IReactorTime
    pool: ThreadPool
    downloads: DeferredSemaphore
    verifications: DeferredSemaphore
    keeper: Callable[[Interruption], ImageFetcher]
    files: OpenFiles
    derive: Callable[[BaseImage], Awaitable[None] | None]
    backoff: Backoff
    rechecks: DeferredSemaphore
    changed: Callable[[], None]
    superseded: Callable[[BaseImage], None]


class BaseImageLifecycle:
    """One base image.

    Args:
        entry: what it is to be.
        means: what it shares with the others.
    """

    _log = Logger()

    def __init__(self, entry: OsImage, means: LifecycleDependencies) -> None:
        self.entry = entry
        self.kind = Kind(entry.image_type)
        self.state = BaseImageState.WAITING
        self.attempted = False
        """Whether the first attempt is over."""
        self.base: BaseImage | None = None
        """What is served: from its verification on."""
        self._reason = ""
        self._means = means
        self._interruption = Interruption()
        self._keeper = means.keeper(self._interruption)
        self._transferred: tuple[int, int | None] = (0, None)
        self._failures = 0
        self._retry: IDelayedCall | None = None
        self._running: Deferred[None] = succeed(None)
        self._is_rechecked = False
        """Whether this process has read every byte of it, or is about to."""
        self._recheck_call: IDelayedCall | None = None
        self._rechecking: Deferred[None] = succeed(None)

    def begin(self) -> None:
        """Take the image all the way, however often that fails."""
        self._retry = None
        self._running = Deferred.fromCoroutine(self._attempt())

    async def wait_until_idle(self) -> None:
        """Wait for the attempt that is going on."""
        await self._running

    async def end(self) -> None:
        """End what is going on, leave nothing half written, and let go of the image."""
        self._interruption.interrupt()
        for call in (self._retry, self._recheck_call):
            if call:
                call.cancel()
        self._retry = self._recheck_call = None
        await self._running
        await self._rechecking
        self._let_go()
        if self.state is not BaseImageState.STOPPED:
            self._change(BaseImageState.STOPPED)

    @property
    def status(self) -> ImageStatus:
        """What is told of it."""
        size = self.base.file.size if self.base else None
        done, total = self._transferred if size is None else (size, size)
        return ImageStatus(
            self.entry,
            self.state,
            self._reason,
            bytes_done=done,
            bytes_total=total,
            size=size,
            sha256=self.base.sha256 if self.base else None,
            retry_at=self._retry.getTime() if self._retry else None,
        )

    def refusal(self) -> Unavailable | BaseImageError:
        """Say why it cannot be served, and when to ask again."""
        name = self.entry.file_name
        if self.state is BaseImageState.REFUSED:
            return BaseImageError(
                f"{name} was refused: {self._reason}", retry_after_seconds=REFUSED_RETRY_AFTER_SECONDS
            )
        seconds = BUSY_RETRY_AFTER_SECONDS
        if self._retry:
            seconds = max(1, math.ceil(self._retry.getTime() - self._means.clock.seconds()))
        told = f": {self._reason or self._progress()}".removesuffix(": ")
        return Unavailable(f"{name} is {self.state.value}{told}", retry_after_seconds=seconds)

    def _progress(self) -> str:
        done, total = self._transferred
        if self.state is not BaseImageState.DOWNLOADING or not (done or total):
            return ""
        return f"{done} bytes" if total is None else f"{done} of {total} bytes"

    async def _attempt(self) -> None:
        """Go on from where it is. Is not cancelled; raises nothing."""
        try:
            if self.base is None:
                self._take(await self._obtain())
            await self._derive()
        except Interrupted:
            self._change(BaseImageState.STOPPED)
        except BaseImageError as error:
            self._refuse(error.detail)
        except Unavailable as error:
            self._fail(error.detail, error.retry_after_seconds)
        except OSError as error:
            self._fail(error.strerror or str(error))
        except Exception:  # noqa: BLE001 - a fault of ours in reading one image must not harm the others
            self._log.failure("base image {image} met a fault", image=self.entry.file_name)
            self._change(BaseImageState.REFUSED, "reading it met a fault of this service; the log has it")
        else:
            self._failures = 0
            self._change(BaseImageState.READY)
            self._plan_recheck()
        self.attempted = True
        self._means.changed()

    async def _obtain(self) -> BaseImage:
        """Have it verified, and fetched before where there is none, or one of ours that has gone bad."""
        if self._keeper.is_there(self.entry):
            try:
                return await self._verify()
            except BaseImageError:
                if self._keeper.is_there(self.entry):  # not ours to fetch again
                    raise
        self._is_rechecked = True
        obtain = partial(self._keeper.fetch_if_absent, self.entry, self._note)
        await self._means.downloads.run(self._in_thread, BaseImageState.DOWNLOADING, obtain)
        return await self._verify()

    def _verify(self) -> Deferred[BaseImage]:
        verify = partial(self._keeper.open, self.entry)
        return self._means.verifications.run(self._in_thread, BaseImageState.VERIFYING, verify)

    def _take(self, base: BaseImage) -> None:
        self._means.files.add_file(base.file)
        self.base = base
        self._tell_of_limits(base)

    async def _derive(self) -> None:
        derived = self._means.derive(self.base) if self.base else None
        if derived is not None:
            self._change(BaseImageState.DERIVING)
            await derived

    def _plan_recheck(self) -> None:
        """See to it that each byte is read once, of what was verified by a sample."""
        if not (self._is_rechecked or self._interruption.is_set):
            self._is_rechecked = True
            self._recheck_call = self._means.clock.callLater(RECHECK_AFTER_SECONDS, self._begin_recheck)

    def _begin_recheck(self) -> None:
        self._recheck_call = None
        if self.base:
            self._rechecking = Deferred.fromCoroutine(self._recheck(self.base))

    async def _recheck(self, base: BaseImage) -> None:
        """Read it to its end in the background; begin anew where it has rotted. Raises nothing."""
        work = partial(self._keeper.recheck, self.entry, base)
        try:
            await self._means.rechecks.run(deferToThreadPool, self._means.reactor, self._means.pool, work)
        except Interrupted:
            return
        except OSError as error:
            self._log.warn(
                "base image {image} cannot be read: {reason}",
                image=self.entry.file_name,
                reason=error.strerror or str(error),
            )
        except BaseImageError as error:
            self._let_go()
            self._refuse(error.detail, retry_after=None)
            self._means.changed()

    def _refuse(self, reason: str, retry_after: int | None = REFUSED_RETRY_AFTER_SECONDS) -> None:
        """What was fetched is fetched again, though not at once: its origin has to be mended first."""
        if self._keeper.is_there(self.entry):  # not ours to fetch again
            self._change(BaseImageState.REFUSED, reason)
        else:
            self._fail(reason, retry_after)

    def _let_go(self) -> None:
        if self.base is not None:
            self._means.superseded(self.base)
        self.base = None

    def _in_thread(self, state: BaseImageState, work: Callable[[], T]) -> Deferred[T]:
        self._change(state)
        return deferToThreadPool(self._means.reactor, self._means.pool, work)

    def _note(self, done: int, total: int | None) -> None:
        """Take note of progress; in a thread."""
        self._transferred = (done, total)

    def _fail(self, reason: str, retry_after_seconds: int | None = None) -> None:
        """Try again later, unless there is no later."""
        self._failures += 1
        if not self._interruption.is_set:
            seconds = self._means.backoff.delay_seconds(self._failures, retry_after_seconds)
            self._retry = self._means.clock.callLater(seconds, self.begin)
        self._change(BaseImageState.FAILED, reason)

    def _change(self, state: BaseImageState, reason: str = "") -> None:
        """Go over to another state: one line in the log."""
        self.state, self._reason = state, reason
        self._log.emit(
            _LEVELS.get(state, LogLevel.info),
            "base image {image} is {state}: {reason}" if reason else "base image {image} is {state}",
            image=self.entry.file_name,
            state=state.value,
            reason=reason,
        )

    def _tell_of_limits(self, base: BaseImage) -> None:
        """Tell of what only a ``disconnected-iso`` may be, customised before, and what an image cannot do."""
        if base.layout.no_minimal and not base.disconnected:
            self._log.info(
                "base image {image} has no minimal ISO in it: {reason}",
                image=self.entry.file_name,
                reason=base.layout.no_minimal,
            )
        if base.layout.customized:
            self._log.warn(
                "base image {image} was customised before, which will be overwritten: {reason}",
                image=self.entry.file_name,
                reason=base.layout.customized,
            )
