"""What the coordination of replicas reports to the metrics."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class ClaimOutcome(enum.Enum):
    """What became of an attempt to claim a key."""

    ACQUIRED = "acquired"
    WAITED = "waited"  # and then acquired
    TAKEN_OVER = "taken-over"  # from a process that had let it expire
    UNAVAILABLE = "unavailable"  # the database cannot be used


class Direction(enum.Enum):
    """Of changes."""

    SENT = "sent"
    RECEIVED = "received"


class ReplicaObserver(Protocol):
    """Is called in the reactor's thread."""

    def record_claim(self, outcome: ClaimOutcome, seconds: float) -> None:
        """Record an attempt to claim a key, and how long it took."""

    def record_changes(self, direction: Direction, number: int) -> None:
        """Record notifications of changes."""

    def watch_notifications(self, is_notified: Callable[[], bool]) -> None:
        """Get a function: False while this process asks for changes instead of being notified of them."""
