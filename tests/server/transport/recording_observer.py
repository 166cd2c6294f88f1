"""An observer that keeps what it records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.server.transport.sending.observer import SentBytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure, RefusalReason


@attrs.define(eq=False)
class RecordingObserver:
    """Keeps what it records, in order.

    Args:
        answers: handler of each response that started, and after how many seconds.
        requests: handler, method, status, seconds and bytes of each finished request.
        aborts: their reasons.
        sent: bytes by path.
        refusals: their reasons.
        handshake_failures: their reasons.
    """

    answers: list[tuple[str, float]] = attrs.field(factory=list)
    requests: list[tuple[str, str, int, float, int]] = attrs.field(factory=list)
    aborts: list[str] = attrs.field(factory=list)
    sent: SentBytes = attrs.field(factory=SentBytes)
    refusals: list[str] = attrs.field(factory=list)
    handshake_failures: list[str] = attrs.field(factory=list)

    def record_first_byte(self, handler: str, seconds: float) -> None:
        """See ``Observer``."""
        self.answers.append((handler, seconds))

    def record_request(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """See ``Observer``."""
        self.requests.append((handler, method, status, seconds, body_bytes))

    def get_recorder(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:
        """See ``Observer``."""

        def count(seconds: float, body_bytes: int) -> None:
            self.record_first_byte(handler, seconds)
            self.record_request(handler, method, status, seconds, body_bytes)

        return count

    def record_abort(self, reason: AbortReason) -> None:
        """See ``Observer``."""
        self.aborts.append(reason.value)

    def record_refusal(self, reason: RefusalReason) -> None:
        """See ``Observer``."""
        self.refusals.append(reason.value)

    def record_handshake_failure(self, reason: HandshakeFailure) -> None:
        """See ``Observer``."""
        self.handshake_failures.append(reason.value)
