"""Snapshots across restarts, in two processes, and without a repository."""

from __future__ import annotations

import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import (
    Forbidden,
    UpstreamTimeout,
)
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import KEY, MAX_AGE, MOMENT, TTL, Pinning


@pytest.fixture
def pinning() -> Pinning:
    return Pinning()


# The process that follows.


def test_restart_serves_the_same_bytes_without_asking_within_the_ttl(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    config = pinning.config(snapshot)
    pinning.clock.advance(TTL)
    pinning.newest()
    pinning.clock.advance(TTL - MOMENT)
    after = pinning.restarted()
    restored = after.newest()
    assert after.config(restored) == config
    assert restored.generation == 1
    assert after.snapshots.get_cached_snapshot(KEY.key) is restored
    assert pinning.rounds == 2
    after.clock.advance(MOMENT)
    assert after.newest() is restored
    assert pinning.rounds == 3


def test_restart_keeps_the_age(pinning: Pinning) -> None:
    pinning.newest()
    pinning.clock.advance(MAX_AGE)
    assert pinning.restarted().newest().generation == 2


def test_restart_finds_older_generations(pinning: Pinning) -> None:
    first = pinning.newest()
    config = pinning.config(first)
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    second = pinning.newest()
    after = pinning.restarted()
    restored = outcome(after.snapshots.find_generation(KEY, 1))
    assert restored is not None
    assert after.config(restored) == config
    assert after.may_continue(restored)
    assert outcome(after.snapshots.find_generation(KEY, 1)) is restored
    newest = outcome(after.snapshots.find_generation(KEY, 2))
    assert newest is after.newest()
    assert after.config(newest) == pinning.config(second)
    assert outcome(after.snapshots.find_generation(KEY, 3)) is None
    after.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    with pytest.raises(Forbidden):
        outcome(after.snapshots.revalidate(restored, None))


def test_concurrent_readers_share_a_restored_generation(pinning: Pinning) -> None:
    pinning.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    after = pinning.restarted()
    after.newest()
    gate: Deferred[None] = Deferred()
    after.store.gate = gate
    found = [Outcome(after.snapshots.find_generation(KEY, 1)) for _ in range(100)]
    after.store.gate = None
    gate.callback(None)
    assert len({id(one.value) for one in found}) == 1


def test_clock_set_back_does_not_prolong_validity(pinning: Pinning) -> None:
    pinning.newest()
    after = pinning.restarted()
    after.clock.rightNow -= 1000
    after.newest()
    after.clock.advance(TTL)
    assert after.snapshots.get_cached_snapshot(KEY.key) is None


# Two processes and one store.


def test_processes_serve_the_answer_of_the_faster_one(pinning: Pinning) -> None:
    other = pinning.restarted()
    pinning.upstream.held = []
    asked = [Outcome(each.snapshots.get(KEY)) for each in (pinning, other)]
    pinning.upstream.release()
    one, two = (asker.value for asker in asked)
    assert pinning.config(one) == other.config(two)
    assert pinning.rounds == 2
    for text in ("changed", "changed again"):
        pinning.upstream.text = text
        pinning.clock.advance(TTL)
        assert pinning.config(pinning.newest()) == other.config(other.newest())
    assert pinning.newest().generation == 3


def test_process_takes_over_a_stored_generation_only_if_equal(
    pinning: Pinning,
) -> None:
    pinning.newest()
    other = pinning.restarted()
    other.newest()
    for text in ("b", "c"):
        pinning.upstream.text = text
        pinning.clock.advance(TTL)
        pinning.newest()
    pinning.upstream.text = "d"
    assert other.newest().generation == 4
    pinning.clock.advance(TTL)
    assert pinning.config(pinning.newest()) == other.config(other.newest())


def test_old_answer_of_another_process_is_not_for_new_mounts(pinning: Pinning) -> None:
    pinning.newest()
    other = pinning.restarted()
    other.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.text = "changed"
    pinning.newest()
    pinning.clock.advance(MAX_AGE)
    assert other.newest().generation == 3


def test_end_reaches_an_uncoordinated_process_after_its_ttl(pinning: Pinning) -> None:
    snapshot = pinning.newest()
    other = pinning.restarted()
    other.newest()
    pinning.clock.advance(TTL)
    pinning.upstream.error = Forbidden("no longer")
    for each in (pinning, other):
        with pytest.raises(Forbidden):
            each.newest()
        with pytest.raises(Forbidden):
            outcome(each.snapshots.revalidate(snapshot, None))


# A store that fails or loses what it had.

METHODS = ("find_newest", "load", "add", "record_validation", "end")


@pytest.mark.parametrize("broken", [*((method,) for method in METHODS), METHODS])
@pytest.mark.parametrize("from_the_start", [True, False])
def test_snapshots_continue_whatever_the_repository_does(
    pinning: Pinning, broken: tuple[str, ...], *, from_the_start: bool
) -> None:
    if from_the_start:
        pinning.store.broken.update(broken)
    first = pinning.newest()
    config = pinning.config(first)
    pinning.store.broken.update(broken)
    pinning.clock.advance(TTL)
    assert pinning.newest() is first
    pinning.upstream.text = "changed"
    pinning.clock.advance(TTL)
    second = pinning.newest()
    assert second is not first
    outcome(pinning.snapshots.revalidate(first, None))
    assert (pinning.config(first), pinning.config(second) != config) == (config, True)
    pinning.clock.advance(MAX_AGE)
    third = pinning.newest()
    assert len({first.generation, second.generation, third.generation}) == 3
    pinning.upstream.error = Forbidden("no longer")
    pinning.clock.advance(TTL)
    for snapshot in (first, second, third):
        with pytest.raises(Forbidden):
            outcome(pinning.snapshots.revalidate(snapshot, None))
        with pytest.raises(Forbidden):
            pinning.newest()
    assert pinning.rounds == 5


def test_lost_snapshot_is_asked_for_again(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.archive.forget(first)
    pinning.store.store = MemoryRepository()  # as where the file was damaged, and made anew
    assert outcome(pinning.snapshots.load(first)) is None
    second = pinning.newest()
    assert second.generation == 2, "or the bytes of one could be taken for those of the other"
    assert pinning.config(second)
    assert outcome(pinning.snapshots.load(first)) is None
    outcome(pinning.snapshots.revalidate(first, None))


def test_lost_snapshot_is_an_error_while_asking_fails(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.archive.forget(first)
    pinning.store.store = MemoryRepository()
    outcome(pinning.snapshots.load(first))
    pinning.upstream.error = UpstreamTimeout("no")
    with pytest.raises(UpstreamTimeout):
        pinning.newest()
