"""A reactor whose sockets are real and whose time only moves when a test advances it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from zope.interface import directlyProvides, providedBy

if TYPE_CHECKING:
    from collections.abc import Callable

    from twisted.internet.epollreactor import EPollReactor
    from twisted.internet.interfaces import IDelayedCall, IResolutionReceiver


class ClockedReactor:
    """Delegates everything but time to the real reactor.

    Attributes:
        clock: the time of all delayed calls.
    """

    def __init__(self, reactor: EPollReactor) -> None:
        self.clock = Clock()
        self._reactor = reactor
        directlyProvides(self, providedBy(reactor))

    def seconds(self) -> float:
        """Return the time of the clock."""
        return self.clock.seconds()

    def callLater(
        self, delay: float, function: Callable[..., object], *args: Any, **kwargs: Any
    ) -> IDelayedCall:
        """Schedule a call by the clock."""
        return self.clock.callLater(delay, function, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reactor, name)


class OneAddress:
    """A resolver by which every name is of this machine."""

    def resolveHostName(
        self, receiver: IResolutionReceiver, *_: object, portNumber: int = 0, **__: object
    ) -> object:
        receiver.resolutionBegan(self)  # type: ignore[arg-type]  # nobody cancels it
        receiver.addressResolved(IPv4Address("TCP", "127.0.0.1", portNumber))
        receiver.resolutionComplete()
        return self
