"""Several processes that share a repository: one answer serves all of them."""

from __future__ import annotations

from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from image_service.common.concurrency.coordination import (
    MAX_POLL_SECONDS,
    SIZE_BYTES,
    SharedMemoryCoordination,
)
from image_service.common.concurrency.negative_cache import REFUSED_SECONDS
from image_service.core.errors import Conflict, Forbidden, NotFound, UpstreamError
from image_service.server.snapshots.cache.validation import REVALIDATION_TIMEOUT_SECONDS
from image_service.server.snapshots.storage.snapshot import VersionLost
from image_service.server.snapshots.storage.validity import RETRY_SECONDS
from tests.server.snapshots.memory import MemoryRepository
from tests.server.snapshots.outcomes import Outcome, outcome
from tests.server.snapshots.pinning import KEY, REFUSING, SETTINGS, FaultyRepository, Pinning, customization

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from twisted.internet.interfaces import IReactorTime

    from image_service.common.concurrency.coordination import Coordination
    from image_service.server.snapshots.storage.repository import SnapshotRepository
    from image_service.server.snapshots.storage.snapshot import Snapshot
    from image_service.server.snapshots.storage.sql_repository import SqlRepository
    from tests.server.snapshots.conftest import Coordinating

TTL, MAX_AGE = SETTINGS.ttl_seconds, SETTINGS.max_age_seconds
METHODS = {"find_newest", "load", "add", "record_validation", "end", "save_mounts", "find_mount"}


def sharing(directory: Path, store: SnapshotRepository) -> list[Pinning]:
    """Three workers, which share all that workers share."""
    memory = memoryview(bytearray(SIZE_BYTES))
    first = Pinning(store=FaultyRepository(store))
    locks = directory / "locks"
    return coordinated(first, [SharedMemoryCoordination(memory, locks, first.clock) for _ in range(3)])


def coordinated(first: Pinning, coordinations: Sequence[Coordination]) -> list[Pinning]:
    """Return a process with each of these coordinations."""
    return [attrs.evolve(first, coordination=coordination) for coordination in coordinations]


@pytest.fixture
def processes(repository: SqlRepository, coordinate: Callable[[IReactorTime], Coordinating]) -> list[Pinning]:
    first = Pinning(store=FaultyRepository(repository))
    return coordinated(first, coordinate(first.clock).processes)


def configs(processes: list[Pinning]) -> set[bytes]:
    """What each gives to a new mount."""
    return {process.config(process.newest()) for process in processes}


def test_one_round_serves_all_processes(processes: list[Pinning]) -> None:
    for _ in range(5):
        assert len(configs(processes)) == 1
        processes[0].clock.advance(TTL)
    assert processes[0].rounds == 5
    assert len(configs(processes)) == 1
    assert processes[0].rounds == 6


def test_processes_that_ask_together_make_one_round(processes: list[Pinning]) -> None:
    clock, upstream = processes[0].clock, processes[0].upstream
    for number in range(1, 4):
        upstream.held = []
        asked = [Outcome(process.snapshots.get(KEY)) for process in processes]
        assert not any(one.has_fired for one in asked)
        clock.advance(MAX_POLL_SECONDS)
        upstream.release()
        clock.advance(MAX_POLL_SECONDS)
        assert len({process.config(one.value) for process, one in zip(processes, asked, strict=True)}) == 1
        assert processes[0].rounds == number
        clock.advance(TTL)


def test_waiting_for_another_process_has_the_same_timeout(processes: list[Pinning]) -> None:
    one, other, _ = processes
    expected = configs(processes)
    one.clock.advance(TTL)
    one.upstream.held = []
    asked = [Outcome(process.snapshots.get(KEY)) for process in (one, other)]
    one.clock.advance(REVALIDATION_TIMEOUT_SECONDS)
    assert {one.config(asked[0].value), other.config(asked[1].value)} == expected
    one.upstream.release()
    one.clock.advance(MAX_POLL_SECONDS)
    assert one.rounds == 2
    assert one.snapshots.get_cached_snapshot(KEY.key)
    assert other.snapshots.get_cached_snapshot(KEY.key)


def test_change_is_seen_by_all_processes_and_mounts_continue(processes: list[Pinning]) -> None:
    one, *others = processes
    old = {process: process.newest() for process in processes}
    before = configs(processes)
    one.clock.advance(TTL / 2)
    assert all(process.snapshots.get_cached_snapshot(KEY.key) for process in processes)
    one.clock.advance(TTL / 2)
    one.upstream.text = "changed"
    changed = one.config(one.newest())
    assert {changed}.isdisjoint(before)
    for process in others:
        assert process.snapshots.get_cached_snapshot(KEY.key) is None
        assert process.config(process.newest()) == changed
        assert not process.may_continue(old[process]) or process.snapshots.get_cached_snapshot(KEY.key)
        outcome(process.snapshots.revalidate(old[process], None))
        assert process.may_continue(old[process])
        assert process.config(old[process]) in before
    assert one.rounds == 2


@pytest.mark.parametrize("error", REFUSING)
@pytest.mark.parametrize("changes", [False, True])
def test_no_process_serves_while_refused(
    processes: list[Pinning], error: Exception, *, changes: bool
) -> None:
    one, *others = processes
    old = {process: process.newest() for process in processes}
    one.clock.advance(MAX_AGE - 1)
    for process in processes:
        outcome(process.snapshots.revalidate(old[process], None))
    one.clock.advance(1)  # too old for new mounts, while those in progress have nothing to ask for long
    assert all(process.may_continue(old[process]) for process in processes)
    one.upstream.error = error
    with pytest.raises(type(error)):
        one.newest()
    for process in others:
        assert not process.may_continue(old[process])
        with pytest.raises(type(error)):
            outcome(process.snapshots.revalidate(old[process], None))
        with pytest.raises(type(error)):
            process.newest()
    one.clock.advance(REFUSED_SECONDS)
    one.upstream.error, one.upstream.text = None, "changed" if changes else ""
    assert len(configs(processes)) == 1
    for process in processes:
        if changes:
            with pytest.raises(VersionLost):
                outcome(process.snapshots.revalidate(old[process], None))
        else:
            outcome(process.snapshots.revalidate(old[process], None))
        assert process.may_continue(old[process]) is not changes


def test_answer_of_a_process_that_was_stopped_does_not_replace_a_later_one(processes: list[Pinning]) -> None:
    """It was stopped after it had asked, until others no longer waited for it."""
    one, other, _ = processes
    first = one.newest()
    one.clock.advance(TTL)
    asked_at = one.clock.seconds()
    one.clock.advance(1)
    other.upstream.text = "changed"
    changed = other.config(other.newest())
    late = customization("before")
    stored = outcome(
        one.archive.add(KEY.key, one.archive.seal_of(KEY), late, after=first.generation, at=asked_at)
    )
    assert one.config(stored) == changed
    assert {process.config(process.newest()) for process in processes} == {changed}


def test_missed_end_ends_older_snapshots(processes: list[Pinning]) -> None:
    """It was asked for again since: the newest is another, and what was before is not to be seen."""
    one, other, _ = processes
    old = other.newest()
    one.newest()
    one.clock.advance(TTL)
    one.upstream.error = Forbidden("403")
    with pytest.raises(Forbidden):
        one.newest()
    one.upstream.error, one.upstream.text = None, "anew"
    one.clock.advance(RETRY_SECONDS)
    new = one.config(one.newest())
    with pytest.raises(NotFound):
        outcome(other.snapshots.revalidate(old, None))
    assert other.config(other.newest()) == new
    assert one.rounds == 3
    assert outcome(other.snapshots.find_generation(KEY, old.generation)) is None


def test_snapshot_read_during_an_end_is_read_again(processes: list[Pinning]) -> None:
    other, one, _ = processes
    one = attrs.evolve(one, store=FaultyRepository(other.store.store))
    old = other.newest()
    one.newest()
    one.clock.advance(MAX_AGE - 1)
    outcome(other.snapshots.revalidate(old, None))
    outcome(one.snapshots.revalidate(one.newest(), None))
    one.clock.advance(1)
    one.upstream.held = []
    asked = Outcome(one.snapshots.get(KEY))
    one.upstream.error, one.store.gate = Forbidden("403"), Deferred()
    one.upstream.release()
    outcome(other.snapshots.revalidate(old, None))
    assert other.may_continue(old)
    one.store.gate.callback(None)
    assert isinstance(asked.error, Forbidden)
    with pytest.raises(Forbidden):
        outcome(other.snapshots.revalidate(old, None))


def test_unreadable_snapshot_of_another_process_costs_one_round_per_ttl(processes: list[Pinning]) -> None:
    one, other, _ = processes
    expected = one.config(one.newest())
    one.clock.advance(TTL)
    one.upstream.text = "changed"
    other.newest()
    one.clock.advance(TTL)
    one.upstream.text, one.store.broken = "", {"load"}
    for _ in range(3):
        assert one.config(one.newest()) == expected
    assert one.rounds == 3


def test_processes_retry_a_failed_question_independently(processes: list[Pinning]) -> None:
    one, other, _ = processes
    expected = configs(processes)
    one.clock.advance(TTL)
    one.upstream.error = UpstreamError("down")
    assert configs([one, other]) == expected
    assert one.rounds == 3, "each tries for itself"
    one.upstream.error = None
    one.clock.advance(RETRY_SECONDS)
    assert configs([one, other]) == expected
    assert one.rounds == 4
    assert (one.snapshots.in_grace, other.snapshots.in_grace) == (0, 0)


def test_answer_before_a_refusal_does_not_end_it_while_the_repository_cannot_be_written(
    processes: list[Pinning],
) -> None:
    """After a step of the wall clock the stored answer looks as if it had come later."""
    one, other, _ = processes
    for process in (one, other):
        process.newest()
    one.clock.advance(TTL)
    one.store.broken = {"record_refusal"}
    one.upstream.error = Forbidden("403")
    with pytest.raises(Forbidden):
        one.newest()
    one.wall_offset -= TTL / 2
    with pytest.raises(Forbidden):
        other.newest()  # from now on the first reads the repository again
    with pytest.raises(Forbidden):
        one.newest()


def test_refusal_ends_in_all_processes_with_the_next_answer(processes: list[Pinning]) -> None:
    one, other, _ = processes
    expected = configs(processes)
    one.clock.advance(TTL)
    one.upstream.error = Conflict("409")
    for process in (one, other):
        with pytest.raises(Conflict):
            process.newest()
    one.upstream.error = None
    one.clock.advance(RETRY_SECONDS)
    assert configs([one, other]) == expected
    assert one.rounds == 4


def test_version_shared_by_two_keys_costs_a_repository_read(processes: list[Pinning]) -> None:
    one, other, _ = processes
    snapshot = one.newest()
    other.coordination.bump(snapshot.stored_key)
    assert one.snapshots.get_cached_snapshot(KEY.key) is None
    assert one.newest() is snapshot
    assert one.snapshots.get_cached_snapshot(KEY.key) is snapshot
    assert one.rounds == 1


def test_unstored_change_costs_each_process_one_round(
    processes: list[Pinning],
) -> None:
    one, before = processes[0], configs(processes)
    one.clock.advance(TTL)
    one.store.broken, one.upstream.text = {"add"}, "changed"
    changed = [configs(processes) for _ in range(3)]
    assert changed[0] == changed[1] == changed[2]
    assert changed[0].isdisjoint(before)
    assert one.rounds == 1 + len(processes)


@pytest.mark.parametrize("broken", [{"find_newest"}, {"add", "record_validation", "end"}, {"load"}, METHODS])
def test_failing_repository_costs_only_extra_upstream_calls(
    processes: list[Pinning], broken: set[str]
) -> None:
    one = processes[0]
    store = one.store
    store.broken = set(broken)
    mounts = {process: process.newest() for process in processes}
    for _ in range(3):
        one.clock.advance(TTL)
        for process, snapshot in mounts.items():
            process.newest()
            outcome(process.snapshots.revalidate(snapshot, None))
            process.config(snapshot)
            assert process.may_continue(snapshot)
    store.broken = set()
    one.clock.advance(MAX_AGE)
    assert len(configs(processes)) == 1
    for process, snapshot in mounts.items():
        outcome(process.snapshots.revalidate(snapshot, None))


def test_single_process_reads_the_repository_once(repository: SqlRepository) -> None:
    alone = Pinning(store=FaultyRepository(repository))
    alone.newest()
    assert alone.store.called == {"find_newest": 1, "add": 1}
    alone.clock.advance(TTL)
    alone.newest()
    assert alone.store.called == {"find_newest": 1, "add": 1, "record_validation": 1}


NUMBERS = st.integers(0, 2)


class Processes(RuleBasedStateMachine):
    """One round per TTL, whoever is asked; nobody is served while refused, nor what was lost by that."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.processes = sharing(Path(self.directory.name), MemoryRepository())
        self.clock, self.upstream = self.processes[0].clock, self.processes[0].upstream
        self.answered_at, self.rounds = -inf, 0
        self.newest: bytes | None = None
        self.pinned = ""
        self.is_refused = False
        self.refused_at = dict.fromkeys(range(3), -inf)
        self.mounts: dict[int, tuple[Snapshot, bytes]] = {}
        self.lost: set[int] = set()

    @rule(text=st.sampled_from("abc"))
    def change(self, text: str) -> None:
        self.upstream.text = text

    @rule(seconds=st.sampled_from([1, RETRY_SECONDS, 30, TTL - 1, TTL]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(refuses=st.booleans())
    def refuse(self, refuses: bool) -> None:  # noqa: FBT001 - hypothesis names it
        self.upstream.error = Forbidden("403") if refuses else None

    @rule(number=NUMBERS)
    def restart(self, number: int) -> None:
        self.processes[number] = self.processes[number].restarted()
        self.mounts.pop(number, None)
        self.refused_at[number] = -inf

    @rule(number=NUMBERS)
    def begin(self, number: int) -> None:
        process = self.processes[number]
        asked = Outcome(process.snapshots.get(KEY))
        self.count_rounds()
        if self.may_fail(number, asked):
            return
        config = process.config(asked.value)
        assert config == self.newest or self.answered_at == self.clock.seconds()
        self.mounts[number], self.newest = (asked.value, config), config
        self.lost.discard(number)

    @rule(number=NUMBERS)
    def go_on(self, number: int) -> None:
        if number not in self.mounts:
            return
        process, (snapshot, config) = self.processes[number], self.mounts[number]
        kept = Outcome(process.snapshots.revalidate(snapshot, None))
        if self.count_rounds() and not self.is_refused:
            self.newest = process.config(process.newest())
        if self.may_fail(number, kept):
            return
        if number in self.lost:
            assert isinstance(kept.error, VersionLost)
        else:
            assert kept.value is None
            assert process.config(snapshot) == config

    def may_fail(self, number: int, asked: Outcome[Any]) -> bool:
        """Whether it has been refused; must have been, while the latest round was."""
        is_refused = isinstance(asked.result, Failure) and asked.result.check(Forbidden) is not None
        if is_refused and self.refused_at[number] <= self.clock.seconds() - REFUSED_SECONDS:
            assert self.is_refused
            self.refused_at[number] = self.clock.seconds()
        assert is_refused or not self.is_refused
        return is_refused

    def count_rounds(self) -> bool:
        """Whether there was one just now; there may have been."""
        rounds, self.rounds = self.rounds, len(self.upstream.asked)
        assert self.rounds - rounds <= 1
        if self.rounds == rounds:
            return False
        if self.upstream.error:
            self.answered_at, self.is_refused = -inf, True
            return True
        assert self.clock.seconds() >= self.answered_at + TTL
        if self.is_refused and self.pinned != self.upstream.text:
            self.lost |= set(self.mounts)
        self.answered_at, self.is_refused, self.pinned = self.clock.seconds(), False, self.upstream.text
        return True

    def teardown(self) -> None:
        self.directory.cleanup()


@pytest.mark.hypothesis
def test_any_use_by_processes_is_as_in_the_model() -> None:
    run_state_machine_as_test(Processes, settings=settings(stateful_step_count=40))
