"""What a worker gets at its start beside its environment: the one argument of its command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.app.standalone_mode import StandIn

if TYPE_CHECKING:
    from collections.abc import Sequence

CONTROL_IN, CONTROL_OUT, MEMORY, SLOTS = range(3, 7)
"""Descriptors that every worker has."""
FIRST_LISTENER = 7


@attrs.frozen
class Assignment:
    """A worker's number and resources.

    Args:
        worker: its number, from 0 on.
        workers: how many there are.
        ports: how many ports each listens on; its last descriptors are a socket of each port for worker 0,
            then those for worker 1, and so on.
        stand_in: to call in assisted-service's place; None: assisted-service.
    """

    worker: int
    workers: int
    ports: int
    stand_in: StandIn | None

    def render(self) -> str:
        """Return the argument."""
        return json.dumps(attrs.asdict(self), default=str)

    @classmethod
    def parse(cls, argument: str) -> Assignment:
        """Read the argument."""
        members = json.loads(argument)
        stand_in = members.pop("stand_in")
        return cls(**members, stand_in=stand_in and StandIn(**stand_in))

    def descriptors(self, memory: int, slots: int, listeners: Sequence[int]) -> dict[int, int | str]:
        """Map the worker's descriptors to the supervisor's, as ``spawnProcess`` takes them."""
        given = (memory, slots, *listeners)
        return {0: 0, 1: 1, 2: 2, CONTROL_IN: "w", CONTROL_OUT: "r", **dict(enumerate(given, MEMORY))}
