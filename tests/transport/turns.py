"""Turns of the reactor, the unit in which these tests wait.

Server and client live in one process and talk through the kernel's loopback, which delivers at once: what
one side does has reached the other a few turns later. Nothing here decides by the time that passes; the
limit only turns a test that would wait for ever into one that fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from twisted.internet.task import deferLater

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.interfaces import IReactorTime

T = TypeVar("T")

A_FEW = 12
"""Turns after which everything that was going to happen by itself has happened."""
_LIMIT_SECONDS = 30


async def turns(reactor: IReactorTime, count: int = A_FEW) -> None:
    """Let the reactor turn."""
    for _ in range(count):
        await deferLater(reactor, 0)


async def until(reactor: IReactorTime, condition: Callable[[], T]) -> T:
    """Let the reactor turn until a condition holds.

    Args:
        reactor: the one that runs.
        condition: tried once a turn; anything true ends the wait.

    Returns:
        what the condition gave.

    Raises:
        AssertionError: it will never hold, as far as can be told.
    """
    give_up = reactor.seconds() + _LIMIT_SECONDS
    while not (result := condition()):
        assert reactor.seconds() < give_up, "what the test waits for does not happen"
        await deferLater(reactor, 0)
    return result
