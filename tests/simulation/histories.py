"""Histories of simulated replicas: made from seeds, and carried out."""

from __future__ import annotations

import secrets
import time
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from twisted.logger import globalLogPublisher

from tests.simulation.events import START, Outcome, without_garbage_collection
from tests.simulation.replica import simulated_engines
from tests.simulation.steps import choose_steps
from tests.simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from twisted.logger import LogEvent

    from tests.simulation.scenery import Scenery
    from tests.simulation.steps import Step

WEIGHTS = {
    "read_whole": 8,
    "ask_head": 3,
    "rush": 5,
    "read_named": 9,
    "ask_changed": 4,
    "read_next": 10,
    "mount": 14,
    "stream": 4,
    "meet": 3,
    "meet_slowly": 3,
    "come_back": 3,
    "change": 14,
    "refuse": 2,
    "permit": 3,
    "rotate": 2,
    "intrude": 1,
    "obey": 3,
    "replace_base": 1,
    "wait": 3,
    "trouble": 4,
    "kill": 2,
    "stop": 1,
    "pause": 3,
    "disconnect": 4,
    "lose_database": 1,
    "step_clock": 1,
    "begin_unsaved": 3,
}
"""How often each act, a method of `World`, is chosen."""
FAULTS = (
    "trouble",
    "meet_slowly",
    "kill",
    "stop",
    "pause",
    "disconnect",
    "lose_database",
    "step_clock",
    "begin_unsaved",
)
"""Acts that are left out of every second history: without them the oracle is stricter."""
STEPS = 30
MEAN_SECONDS = 1.2


def make_steps(seed: int, left_out: Collection[str] = ()) -> list[Step]:
    """Return what happens in the history of a seed.

    Args:
        left_out: acts that did not exist yet when the seed had a fault.
    """
    left_out = left_out if seed % 2 else {*left_out, *FAULTS}
    weights = {act: weight for act, weight in WEIGHTS.items() if act not in left_out}
    return choose_steps(seed, weights, STEPS, MEAN_SECONDS)


@contextmanager
def _observed(observe: Callable[[LogEvent], None]) -> Iterator[None]:
    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]  # a function is an observer too
    try:
        yield
    finally:
        globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]  # same


def run_history(scenery: Scenery, seed: int, steps: Sequence[Step]) -> Outcome:
    """Carry out steps of the history of a seed, up to its first fault."""
    world = World(scenery, seed, steps)
    chance = Random(f"secrets {seed}")

    def observe(event: LogEvent) -> None:
        if "log_failure" in event:
            world.oracle.fail(f"logged: {event['log_failure'].getTraceback()}")

    with (
        without_garbage_collection(),
        _observed(observe),
        simulated_engines(world.databases),
        patch.object(secrets, "token_bytes", lambda count=32: chance.randbytes(count)),
        patch.object(secrets, "randbits", chance.getrandbits),
        patch.object(secrets, "randbelow", chance.randrange),
        patch.object(time, "time", world.events.wall_clock),
    ):
        world.run()
    events = world.events
    return Outcome("\n".join(events.trace), tuple(world.oracle.faults), events.now - START)
