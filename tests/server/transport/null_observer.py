"""An observer that records nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.server.transport.sending.observer import SentBytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.server.transport.sending.observer import AbortReason, HandshakeFailure, RefusalReason


class NullObserver:
    """Records nothing."""

    sent = SentBytes()

    def record_first_byte(self, handler: str, seconds: float) -> None:
        """See `Observer`."""

    def record_request(self, handler: str, method: str, status: int, seconds: float, body_bytes: int) -> None:
        """See `Observer`."""

    def get_recorder(self, handler: str, method: str, status: int) -> Callable[[float, int], None]:  # noqa: ARG002 - records nothing
        """See `Observer`."""
        return lambda _seconds, _body_bytes: None

    def record_abort(self, reason: AbortReason) -> None:
        """See `Observer`."""

    def record_refusal(self, reason: RefusalReason) -> None:
        """See `Observer`."""

    def record_handshake_failure(self, reason: HandshakeFailure) -> None:
        """See `Observer`."""


NULL_OBSERVER = NullObserver()
