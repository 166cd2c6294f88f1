"""Snapshots: what assisted-service said about an infra-env, pinned: a mount gets every byte of one image.

A mount reads an ISO in thousands of ranges, and each answer of assisted-service may carry a fresh token. So
an answer is kept and served until another one differs in more than that:

    within the TTL of the last validation    no question at all
    then                                      one question; who waits longer than a moment gets what is pinned
      unchanged                               the pinned bytes stay
      changed, or too old for new mounts      a new generation; older ones only for mounts in progress
      401, 403, 404                           the end of all generations, at once
      failed                                  the pinned bytes, for a grace

What is pinned is in the store before anyone is served from it, so a restart goes on with it.

Processes that share the store take turns at asking, and look there before they do: what one has been told
goes for all of them. A new generation, and an end, is seen by the others at once, by the question's stamp.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Protocol

from twisted.logger import Logger

from image_service.concurrency.coordination import LocalCoordination
from image_service.concurrency.negative_cache import NegativeCache
from image_service.concurrency.single_flight import SingleFlight
from image_service.errors import (
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.snapshots.cache_entry import Lifetimes
from image_service.snapshots.shared_cache import SharedPins

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.defer import Deferred
    from twisted.internet.interfaces import IReactorTime

    from image_service.concurrency.coordination import Coordination
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials, Kind
    from image_service.snapshots.archive import Archive
    from image_service.snapshots.cache_entry import CacheEntry
    from image_service.snapshots.snapshot import Snapshot, SnapshotKey

_log = Logger()
_DEFAULTS = Lifetimes()

MAX_ASKING = 4096
"""Questions that are asked for the first time at once; beyond that is more than can be answered in time."""
REVALIDATION_PATIENCE_SECONDS = 1.0
"""How long requests wait for a revalidation, from when it began, before they are served what is pinned."""
_TOO_SLOW = "assisted-service did not answer in time; it is still being asked"

_ENDING = (Unauthorized, Forbidden, NotFound)
_FAILING = (UpstreamError, UpstreamTimeout, Unavailable)


class Ask(Protocol):
    """Who is asked."""

    async def __call__(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None, /
    ) -> Customization:
        """All that makes an image of one kind."""


class Snapshots:
    """Pins answers.

    Args:
        ask: asks assisted-service.
        archive: keeps snapshots beyond this process.
        clock: tells the time, in seconds since the epoch.
        lifetimes: how long what is good.
        count: is told what happened, by a word, for metrics.
        coordination: with the processes that share the store.
    """

    def __init__(  # noqa: PLR0913 - each a part that tests put another in the place of
        self,
        ask: Ask,
        archive: Archive,
        clock: IReactorTime,
        *,
        lifetimes: Lifetimes = _DEFAULTS,
        count: Callable[[str], None] = lambda _: None,
        coordination: Coordination | None = None,
    ) -> None:
        self._ask = ask
        self._archive = archive
        self._clock = clock
        self._lifetimes = lifetimes
        self._count = count
        self._coordination = coordination or LocalCoordination()
        self._pins = SharedPins(archive, clock, self._coordination)
        self._absences: NegativeCache[SnapshotKey] = NegativeCache(clock)
        self._first: SingleFlight[SnapshotKey, CacheEntry] = SingleFlight(MAX_ASKING)
        self._revalidations: SingleFlight[SnapshotKey, None] = SingleFlight()

    def fresh(self, question: SnapshotKey) -> Snapshot | None:
        """Give the newest snapshot where no question need be asked and nothing be waited for.

        Args:
            question: what it answers.

        Returns:
            the snapshot, good for any mount; None: ``newest`` has to be waited for.
        """
        pin = self._pins.known(question)
        if pin is None or not self._is_good(pin):
            return None
        self._pins.used(pin)
        self._count("hit")
        return pin.snapshot

    async def newest(self, question: SnapshotKey) -> Snapshot:
        """Give the snapshot for a new mount.

        Args:
            question: what it answers.

        Returns:
            the newest, which is not too old for a new mount.

        Raises:
            ImageServiceError: there is none, and none could be had.
        """
        pin = await self._pinned(question)
        if not self._is_good(pin):
            await self._validate(pin, is_pinned_of_use=not self._is_old(pin.snapshot))
            pin = await self._pinned(question)
        if pin.refusal is not None:
            raise pin.refusal.copy()
        if self._is_old(pin.snapshot):
            raise pin.error.copy() if pin.error else UpstreamTimeout(_TOO_SLOW, retry_after_seconds=1)
        return pin.snapshot

    async def keep(self, snapshot: Snapshot) -> None:
        """See that a mount in progress may go on with its snapshot.

        Args:
            snapshot: what the mount reads.

        Raises:
            ImageServiceError: it may not, or assisted-service has failed for too long.
        """
        pin = await self._pinned(snapshot.question)
        if snapshot.tenure is not pin.snapshot.tenure and not snapshot.tenure.ended:
            await self._pins.rejoin(pin, snapshot)
        if not self._is_fresh(pin):
            await self._validate(pin)
            await self._pinned(snapshot.question)  # tells why, where that was the end
        if snapshot.tenure.ended:
            raise NotFound("the image that was being read is not there any more")

    def goes_on_until(self, snapshot: Snapshot) -> float:
        """Tell how long ``keep`` would return at once, unless its tenure ends or its stamp is renewed.

        Args:
            snapshot: what a mount reads.

        Returns:
            seconds since the epoch; what has passed: it would not.
        """
        pin = self._pins.known(snapshot.question)
        if pin is None or snapshot.tenure is not pin.snapshot.tenure or not self._pins.is_current(pin):
            return -inf
        return pin.validated_at + self._lifetimes.ttl

    async def customization(self, snapshot: Snapshot) -> Customization | None:
        """Give the answer itself.

        Args:
            snapshot: of this process.

        Returns:
            what was taken in, byte for byte; None: it is not kept any more. ``newest`` asks anew then.
        """
        found = await self._archive.load(snapshot)
        if found is None:
            snapshot.taken_at = -inf
        return found

    async def retained(self, question: SnapshotKey, generation: int) -> Snapshot | None:
        """Give the generation that a mount read before this process began.

        Args:
            question: what it answers.
            generation: which.

        Returns:
            the snapshot; None: it is not kept.

        Raises:
            ImageServiceError: the question has no answer any more.
        """
        return await self._pins.generation(await self._pinned(question), generation)

    def key_of(self, question: SnapshotKey) -> bytes:
        """Give what stands for a question in the store, and in what mounts are remembered by."""
        return self._archive.key_of(question)

    @property
    def in_grace(self) -> int:
        """How many snapshots are served although they could not be validated; no longer than the grace."""
        began_after = self._clock.seconds() - self._lifetimes.grace
        since = (pin.failing_since for pin in self._pins)
        return sum(failing_since is not None and failing_since > began_after for failing_since in since)

    # Validation.

    def _is_good(self, pin: CacheEntry) -> bool:
        """Whether it needs no validation to be given to a new mount."""
        return pin.refusal is None and not self._is_to_be_asked(pin)

    def _is_to_be_asked(self, pin: CacheEntry) -> bool:
        return not self._is_fresh(pin) or self._is_old(pin.snapshot)

    def _is_fresh(self, pin: CacheEntry) -> bool:
        return self._clock.seconds() < pin.validated_at + self._lifetimes.ttl and self._pins.is_current(pin)

    def _is_old(self, snapshot: Snapshot) -> bool:
        return self._clock.seconds() >= snapshot.taken_at + self._lifetimes.max_age

    async def _validate(self, pin: CacheEntry, *, is_pinned_of_use: bool = True) -> None:
        """Ask again, once for all who wait; whoever would wait too long is served what is pinned."""
        now = self._clock.seconds()
        if now >= pin.retry_at:
            began_at = now if pin.asked_at is None else pin.asked_at
            patience = began_at + REVALIDATION_PATIENCE_SECONDS - now
            if not is_pinned_of_use:
                await self._join(pin)
            elif patience > 0:
                await self._join(pin).addTimeout(patience, self._clock, lambda *_: None)
        self._check_grace(pin)

    def _join(self, pin: CacheEntry) -> Deferred[None]:
        return self._revalidations.join(pin.snapshot.question, lambda: self._revalidate(pin))

    def _check_grace(self, pin: CacheEntry) -> None:
        if pin.failing_since is None or pin.error is None or pin.snapshot.tenure.ended:
            return
        if self._clock.seconds() >= pin.failing_since + self._lifetimes.grace:
            raise pin.error.copy()
        self._count("grace")

    async def _revalidate(self, pin: CacheEntry) -> None:
        pin.asked_at = self._clock.seconds()
        try:
            async with self._coordination.lock(pin.snapshot.key):
                current = await self._pins.catch_up(pin)
                if current is not None and self._is_to_be_asked(current):
                    await self._ask_again(current)
        finally:
            pin.asked_at = None

    async def _ask_again(self, pin: CacheEntry) -> None:
        question = pin.snapshot.question
        try:
            await self._take(pin, await self._asked(question))
        except _ENDING:
            self._count("ended")
            await self._pins.end(pin)
            raise
        except _FAILING as error:
            self._fail(pin, error)
        except ImageServiceError as error:
            pin.refuse(error, self._clock.seconds())
            self._pins.renew(pin)
        except Exception:  # noqa: BLE001 - whatever it is, it is no reason to cut mounts off
            _log.failure("infra-env {infra_env} cannot be validated", infra_env=question.infra_env_id)
            self._fail(pin, ImageServiceError("what assisted-service said could not be taken in"))

    async def _take(self, pin: CacheEntry, customization: Customization) -> None:
        snapshot = pin.snapshot
        is_same = await self._archive.holds_same(snapshot, customization)
        pin.clear()
        if is_same and not self._is_old(snapshot):
            self._count("unchanged")
            pin.validated_at = self._clock.seconds()
            await self._archive.validated(snapshot, pin.validated_at)
            self._pins.renew(pin)
            return
        self._count("changed")
        renewed = await self._pin(snapshot.question, customization, after=snapshot.generation)
        renewed.snapshot.tenure = snapshot.tenure
        renewed.keep_older(snapshot, *pin.older)

    def _fail(self, pin: CacheEntry, error: ImageServiceError) -> None:
        if pin.failing_since is None:
            _log.warn(
                "infra-env {infra_env} cannot be validated and is served as it was: {detail}",
                infra_env=pin.snapshot.question.infra_env_id,
                detail=error.detail,
            )
        self._count("failed")
        pin.fail(error, self._clock.seconds())

    # Pinning.

    async def _pinned(self, question: SnapshotKey) -> CacheEntry:
        pin = await self._pins.current(question)
        if pin is None:
            self._absences.check(question)
            return await self._first.join(question, lambda: self._obtain(question))
        return pin

    async def _obtain(self, question: SnapshotKey) -> CacheEntry:
        """From the archive, else from assisted-service."""
        key = self._archive.key_of(question)
        version = self._coordination.version(key)
        pin = await self._pins.restore(question)
        if pin is not None:
            return pin
        async with self._coordination.lock(key):
            if self._coordination.version(key) != version:  # another process has been asking
                pin = await self._pins.restore(question)
                if pin is not None:
                    return pin
            self._count("miss")
            return await self._pin(question, await self._asked(question), after=0)

    async def _pin(self, question: SnapshotKey, customization: Customization, *, after: int) -> CacheEntry:
        now = self._clock.seconds()
        snapshot = await self._archive.add(question, customization, after=after, at=now)
        if self._is_old(snapshot):  # another process's, which said the same long ago
            after = snapshot.generation
            snapshot = await self._archive.add(question, customization, after=after, at=now)
        return self._pins.pin(snapshot, now)

    async def _asked(self, question: SnapshotKey) -> Customization:
        """Ask; a 404 is remembered for a moment."""
        try:
            return await self._ask(question.infra_env_id, question.kind, question.credentials)
        except NotFound as error:
            self._absences.add(question, error)
            raise
