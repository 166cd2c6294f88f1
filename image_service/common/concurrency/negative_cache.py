"""A cache of refusals, for a moment: a repeated request that was refused is not sent upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from image_service.common.concurrency.lru import LruCache

if TYPE_CHECKING:
    from collections.abc import Hashable

    from twisted.internet.interfaces import IReactorTime

    from image_service.core.errors import ImageServiceError

MAX_REFUSALS = 4096
REFUSED_SECONDS = 5.0
"""Short enough that an infra-env is found soon after it was registered, and a token right after its grant."""

_Key = TypeVar("_Key", bound="Hashable")


class NegativeCache(Generic[_Key]):
    """Remembers refusals for `REFUSED_SECONDS`."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._known: LruCache[_Key, tuple[ImageServiceError, float]] = LruCache(MAX_REFUSALS)

    @property
    def held_bytes(self) -> int:
        """The memory that it takes, about."""
        return self._known.held_bytes

    def check(self, key: _Key) -> None:
        """Raise the error that was added for this key a moment ago."""
        error, until = self._known.peek(key) or (None, 0.0)
        if error is not None and self._clock.seconds() < until:
            raise error.copy()

    def add(self, key: _Key, error: ImageServiceError) -> None:
        """Remember a refusal; beyond `MAX_REFUSALS` the oldest is evicted."""
        self._known[key] = (error.copy(), self._clock.seconds() + REFUSED_SECONDS)
