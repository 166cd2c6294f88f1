"""A wall clock that is wrong, or is set while the service runs, prolongs nothing and stops nothing."""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING, cast

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import Forbidden
from tests.server.snapshots.mounting import Client, bytes_of, restart, rounds, say
from tests.server.snapshots.outcomes import outcome
from tests.server.snapshots.pinning import MAX_AGE, MOMENT, NOW, TTL, FaultyRepository, Pinning
from tests.server.snapshots.test_shared_snapshots import sharing

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.server.snapshots.storage.repository import SnapshotRepository
    from image_service.server.snapshots.storage.sql_repository import SqlRepository
    from tests.server.snapshots.doubles import World
    from tests.server.snapshots.memory import MemoryRepository

HOUR = 3600.0
STEPS = [-2 * HOUR, -MOMENT, MOMENT, 2 * HOUR]
YEAR = 365 * 24 * HOUR
UNUSED = 6 * HOUR


def step(processes: list[Pinning], seconds: float) -> None:
    """Set the wall clock."""
    for process in processes:
        process.wall_offset += seconds


@pytest.fixture(params=["one process", "several"])
def processes(request: pytest.FixtureRequest, tmp_path: Path, repository: SqlRepository) -> list[Pinning]:
    if request.param == "several":
        return sharing(tmp_path, repository)
    return [Pinning(store=FaultyRepository(cast("SnapshotRepository", repository)))]


@pytest.mark.parametrize("seconds", STEPS)
def test_step_prolongs_no_validity_and_ends_none(processes: list[Pinning], seconds: float) -> None:
    first = {process: process.newest() for process in processes}
    step(processes, seconds)
    processes[0].clock.advance(TTL - MOMENT)
    assert all(process.may_continue(first[process]) for process in processes)
    assert processes[0].rounds == 1
    processes[0].clock.advance(MOMENT)
    assert not any(process.may_continue(first[process]) for process in processes)
    for process in processes:
        process.upstream.error = Forbidden("revoked")
        with pytest.raises(Forbidden):
            process.newest()
    assert processes[0].rounds > 1


@pytest.mark.parametrize("ahead", [2 * HOUR, 100 * YEAR])
def test_what_a_clock_ahead_has_stored_is_validated_at_its_next_use(
    processes: list[Pinning], ahead: float
) -> None:
    step(processes, ahead)
    config = processes[0].config(processes[0].newest())
    after = [process.restarted() for process in processes]
    step(after, -ahead)
    for rounds_before, process in enumerate(after, 1):
        process.newest()
        assert process.rounds == min(rounds_before + 1, 2), "the others see that validation"
    assert after[-1].newest_stored()[1] == NOW  # type: ignore[index]  # the future is overwritten
    assert after[0].config(after[0].newest()) != config, "what was taken in the future is too old"


def test_restart_with_a_clock_ahead_or_behind_asks_again(processes: list[Pinning]) -> None:
    config = processes[0].config(processes[0].newest())
    for number, seconds in enumerate([HOUR / 2, -HOUR], 2):
        processes = [process.restarted() for process in processes]
        step(processes, seconds)
        processes[0].newest()
        assert processes[0].rounds == number
        assert processes[0].config(processes[0].newest()) == config or seconds < 0


@pytest.mark.parametrize("seconds", STEPS)
def test_age_of_an_answer_is_not_changed_by_a_step(seconds: float) -> None:
    pinning = Pinning()
    first = pinning.newest()
    step([pinning], seconds)
    pinning.clock.advance(MAX_AGE - MOMENT)
    assert pinning.newest() is first
    pinning.clock.advance(MOMENT)
    assert pinning.newest() is not first


@given(taken_at=st.floats(), validated_at=st.floats())
def test_any_stored_time_is_at_most_now(taken_at: float, validated_at: float) -> None:
    pinning = Pinning()
    pinning.newest()
    store = cast("MemoryRepository", pinning.store.store)
    (row,) = store._rows.values()
    row.stored = attrs.evolve(row.stored, taken_at=taken_at, validated_at=validated_at)
    snapshot, validated = pinning.restarted().newest_stored() or (None, inf)
    assert snapshot is not None
    for stored, loaded in ((taken_at, snapshot.taken_at), (validated_at, validated)):
        assert loaded == (stored if stored <= NOW else -inf)


@pytest.mark.parametrize("validated_at", [9e18, inf, nan, -1.0, NOW + MOMENT, NOW - TTL])
def test_wrong_or_old_validation_is_none(validated_at: float) -> None:
    pinning = Pinning()
    first = pinning.config(pinning.newest())
    store = cast("MemoryRepository", pinning.store.store)
    (row,) = store._rows.values()
    row.stored = attrs.evolve(row.stored, validated_at=validated_at)
    after = pinning.restarted()
    assert after.config(after.newest()) == first
    assert after.rounds == 2


# Mounts.


@pytest.mark.parametrize("seconds", STEPS)
def test_mount_is_neither_ended_nor_prolonged_by_a_step(world: World, client: Client, seconds: float) -> None:
    first = client.range()
    say(world, "changed")
    world.clock.advance(world.images.mounts.window_seconds - MOMENT)
    world.wall_offset += seconds
    assert bytes_of(client.range()) == bytes_of(first)
    world.clock.advance(world.images.mounts.window_seconds + MOMENT)
    assert bytes_of(client.range()) != bytes_of(first)


def test_mount_that_a_clock_ahead_has_stored_is_replaced(world: World, client: Client) -> None:
    world.wall_offset = 2 * HOUR
    first = client.range()
    world.wall_offset = 0
    say(world, "changed")
    restart(world)
    second = client.range()
    assert bytes_of(second) != bytes_of(first)
    say(world, "changed again")
    restart(world)
    assert bytes_of(client.range()) == bytes_of(second), "it is stored in the place of the first"
    assert rounds(world) == 2


# Cleanup.


def test_row_used_in_the_future_counts_as_used_now() -> None:
    pinning = Pinning()
    step([pinning], YEAR)
    pinning.newest()
    step([pinning], -YEAR)
    outcome(pinning.archive.remove_unused(UNUSED))
    pinning.clock.advance(UNUSED)
    outcome(pinning.archive.remove_unused(UNUSED))
    assert pinning.newest_stored()
    pinning.clock.advance(MOMENT)
    outcome(pinning.archive.remove_unused(UNUSED))
    assert pinning.newest_stored() is None


def test_step_forwards_makes_nothing_unused() -> None:
    pinning = Pinning()
    pinning.newest()
    outcome(pinning.archive.remove_unused(UNUSED))
    step([pinning], YEAR)
    for seconds in (0, UNUSED / 2, UNUSED / 2 - MOMENT):
        pinning.clock.advance(seconds)
        outcome(pinning.archive.remove_unused(UNUSED))
        assert pinning.newest_stored()
    pinning.clock.advance(MOMENT)
    outcome(pinning.archive.remove_unused(UNUSED))
    assert pinning.newest_stored() is None
