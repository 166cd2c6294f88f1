"""The replicas as the status shows them, over a state that the test sets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs

from image_service.app.admin.replica_figures import AWAY_SECONDS, ReplicaFigures
from image_service.core.errors import Unavailable
from tests.server.snapshots.outcomes import outcome


@attrs.define
class SharedState:
    """The rows of a database, which may be away."""

    rows: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    ages: dict[str, float] = attrs.field(factory=dict)
    is_away: bool = False

    async def describe_status(self) -> dict[str, Any]:
        return {"host": "a", "version": "1", "connections": 2, "requests": 1, "reason": "no figure"}

    async def exchange_figures(self, replica_id: str, figures: dict[str, Any]) -> list[dict[str, Any]]:
        if self.is_away:
            raise Unavailable("the database is away", retry_after_seconds=1)
        self.rows[replica_id] = figures
        return [
            {"id": name, "figures": row, "age_seconds": self.ages.get(name, 0.0)}
            for name, row in self.rows.items()
        ]


def figures_of(state: SharedState, machines: int) -> ReplicaFigures:
    activity = SimpleNamespace(progress=SimpleNamespace(count_machines=lambda: machines))
    return ReplicaFigures(state, activity)  # type: ignore[arg-type] # doubles


def test_replicas_are_those_of_the_last_exchange() -> None:
    state = SharedState()
    own, other = figures_of(state, 4), figures_of(state, 3)
    assert own.get() == ()
    outcome(own.exchange())
    outcome(other.exchange())
    outcome(own.exchange())
    figures = {"host": "a", "version": "1", "connections": 2, "requests": 1}
    first, second = own.get()
    assert first == {**figures, "machines": 4, "age_seconds": 0.0, "state": "present", "is_own": True}
    assert (second["machines"], second["is_own"]) == (3, False)
    away, _ = reversed(state.rows)
    state.ages[away] = AWAY_SECONDS + 1
    outcome(own.exchange())
    assert [each["state"] for each in own.get()] == ["present", "away"]


def test_without_the_database_no_replica_is_known() -> None:
    state = SharedState()
    own = figures_of(state, 4)
    outcome(own.exchange())
    state.is_away = True
    outcome(own.exchange())
    assert own.get() == []
