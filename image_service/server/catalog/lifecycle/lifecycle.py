"""The lifecycle of one base image, from waiting to ready.

Files are fetched, read and hashed in threads; everything else happens in the reactor. Work in a thread is
never canceled, so that the descriptor it opened is always returned: it is interrupted and finishes by itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger, LogLevel

from image_service.common.concurrency.interruption import Interrupted, Interruption
from image_service.common.http.origins import public_url
from image_service.core.errors import BaseImageError, Unavailable, describe_os_error
from image_service.core.families.coreos.family import COREOS
from image_service.core.images.reference import Kind
from image_service.server.catalog.lifecycle.status import BaseImageState, ImageStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from twisted.internet.interfaces import IDelayedCall

    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.options import LifecycleDependencies
    from image_service.settings.os_images import OsImage

T = TypeVar("T")

BUSY_RETRY_AFTER_SECONDS = 10
REFUSED_RETRY_AFTER_SECONDS = 3600  # needs an operator
RECHECK_AFTER_SECONDS = 60.0  # when the service has started up

_LEVELS = {
    BaseImageState.DEGRADED: LogLevel.warn,
    BaseImageState.FAILED: LogLevel.warn,
    BaseImageState.REFUSED: LogLevel.error,
}


class BaseImageLifecycle:
    """One base image: fetched, verified, derived from, retried on failure."""

    _log = Logger()

    def __init__(self, entry: OsImage, shared: LifecycleDependencies) -> None:
        self.entry = entry
        self.kind = Kind(entry.image_type)
        self.state = BaseImageState.WAITING
        self.was_attempted = False
        """True if the first attempt is over."""
        self.base: BaseImage | None = None
        """The open image, once it is verified."""
        self._reason = ""
        self._since = shared.options.now()
        self._shared = shared
        self._fetcher = shared.fetcher
        self._interruption = Interruption()
        self._progress: tuple[int, int | None] = (0, None)
        self._failures = 0
        self._logged_failure = ""
        self._retry: IDelayedCall | None = None
        self.attempt: Deferred[None] = succeed(None)
        """Fires when the attempt in progress is over."""
        self._is_rechecked = False
        """True if this process has read every byte, or is going to."""
        self._recheck_call: IDelayedCall | None = None
        self._recheck: Deferred[None] = succeed(None)

    def start(self) -> None:
        """Attempt to make the image ready; retried until that succeeds."""
        self._retry = None
        self.attempt = Deferred.fromCoroutine(self._make_ready())

    def retry_now(self) -> bool:
        """Begin the next attempt at once, of a refused image too; return False if no attempt is due."""
        if self._retry is not None:
            self._retry.cancel()
        elif self.state is not BaseImageState.REFUSED or not self.attempt.called:
            return False
        self.start()
        return True

    async def stop(self) -> None:
        """Cancel the attempt, and release the image; a partial download stays resumable."""
        self._interruption.interrupt()
        for call in (self._retry, self._recheck_call):
            if call:
                call.cancel()
        self._retry = self._recheck_call = None
        await self.attempt
        await self._recheck
        self._release_image()
        if self.state is not BaseImageState.STOPPED:
            self._set_state(BaseImageState.STOPPED)

    def serves(self, entry: OsImage) -> bool:
        """Return True if the downloaded image that is served has the name and the digest of this entry.

        Without a digest the name decides, as at a start, which downloads no image that is there already.
        """
        entries = (self.entry, entry)
        is_downloaded = not any(each.local_path or each.remote for each in entries)
        is_same = self.base is not None and entry.sha256 in {None, self.base.sha256}
        return is_downloaded and is_same and self.entry.file_name == entry.file_name

    @property
    def family(self) -> str | None:
        """The name of its family; None: it has not been opened yet, and the configuration does not say."""
        if self.base is None:
            return self.entry.family
        return self.base.family.name if self.base.family else COREOS

    @property
    def status(self) -> ImageStatus:
        """The state, with progress and reason."""
        size = self.base.file.size if self.base else None
        done, total = self._progress if size is None else (size, size)
        return ImageStatus(
            self.entry,
            self.state,
            self._reason,
            bytes_done=done,
            bytes_total=total,
            size=size,
            sha256=self.base.sha256 if self.base else None,
            verified="digest" if self.base and self.entry.sha256 else None,
            family=self.family,
            retry_seconds=self._retry_seconds,
            since=self._since,
        )

    @property
    def _retry_seconds(self) -> float | None:
        """Until the next attempt; None: none is scheduled."""
        return self._retry.getTime() - self._shared.clock.seconds() if self._retry else None

    def unavailable_error(self) -> Unavailable | BaseImageError:
        """Return the error for a client: why the image cannot be served, and when to retry."""
        name = self.entry.file_name
        reason = self._reason if self._shared.options.tells_reasons else ""
        if self.state is BaseImageState.REFUSED:
            detail = f": {reason}" if reason else ""
            return BaseImageError(
                f"{name} was refused{detail}", retry_after_seconds=REFUSED_RETRY_AFTER_SECONDS
            )
        seconds = BUSY_RETRY_AFTER_SECONDS
        if self._retry_seconds is not None:
            seconds = max(1, math.ceil(self._retry_seconds))
        done, total = self._progress
        if not reason and self.state is BaseImageState.DOWNLOADING and (done or total):
            reason = f"{done} bytes" if total is None else f"{done} of {total} bytes"
        detail = f": {reason}" if reason else ""
        return Unavailable(f"{name} is {self.state.value}{detail}", retry_after_seconds=seconds)

    async def _make_ready(self) -> None:
        """Continue from the present state. Is not canceled; raises nothing."""
        try:
            if self.base is None:
                self._adopt(await self._fetch_and_verify())
            derived = self._derive(self.base) if self.base else None
            if derived is not None:
                if self.state is not BaseImageState.DEGRADED:  # which holds until a retry succeeds
                    self._set_state(BaseImageState.DERIVING)
                await derived
            self._fetcher.check_programs()
        except Interrupted:
            self._set_state(BaseImageState.STOPPED)
        except BaseImageError as error:
            self._refuse(error.detail, REFUSED_RETRY_AFTER_SECONDS)
        except Unavailable as error:
            self._fail(error.detail, error.retry_after_seconds)
        except OSError as error:
            self._fail(describe_os_error(error))
        except Exception:  # noqa: BLE001 - a bug in reading one image must not harm the others
            self._log.failure("unexpected error while opening base image {image}", image=self.entry.file_name)
            self._set_state(BaseImageState.REFUSED, "unexpected error while opening it; see the log")
        else:
            self._failures, self._logged_failure = 0, ""
            self._set_state(BaseImageState.READY)
        self.was_attempted = True
        self._shared.options.on_change()

    def _derive(self, base: BaseImage) -> Awaitable[None] | None:
        """Start to derive what images of a base need; see `DerivedImages.derive`."""
        return self._shared.options.derive(base)

    def _adopt(self, base: BaseImage) -> None:
        """Serve an image that was opened."""
        self.base = base
        self._shared.files.add_file(base.file)
        self._log_limits(base)
        self._schedule_recheck()

    async def _fetch_and_verify(self) -> BaseImage:
        """Fetch the image only if it is absent, or was downloaded and is invalid."""
        if self._fetcher.is_complete(self.entry):
            try:
                return await self._verify()
            except BaseImageError as error:
                if self.entry.local_path is not None:
                    raise BaseImageError(f"{self.entry.local_path}: {error.detail}") from None
                if self._fetcher.is_complete(self.entry):  # not downloaded here
                    raise
        self._is_rechecked = True
        fetch = partial(self._fetcher.fetch_if_absent, self.entry, self._interruption, self._record_progress)
        await self._shared.downloads.run(self._run_in_state, BaseImageState.DOWNLOADING, fetch)
        try:
            return await self._verify()
        except BaseImageError as error:
            raise BaseImageError(
                f"the file from {public_url(self.entry.url)} is refused: {error.detail}"
            ) from None

    def _verify(self) -> Deferred[BaseImage]:
        verify = partial(self._fetcher.open, self.entry, self._interruption)
        return self._shared.verifications.run(self._run_in_state, BaseImageState.VERIFYING, verify)

    def _run_in_state(self, state: BaseImageState, work: Callable[[], T]) -> Deferred[T]:
        self._set_state(state)
        return self._shared.run_in_thread(work)

    def _record_progress(self, done: int, total: int | None) -> None:
        """Called in a thread."""
        self._progress = (done, total)

    def _schedule_recheck(self) -> None:
        """Have every byte read later, unless they were: the image may have been verified by a sample only."""
        if not (self._is_rechecked or self._interruption.is_set):
            self._is_rechecked = True
            clock = self._shared.clock
            self._recheck_call = clock.callLater(RECHECK_AFTER_SECONDS, self._start_recheck)

    def _start_recheck(self) -> None:
        self._recheck_call = None
        if self.base:
            self._recheck = Deferred.fromCoroutine(self._run_recheck(self.base))

    async def _run_recheck(self, base: BaseImage) -> None:
        """Read the image in the background; fetch it again if its content changed. Raises nothing."""
        work = partial(self._fetcher.recheck, self.entry, base, self._interruption)
        try:
            await self._shared.rechecks.run(self._shared.run_in_thread, work)
        except Interrupted:
            return
        except OSError as error:
            self._log.warn(
                "base image {image} cannot be read: {reason}",
                image=self.entry.file_name,
                reason=describe_os_error(error),
            )
        except BaseImageError as error:
            await self._withdraw(error.detail)

    async def _withdraw(self, reason: str) -> None:
        """Serve an image no longer that was served."""
        await self.attempt  # to derive from it again
        if self._retry:
            self._retry.cancel()
            self._retry = None
        self._release_image()
        self._refuse(reason, retry_after_seconds=None)
        self._shared.options.on_change()

    def _release_image(self) -> None:
        if self.base is not None:
            self._shared.options.on_superseded(self.base)
        self.base = None

    def _refuse(self, reason: str, retry_after_seconds: int | None) -> None:
        """Fetch a downloaded image again, later; refuse one that was not downloaded here."""
        if self._fetcher.is_complete(self.entry):
            self._set_state(BaseImageState.REFUSED, reason)
        else:
            self._fail(reason, retry_after_seconds)

    def _fail(self, reason: str, retry_after_seconds: int | None = None) -> None:
        """Schedule a retry, unless the service stops; an open image is served meanwhile."""
        self._failures += 1
        next_attempt = ""
        if not self._interruption.is_set:
            seconds = self._shared.options.backoff.delay_seconds(self._failures, retry_after_seconds)
            self._retry = self._shared.clock.callLater(seconds, self.start)
            next_attempt = f"; next attempt in {seconds:.0f} s"
        state = BaseImageState.DEGRADED if self.base else BaseImageState.FAILED
        self._set_state(state, reason, next_attempt)
        self._logged_failure = reason

    def _set_state(self, state: BaseImageState, reason: str = "", next_attempt: str = "") -> None:
        """Log the state too; a retry, and that it failed for the same reason again, for debugging only."""
        if state is not self.state:
            self._since = self._shared.options.now()
        self.state, self._reason = state, reason
        is_repeated = self._failures > 0 and reason in {"", self._logged_failure}
        progress = LogLevel.info if self._shared.options.logs_progress else LogLevel.debug
        self._log.emit(
            LogLevel.debug if is_repeated else _LEVELS.get(state, progress),
            "base image {image} is {state}" + (": {reason}{next_attempt}" if reason else ""),
            image=self.entry.file_name,
            state=state.value,
            reason=reason,
            next_attempt=next_attempt,
        )

    def _log_limits(self, base: BaseImage) -> None:
        if base.family is not None:
            return
        if base.coreos.no_minimal and not base.disconnected and self._shared.options.logs_progress:
            self._log.info(
                "base image {image} contains no usable minimal ISO: {reason}",
                image=self.entry.file_name,
                reason=base.coreos.no_minimal,
            )
        if base.coreos.customized:  # only a disconnected ISO may be
            self._log.warn(
                "base image {image} is already customized; its customization will be overwritten: {reason}",
                image=self.entry.file_name,
                reason=base.coreos.customized,
            )
