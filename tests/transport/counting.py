"""An observer that keeps everything that it is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.transport.observer import NullByteCounters

if TYPE_CHECKING:
    from collections.abc import Callable


@attrs.define(eq=False)
class Counting:
    """Keeps what it is told, in order.

    Args:
        answers: handlers of the answers that began, and after how many seconds.
        requests: handler, method, status, seconds and bytes of each request that is over.
        aborts: reasons.
        sent: bytes by their way.
        refusals: reasons.
    """

    answers: list[tuple[str, float]] = attrs.field(factory=list)
    requests: list[tuple[str, str, int, float, int]] = attrs.field(factory=list)
    aborts: list[str] = attrs.field(factory=list)
    sent: NullByteCounters = attrs.field(factory=NullByteCounters)
    refusals: list[str] = attrs.field(factory=list)

    def answer_began(self, handler: str, seconds: float) -> None:
        """See ``Observer``."""
        self.answers.append((handler, seconds))

    def request_ended(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """See ``Observer``."""
        self.requests.append((handler, method, status, seconds, body_bytes))

    def counter(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """See ``Observer``."""

        def count(seconds: float, body_bytes: int) -> None:
            self.answer_began(handler, seconds)
            self.request_ended(handler, method, status, seconds, body_bytes)

        return count

    def aborted(self, reason: str) -> None:
        """See ``Observer``."""
        self.aborts.append(reason)

    def refused(self, reason: str) -> None:
        """See ``Observer``."""
        self.refusals.append(reason)
