"""The figures of all replicas, for the status page: this one writes its own, and reads those of all."""

from __future__ import annotations

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.server.admin.activity import Activity
    from image_service.server.admin.state import ServingState

EXCHANGE_SECONDS = 5.0
AWAY_SECONDS = 3 * EXCHANGE_SECONDS
"""A replica whose row is older is away: it was killed, or cannot reach the database."""
_ID_BYTES = 16
_FIGURES = ("host", "version", "connections", "requests")


class ReplicaFigures:
    """The replicas that were seen; none where there is no database that replicas share."""

    def __init__(self, state: ServingState, activity: Activity) -> None:
        self._state = state
        self._activity = activity
        self._id = secrets.token_hex(_ID_BYTES)
        self._seen: Sequence[Mapping[str, Any]] = ()

    def get(self) -> Sequence[Mapping[str, Any]]:
        """Return the replicas as they were last read: ``Replica`` of the API."""
        return self._seen

    async def exchange(self) -> None:
        """Write this replica's figures, and read those of all; is called each `EXCHANGE_SECONDS`."""
        seen: Sequence[Mapping[str, Any]] = ()  # if the database is away, too, which the status says itself
        with suppress(Unavailable):
            status = await self._state.describe_status()
            figures = {name: status[name] for name in _FIGURES}
            machines = self._activity.progress.count_machines()
            seen = await self._state.exchange_figures(self._id, {**figures, "machines": machines})
        self._seen = [
            {
                **each["figures"],
                "age_seconds": each["age_seconds"],
                "state": "away" if each["age_seconds"] > AWAY_SECONDS else "present",
                "is_own": each["id"] == self._id,
            }
            for each in seen
        ]
