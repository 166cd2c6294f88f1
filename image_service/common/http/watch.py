"""What bounds a request: time to connect, a least rate, a deadline, and interruption.

A time-out of a socket alone would wait for ever for a peer that sends a byte a second.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, TypeVar

import attrs

from image_service.common.http.errors import TooSlow, failure_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.concurrency.interruption import Interruption
    from image_service.common.http.tunneled_tls import Stream

_Argument = TypeVar("_Argument")
_Result = TypeVar("_Result")


@attrs.frozen
class RequestLimits:
    """How long a peer may take.

    Args:
        connect_seconds: for each of its addresses, and for the TLS handshake.
        stall_seconds: of waiting, in which it must send `stall_bytes`, or all that is left.
        stall_bytes: 1 or more.
        total_seconds: for a request as a whole.
        slow: the reason of the failure of a peer that takes longer.
    """

    connect_seconds: float = 10.0
    stall_seconds: float = 30.0
    stall_bytes: int = 1
    total_seconds: float = math.inf
    slow: str = "timed out"


class Watch:
    """Bounds the waits for the peer of one request; the time between two waits does not count as a stall."""

    def __init__(self, limits: RequestLimits, interruption: Interruption) -> None:
        self.limits = limits
        self.interruption = interruption
        self._deadline = time.monotonic() + limits.total_seconds
        self._begin_window()

    def connect_seconds(self) -> float:
        """Return how long a connection may take now."""
        self.interruption.raise_if_interrupted()
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TooSlow(self.limits.slow, is_connected=False)
        return min(self.limits.connect_seconds, left)

    def send(self, opened: Stream, data: bytes) -> None:
        """Send all of it."""
        self._wait(opened, opened.sendall, data)
        self._begin_window()

    def receive(self, opened: Stream, size: int) -> bytes:
        """Return the next bytes, at most `size`; none: the peer has closed the connection."""
        block = self._wait(opened, opened.recv, size)
        self._count(len(block))
        return block

    def receive_into(self, opened: Stream, target: memoryview) -> int:
        """Fill the begin of `target` with the next bytes; return how many, 0: as `receive`."""
        count = self._wait(opened, opened.recv_into, target)
        self._count(count)
        return count

    def _begin_window(self) -> None:
        self._left_seconds = self.limits.stall_seconds
        self._left_bytes = self.limits.stall_bytes

    def _count(self, received: int) -> None:
        if not received:  # so is a socket that was shut down
            self.interruption.raise_if_interrupted()
        self._left_bytes -= received
        if self._left_bytes <= 0:
            self._begin_window()

    def _wait(
        self, opened: Stream, operation: Callable[[_Argument], _Result], argument: _Argument
    ) -> _Result:
        self.interruption.raise_if_interrupted()
        started = time.monotonic()
        left = min(self._left_seconds, self._deadline - started)
        if left <= 0:
            raise TooSlow(self.limits.slow)
        try:
            opened.settimeout(left)
            result = operation(argument)
        except TimeoutError:
            raise TooSlow(self.limits.slow) from None
        except OSError as error:
            self.interruption.raise_if_interrupted()  # a socket that was shut down fails in many ways
            raise failure_of(error) from None
        self._left_seconds -= time.monotonic() - started
        return result
