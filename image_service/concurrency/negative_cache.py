"""A cache of 404s, for a moment: repeated requests for an absent resource are not sent upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from image_service.concurrency.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted.internet.interfaces import IReactorTime

    from image_service.errors import NotFound

MAX_ABSENCES = 4096
ABSENT_SECONDS = 5.0
"""Short enough that an infra-env is found soon after it was registered."""

_Key = TypeVar("_Key", bound="Hashable")


class NegativeCache(Generic[_Key]):
    """Remembers 404s for `ABSENT_SECONDS`."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._known: LruCache[_Key, tuple[NotFound, float]] = LruCache(MAX_ABSENCES)

    def check_absence(self, key: _Key) -> None:
        """Raise the NotFound that was added for this key a moment ago."""
        error, until = self._known.peek(key) or (None, 0.0)
        if error is not None and self._clock.seconds() < until:
            raise error.copy()

    def add_absence(self, key: _Key, error: NotFound) -> None:
        """Remember that something is absent; beyond `MAX_ABSENCES` the oldest is evicted."""
        self._known[key] = (error.copy(), self._clock.seconds() + ABSENT_SECONDS)
