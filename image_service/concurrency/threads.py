"""The interface of what runs blocking work in a thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class InThread(Protocol):
    """Runs work in a thread."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return the work's result once it is done; canceling that does not stop the work."""
