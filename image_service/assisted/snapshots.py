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
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Protocol

import attrs
from twisted.logger import Logger

from image_service.errors import (
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    Unavailable,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

    from image_service.assisted.archive import Archive
    from image_service.images.customization import Customization
    from image_service.images.reference import Credentials, Kind
    from image_service.images.snapshot import Question, Snapshot

_log = Logger()


MAX_PINNED = 16384
"""Questions whose state is kept in memory; beyond that the store is asked again."""
MAX_REFUSED = 4096
NOT_FOUND_SECONDS = 5.0
"""How long a 404 is not asked again."""
REVALIDATION_PATIENCE_SECONDS = 1.0
"""How long a request waits for a revalidation before it is served what is pinned."""
RETRY_SECONDS = 5.0
"""Between two attempts to revalidate while they fail."""
MAX_OLDER = 8
"""Generations of one infra-env that mounts may read beside the newest."""
_TOO_SLOW = "assisted-service did not answer in time; it is still being asked"

_ENDING = (Unauthorized, Forbidden, NotFound)
_FAILING = (UpstreamError, UpstreamTimeout, Unavailable)


class Ask(Protocol):
    """Who is asked."""

    async def __call__(
        self, infra_env_id: str, kind: Kind, credentials: Credentials | None, /
    ) -> Customization:
        """All that makes an image of one kind."""


@attrs.define(eq=False)
class _Pin:
    """The newest snapshot of a question, and how far it is to be trusted.

    Args:
        snapshot: the newest.
        validated_at: when assisted-service last said the same, seconds since the epoch.
        failing_since: when it first failed to say anything after that; None: it did not.
        retry_at: when it is worth asking again.
        error: the latest failure.
        refusal: what assisted-service had to say against a new mount; None: nothing.
        older: generations that mounts may still read, the newest first.
    """

    snapshot: Snapshot
    validated_at: float
    failing_since: float | None = None
    retry_at: float = 0.0
    error: ImageServiceError | None = None
    refusal: ImageServiceError | None = None
    older: list[Snapshot] = attrs.field(factory=list)


@attrs.frozen
class Lifetimes:
    """How long what is good for what, in seconds.

    Args:
        ttl: an answer is not asked for again.
        grace: what is pinned is served while assisted-service fails.
        max_age: a snapshot is given to new mounts: tokens in it expire.
    """

    ttl: float = 60
    grace: float = 600
    max_age: float = 3600


class Snapshots:
    """Pins answers.

    Args:
        ask: asks assisted-service.
        archive: keeps snapshots beyond this process.
        clock: tells the time, in seconds since the epoch.
        lifetimes: how long what is good.
        count: is told what happened, by a word, for metrics.
    """

    def __init__(
        self,
        ask: Ask,
        archive: Archive,
        clock: IReactorTime,
        *,
        lifetimes: Lifetimes = Lifetimes(),
        count: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._ask = ask
        self._archive = archive
        self._clock = clock
        self._lifetimes = lifetimes
        self._count = count
        self._pins: OrderedDict[Question, _Pin] = OrderedDict()
        self._absent: OrderedDict[Question, tuple[NotFound, float]] = OrderedDict()
        self._first: SingleFlight[Question, _Pin] = SingleFlight()
        self._revalidations: SingleFlight[Question, None] = SingleFlight()

    def fresh(self, question: Question) -> Snapshot | None:
        """Give the newest snapshot where no question need be asked and nothing be waited for.

        Args:
            question: what it answers.

        Returns:
            the snapshot, good for any mount; None: ``newest`` has to be waited for.
        """
        pin = self._pins.get(question)
        if pin is None or not self._is_fresh(pin) or self._is_old(pin.snapshot) or pin.refusal:
            return None
        self._pins.move_to_end(question)
        self._count("hit")
        return pin.snapshot

    async def newest(self, question: Question) -> Snapshot:
        """Give the snapshot for a new mount.

        Args:
            question: what it answers.

        Returns:
            the newest, which is not too old for a new mount.

        Raises:
            ImageServiceError: there is none, and none could be had.
        """
        pin = await self._pinned(question)
        if not self._is_fresh(pin) or self._is_old(pin.snapshot) or pin.refusal:
            await self._validate(pin)
            pin = await self._pinned(question)
        if pin.refusal is not None:
            raise pin.refusal
        if self._is_old(pin.snapshot):
            raise pin.error or UpstreamTimeout(_TOO_SLOW, retry_after_seconds=1)
        return pin.snapshot

    async def keep(self, snapshot: Snapshot) -> None:
        """See that a mount in progress may go on with its snapshot.

        Args:
            snapshot: what the mount reads.

        Raises:
            ImageServiceError: it may not, or assisted-service has failed for too long.
        """
        pin = await self._pinned(snapshot.question)
        if not self._is_fresh(pin):
            await self._validate(pin)
        if snapshot.tenure.ended:
            await self._pinned(snapshot.question)  # tells why
            raise NotFound("the image that was being read is not there any more")

    def may_go_on(self, snapshot: Snapshot) -> bool:
        """Tell whether ``keep`` would return at once."""
        pin = self._pins.get(snapshot.question)
        return pin is not None and not snapshot.tenure.ended and self._is_fresh(pin)

    async def customization(self, snapshot: Snapshot) -> Customization:
        """Give the answer itself.

        Args:
            snapshot: of this process.

        Returns:
            what was taken in, byte for byte.

        Raises:
            UpstreamError: it is not kept any more.
        """
        found = snapshot.unsaved or await self._archive.load(snapshot)
        if found is None:
            raise UpstreamError("the snapshot is not kept any more", retry_after_seconds=1)
        return found

    async def retained(self, question: Question, generation: int) -> Snapshot | None:
        """Give the generation that a mount read before this process began.

        Args:
            question: what it answers.
            generation: which.

        Returns:
            the snapshot; None: it is not kept.

        Raises:
            ImageServiceError: the question has no answer any more.
        """
        pin = await self._pinned(question)
        for known in (pin.snapshot, *pin.older):
            if known.generation == generation:
                return known
        found = await self._archive.find(question, generation)
        if found is not None:
            found.tenure = pin.snapshot.tenure
            pin.older.append(found)
        return found

    # Validation.

    def _is_fresh(self, pin: _Pin) -> bool:
        return self._clock.seconds() < pin.validated_at + self._lifetimes.ttl

    def _is_old(self, snapshot: Snapshot) -> bool:
        return self._clock.seconds() >= snapshot.taken_at + self._lifetimes.max_age

    async def _validate(self, pin: _Pin) -> None:
        """Ask again, once for all who wait; whoever waits too long is served what is pinned."""
        now = self._clock.seconds()
        if now >= pin.retry_at:
            question = pin.snapshot.question
            waiting = self._revalidations.join(question, lambda: self._revalidate(pin))
            patience = REVALIDATION_PATIENCE_SECONDS
            if not self._is_old(pin.snapshot):  # else it is of no use to who waits
                waiting.addTimeout(patience, self._clock, lambda *_: None)
            await waiting
        self._check_grace(pin)

    def _check_grace(self, pin: _Pin) -> None:
        if pin.failing_since is None or pin.snapshot.tenure.ended:
            return
        if self._clock.seconds() >= pin.failing_since + self._lifetimes.grace and pin.error:
            raise pin.error
        self._count("grace")

    async def _revalidate(self, pin: _Pin) -> None:
        snapshot = pin.snapshot
        self._count("revalidation")
        try:
            customization = await self._asked(snapshot.question)
        except _ENDING:
            await self._end(pin)
            raise
        except _FAILING as error:
            self._fail(pin, error)
        except ImageServiceError as error:
            pin.refusal = error
            pin.retry_at = self._clock.seconds() + RETRY_SECONDS
        else:
            await self._take(pin, customization)

    async def _take(self, pin: _Pin, customization: Customization) -> None:
        snapshot = pin.snapshot
        print_of_it = await self._archive.fingerprint(customization)
        pin.failing_since = pin.error = pin.refusal = None
        pin.retry_at = 0.0
        if print_of_it == snapshot.fingerprint and not self._is_old(snapshot):
            self._count("unchanged")
            pin.validated_at = self._clock.seconds()
            await self._archive.validated(snapshot, pin.validated_at)
            return
        self._count("changed")
        older = [snapshot, *pin.older][:MAX_OLDER]
        renewed = await self._pin(snapshot.question, customization, after=snapshot.generation)
        renewed.snapshot.tenure, renewed.older = snapshot.tenure, older

    async def _end(self, pin: _Pin) -> None:
        self._count("ended")
        pin.snapshot.tenure.ended = True
        if self._pins.get(pin.snapshot.question) is pin:
            del self._pins[pin.snapshot.question]
        await self._archive.end(pin.snapshot, self._clock.seconds())

    def _fail(self, pin: _Pin, error: ImageServiceError) -> None:
        now = self._clock.seconds()
        if pin.failing_since is None:
            pin.failing_since = now
            _log.warn(
                "infra-env {infra_env} cannot be validated and is served as it was: {detail}",
                infra_env=pin.snapshot.question.infra_env_id,
                detail=error.detail,
            )
        self._count("failed")
        pin.error, pin.retry_at = error, now + RETRY_SECONDS

    # Pinning.

    async def _pinned(self, question: Question) -> _Pin:
        pin = self._pins.get(question)
        if pin is not None:
            self._pins.move_to_end(question)
            return pin
        self._check_absence(question)
        return await self._first.join(question, lambda: self._obtain(question))

    def _check_absence(self, question: Question) -> None:
        error, until = self._absent.get(question, (None, 0.0))
        if error is not None and self._clock.seconds() < until:
            raise error

    async def _obtain(self, question: Question) -> _Pin:
        """From the archive, else from assisted-service."""
        found = await self._archive.latest(question)
        if found is not None:
            snapshot, validated_at = found
            return self._remember(_Pin(snapshot, min(validated_at, self._clock.seconds())))
        self._count("miss")
        return await self._pin(question, await self._asked(question), after=0)

    async def _pin(self, question: Question, customization: Customization, *, after: int) -> _Pin:
        now = self._clock.seconds()
        return self._remember(
            _Pin(await self._archive.add(question, customization, after=after, at=now), now)
        )

    def _remember(self, pin: _Pin) -> _Pin:
        question = pin.snapshot.question
        self._pins[question] = pin
        self._pins.move_to_end(question)
        while len(self._pins) > MAX_PINNED:
            self._pins.popitem(last=False)
        return pin

    async def _asked(self, question: Question) -> Customization:
        """Ask; a 404 is remembered for a moment."""
        try:
            return await self._ask(question.infra_env_id, question.kind, question.credentials)
        except NotFound as error:
            self._absent[question] = (error, self._clock.seconds() + NOT_FOUND_SECONDS)
            self._absent.move_to_end(question)
            while len(self._absent) > MAX_REFUSED:
                self._absent.popitem(last=False)
            raise
