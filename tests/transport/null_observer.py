"""An observer that records nothing, and counters of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.transport.observer import AbortReason, RefusalReason


@attrs.define
class NullByteCounters:
    """Byte counters that nobody reads."""

    sendfile: int = 0
    copy: int = 0
    tls: int = 0


class NullObserver:
    """Records nothing."""

    sent = NullByteCounters()

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


NULL_OBSERVER = NullObserver()
