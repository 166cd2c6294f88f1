"""The lifecycle of a remote base image: pinned, served, and pinned again when its origin has another version.

The version before goes on for those who read it, as far as its bytes are on local disk.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

from image_service.common.concurrency.interruption import Interrupted
from image_service.common.files.block_cache.source import OriginFailed
from image_service.common.registry.references import is_registry_url
from image_service.core.errors import BaseImageError, Unavailable, describe_os_error
from image_service.server.catalog.lifecycle.lifecycle import BaseImageLifecycle
from image_service.server.catalog.lifecycle.status import BaseImageState
from image_service.server.catalog.remote.whole_digest import WholeRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IDelayedCall

    from image_service.common.files.block_cache.source import CacheIdentity
    from image_service.core.images.base_image import BaseImage
    from image_service.server.catalog.lifecycle.options import LifecycleDependencies
    from image_service.server.catalog.lifecycle.status import ImageStatus
    from image_service.server.catalog.remote.opening import OpenedImage, RemoteImages
    from image_service.settings.os_images import OsImage

CHANGE_RETRY_SECONDS = 10.0
"""Until the next try to open the version that an origin has now: newcomers get it within 30 s."""

MIN_CHECK_SECONDS = 5.0
"""Between checks: an origin that lies about its version is not asked all the time."""

BACKGROUND_RETRY_SECONDS = 60.0
"""Until the next try to verify or fetch an image as a whole."""


WATCH_SECONDS = 2.0
"""Between looks at whether another serving process has found a change."""


class RemoteImageLifecycle(BaseImageLifecycle):
    """One remote image.

    Args:
        entry: with ``remote``.
        shared: as for other images.
        remote: opens it.
    """

    _log = Logger()

    def __init__(self, entry: OsImage, shared: LifecycleDependencies, remote: RemoteImages) -> None:
        super().__init__(entry, shared)
        self._remote = remote
        self._opened: OpenedImage | None = None
        self._background: list[Deferred[None]] = []
        self._background_retry: IDelayedCall | None = None
        self._checked_at = -math.inf
        self._latest_change = 0
        self._watch = LoopingCall(self._look_for_change)
        self._watch.clock = shared.clock

    async def stop(self) -> None:
        """Cancel the attempt, and release the image; its blocks stay in the cache."""
        self._interruption.interrupt()
        if self._watch.running:
            self._watch.stop()
        self._cancel_background_retry()
        await gatherResults(self._background)
        await super().stop()

    @property
    def status(self) -> ImageStatus:
        """The state, with what is on local disk."""
        status = super().status
        opened = self._opened
        if self.base is None or opened is None:
            return status
        return attrs.evolve(
            status,
            bytes_done=self._remote.local_bytes(opened),
            sha256=self.entry.sha256,
            verified=opened.verified,
            layer=opened.pin.version if is_registry_url(self.entry.url) else None,
        )

    @property
    def opened(self) -> OpenedImage | None:
        """The version that is served; None: none is yet."""
        return self._opened if self.base is not None else None

    async def _fetch_and_verify(self) -> BaseImage:
        self._remote.start()
        return (await self._open()).base

    async def _open(self) -> OpenedImage:
        """Open the version that the origin has now."""

        def work() -> OpenedImage:
            opened = self._remote.open(self.entry, self._interruption, self._report_change)
            self._fetcher.record(self.entry, opened.base.sha256, opened.pin)
            return opened

        if self.base is None:
            self._set_state(BaseImageState.DOWNLOADING)
        self._opened = opened = await self._shared.pins.run(self._shared.run_in_thread, work)
        return opened

    def _derive(self, _base: BaseImage) -> None:
        """Derive nothing before the first request for it: that may fetch all of the base."""

    def _adopt(self, base: BaseImage) -> None:
        super()._adopt(base)
        if not self._watch.running:
            self._latest_change = self._remote.latest_change()
            self._watch.start(WATCH_SECONDS, now=False)
        if self._opened is not None:
            self._cancel_background_retry()
            self._start_background(self._opened)

    def _start_background(self, opened: OpenedImage) -> None:
        self._background_retry = None
        self._background = [each for each in self._background if not each.called]
        self._background.append(Deferred.fromCoroutine(self._complete(opened)))

    def _cancel_background_retry(self) -> None:
        if self._background_retry is not None:
            self._background_retry.cancel()
            self._background_retry = None

    async def _complete(self, opened: OpenedImage) -> None:
        """Verify the whole, then fetch it, as far as that is asked for. Raises nothing.

        Tries again later if that fails, unless another version is served by then.
        """
        action = "verified"
        try:
            if self._remote.must_verify(opened):
                await self._run_in_background(partial(self._remote.verify, opened, self._interruption))
                self._look_for_change()
            action = "fetched"
            if self._remote.prefetch == "all":
                await self._run_in_background(partial(self._remote.fetch_all, opened, self._interruption))
        except Interrupted:
            pass
        except OSError as error:
            self._log.warn(
                "base image {image} was not {action} as a whole: {reason}",
                image=self.entry.file_name,
                action=action,
                reason=describe_os_error(error),
            )
            if opened is self._opened and not self._interruption.is_set:
                asked = error.retry_after_seconds if isinstance(error, OriginFailed) else 0
                self._background_retry = self._shared.clock.callLater(
                    max(BACKGROUND_RETRY_SECONDS, asked), self._start_background, opened
                )

    def _run_in_background(self, work: Callable[[], None]) -> Deferred[None]:
        return self._shared.rechecks.run(self._shared.run_in_thread, work)

    def _look_for_change(self) -> None:
        """Check the origin if a process on the cache has found a change, or has verified an image."""
        latest, is_checked = self._remote.latest_change(), self._recheck_call is None
        if latest != self._latest_change and self._opened is not None and not is_checked:
            self._latest_change = latest
            self._check_soon(self._opened.identity)

    def _report_change(self, wanted: CacheIdentity) -> None:
        """Called in a thread, for each fetch that finds another version than it wanted."""
        if not self._interruption.is_set:
            self._shared.reactor.callFromThread(self._check_soon, wanted)

    def _check_soon(self, wanted: CacheIdentity) -> None:
        """Check now, but not all the time, unless a check is in progress or the version is superseded."""
        call, now = self._recheck_call, self._shared.clock.seconds()
        is_present = self._opened is not None and self._opened.identity == wanted
        if is_present and call is not None:
            due = max(now, self._checked_at + MIN_CHECK_SECONDS)
            if due < call.getTime():
                call.reset(due - now)

    def _schedule_recheck(self) -> None:
        self._schedule_check(self._remote.check_seconds)

    def _schedule_check(self, seconds: float) -> None:
        if not self._interruption.is_set and self._recheck_call is None:
            self._recheck_call = self._shared.clock.callLater(seconds, self._start_recheck)

    async def _run_recheck(self, base: BaseImage) -> None:
        """Ask the origin for its version; open it if it is another one. Raises nothing."""
        opened = self._opened
        if opened is None or opened.base is not base:
            return
        self._checked_at = self._shared.clock.seconds()
        seconds = min(CHANGE_RETRY_SECONDS, self._remote.check_seconds)
        try:
            work = partial(self._remote.is_changed, opened)
            if await self._shared.pins.run(self._shared.run_in_thread, work):
                await self._replace(base)
            elif self.state is BaseImageState.DEGRADED and self._retry is None:
                self._set_state(BaseImageState.READY)
            seconds = self._remote.check_seconds
        except Interrupted:
            return
        except WholeRefused as error:
            await self._withdraw(error.detail)
            return
        except (BaseImageError, Unavailable) as error:
            self._degrade(f"its origin cannot be checked: {error.detail}")
        except OSError as error:
            self._degrade(describe_os_error(error))
        except Exception:  # noqa: BLE001 - a bug in reading one image must not harm the others
            self._log.failure(
                "unexpected error while checking base image {image}", image=self.entry.file_name
            )
            self._degrade("unexpected error while checking its origin; see the log")
        self._schedule_check(seconds)

    async def _replace(self, base: BaseImage) -> None:
        """Open the version that the origin has now, then serve it in the place of the one before."""
        before = self._opened
        try:
            opened = await self._open()
        except BaseException:
            self._opened = before
            raise
        if self._interruption.is_set:
            opened.base.file.close()
            raise Interrupted
        is_new = before is None or before.identity != opened.identity
        self._log.info(
            "base image {image} has another version at its origin"
            if is_new
            else "base image {image} is opened again: bytes of it in the cache were wrong",
            image=self.entry.file_name,
        )
        await self.attempt
        if self._retry:
            self._retry.cancel()
            self._retry = None
        self._adopt(opened.base)
        if is_new:
            self._shared.keep(base)
        self._shared.options.on_superseded(base)
        self._shared.options.on_change()
        self.start()

    def _degrade(self, reason: str) -> None:
        """Serve what there is, and say what is wrong; logged once per reason."""
        if (self.state, self._reason) != (BaseImageState.DEGRADED, reason):
            self._set_state(BaseImageState.DEGRADED, reason)

    def _refuse(self, reason: str, retry_after_seconds: int | None) -> None:
        """Refuse what the origin has, until a later check finds something else."""
        del retry_after_seconds
        self._set_state(BaseImageState.REFUSED, reason)
        if not self._interruption.is_set:
            self._retry = self._shared.clock.callLater(self._remote.check_seconds, self.start)
