"""The states of a cached version, and the transitions between them. Knows no clock.

Time divides three of them: a VALIDATED version is fresh for the TTL, and then due, as is one with NO_SLOT; a
FAILING one is served for the grace. A version that has a successor stays as valid as that (see
``Snapshot.is_newest``).
"""

from __future__ import annotations

import enum
from math import inf

import attrs

from image_service.core.errors import ImageServiceError, Unavailable, UpstreamError, UpstreamTimeout

FAILURES = (UpstreamError, UpstreamTimeout, Unavailable)
"""After these an older answer of assisted-service is used, for a while. UpstreamQueueFull is an Unavailable
too, but neither an answer nor a failure of assisted-service: it was not asked."""
RETRY_SECONDS = 5.0
"""Between two attempts to ask it again after a failure or a refusal."""
NO_SLOT_SECONDS = 1.0
"""The same after there was no call slot: else each range of a mount would wait for one."""


class ValidityState(enum.Enum):
    """What was heard of assisted-service last."""

    VALIDATED = enum.auto()
    """An answer, which is the newest version."""
    NO_SLOT = enum.auto()
    """Nothing: there was no call slot to ask it again."""
    FAILING = enum.auto()
    """It has failed since, each time that it was asked."""
    REFUSED = enum.auto()
    """It refuses the image: nothing is served until it has given an equal answer again."""
    ENDED = enum.auto()
    """After a refusal there was another answer: the versions may never be seen again."""

    __hash__ = object.__hash__  # they are keys, and Enum's own is a Python function


_V = ValidityState
TRANSITIONS: dict[ValidityState, frozenset[ValidityState]] = {
    _V.VALIDATED: frozenset(ValidityState),
    _V.NO_SLOT: frozenset({_V.VALIDATED, _V.FAILING, _V.REFUSED, _V.ENDED}),
    _V.FAILING: frozenset({_V.VALIDATED, _V.FAILING, _V.REFUSED, _V.ENDED}),
    _V.REFUSED: frozenset({_V.VALIDATED, _V.REFUSED, _V.ENDED}),
    _V.ENDED: frozenset(),
}
"""The states that may follow each state."""


class IllegalValidity(Exception):
    """A validity was to enter a state that does not follow its present one: an error of this service."""


@attrs.define(eq=False)
class Validity:
    """How long the versions of one key may be seen. Instants are the clock's seconds.

    Its methods alone write it. What is heard of an ended one comes too late, and changes nothing.

    Args:
        validated_at: when assisted-service last gave an equal answer; minus infinity: never.
        state: changes by the transitions above.
        is_refused: nothing is served: the state is REFUSED or ENDED.
        refused_at: when it last refused; minus infinity: not to this process.
        failing_since: when it was first asked of those times since its last answer at which it failed.
        retry_at: assisted-service is not asked before, unless nothing may be served without its answer.
        error: the latest failure or refusal; None of a refusal: another process knows.
        asking_since: None: it is not being asked.
    """

    validated_at: float
    state: ValidityState = attrs.field(default=ValidityState.VALIDATED, init=False)
    is_refused: bool = attrs.field(default=False, init=False)
    refused_at: float = attrs.field(default=-inf, init=False)
    failing_since: float | None = attrs.field(default=None, init=False)
    retry_at: float = attrs.field(default=0.0, init=False)
    error: ImageServiceError | None = attrs.field(default=None, init=False)
    asking_since: float | None = attrs.field(default=None, init=False)

    @property
    def is_ended(self) -> bool:
        """True if none of the versions may be seen any more."""
        return self.state is ValidityState.ENDED

    def record_answer(self, at: float, *, is_refused: bool = False) -> None:
        """Record that assisted-service has answered, and what it answered is the newest version.

        Args:
            is_refused: it has refused it since, which another process knows.
        """
        if not self.is_ended:
            self._enter(ValidityState.VALIDATED)
            self.validated_at, self.failing_since, self.error, self.retry_at = at, None, None, 0.0
            if is_refused:
                self._enter(ValidityState.REFUSED)

    def record_refusal(self, refusal: ImageServiceError | None, at: float) -> None:
        """Record that assisted-service refuses the image; None: another process knows why, and when."""
        if not self.is_ended:
            self._enter(ValidityState.REFUSED)
            self.failing_since, self.error = None, refusal and refusal.copy()
            self.refused_at, self.retry_at = at, at + RETRY_SECONDS

    def record_failure(self, error: ImageServiceError, started_at: float, retry_at: float) -> None:
        """Record that assisted-service has failed to answer what it was asked at ``started_at``.

        A failure takes no refusal back.
        """
        if not self.is_refused:
            self._enter(ValidityState.FAILING)
            self.failing_since = started_at if self.failing_since is None else self.failing_since
        if not self.is_ended:
            self.error, self.retry_at = error.copy(), retry_at

    def record_no_slot(self, at: float) -> None:
        """Record that assisted-service could not be asked; that takes no failure and no refusal back."""
        if self.state is ValidityState.VALIDATED:
            self._enter(ValidityState.NO_SLOT)
        if self.state in {ValidityState.NO_SLOT, ValidityState.FAILING}:
            self.retry_at = at + NO_SLOT_SECONDS

    def end(self) -> None:
        """Let none of the versions be seen any more."""
        if not self.is_ended:
            self._enter(ValidityState.ENDED)

    def begin_asking(self, at: float) -> None:
        """Record that assisted-service is being asked."""
        self.asking_since = at

    def end_asking(self) -> None:
        """Record that it is not being asked any more."""
        self.asking_since = None

    def check_refusal(self) -> None:
        """Raise the reason if nothing may be served."""
        if self.is_refused:
            unknown = "assisted-service has refused this image; it is being asked again"
            raise self.error.copy() if self.error else Unavailable(unknown, retry_after_seconds=1)

    def _enter(self, following: ValidityState) -> None:
        if following not in TRANSITIONS[self.state]:
            raise IllegalValidity(f"{self.state.name} -> {following.name}")
        self.state = following
        self.is_refused = following in (ValidityState.REFUSED, ValidityState.ENDED)
