"""What a worker is told at its start, beside its environment: the one argument of its command line."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs

from image_service.app.stand_in import StandIn

if TYPE_CHECKING:
    from collections.abc import Sequence

HEARS, SAYS, MEMORY, SLOTS = range(3, 7)
"""Descriptors that every worker has."""
FIRST_LISTENER = 7


@attrs.frozen
class Assignment:
    """A worker's place.

    Args:
        worker: its number, from 0 on.
        workers: how many there are.
        ports: how many it listens on; its last descriptors are a socket for each, place by place.
        stand_in: to be asked in assisted-service's place; None: assisted-service.
    """

    worker: int
    workers: int
    ports: int
    stand_in: StandIn | None

    def dumps(self) -> str:
        """Give the argument."""
        return json.dumps(attrs.asdict(self), default=str)

    @classmethod
    def loads(cls, argument: str) -> Assignment:
        """Read the argument."""
        members = json.loads(argument)
        stand_in = members.pop("stand_in")
        return cls(**members, stand_in=stand_in and StandIn(**stand_in))

    def descriptors(self, memory: int, slots: int, listeners: Sequence[int]) -> dict[int, int | str]:
        """Say what each descriptor of the worker is, as ``spawnProcess`` takes it.

        Args:
            memory: the supervisor's.
            slots: same.
            listeners: same.
        """
        given = (memory, slots, *listeners)
        return {0: 0, 1: 1, 2: 2, HEARS: "w", SAYS: "r", **dict(enumerate(given, MEMORY))}
