"""Turns of the reactor, the unit in which these tests wait.

Server and client are in one process and communicate through the kernel's loopback: what one side does has
reached the other a few turns later. No test depends on time; the limit only makes an endless wait fail.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twisted.internet.task import deferLater

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

T = TypeVar("T")

SETTLED_TURNS = 12
"""Turns after which everything that needs no further event has happened."""
_LIMIT_SECONDS = 30


async def turns(reactor: IReactorTime, count: int = SETTLED_TURNS) -> None:
    """Let the reactor turn."""
    for _ in range(count):
        await deferLater(reactor, 0)


async def until(reactor: IReactorTime, condition: Callable[[], T]) -> T:
    """Let the reactor turn until a condition holds.

    Args:
        reactor: the one that runs.
        condition: evaluated once per turn.

    Returns:
        the first true result of the condition.

    Raises:
        AssertionError: the condition has not become true in time.
    """
    deadline = reactor.seconds() + _LIMIT_SECONDS
    while not (result := condition()):
        assert reactor.seconds() < deadline, "what the test waits for does not happen"
        await deferLater(reactor, 0)
    return result
