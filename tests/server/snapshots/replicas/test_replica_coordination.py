"""Replicas over one database: claims, fences, and what is waited for. Time is the test's."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import attrs
import pytest
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from image_service.core.errors import StoreFailed
from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS
from image_service.server.snapshots.replicas.coordination import (
    MARGIN_SECONDS,
    NOTIFIED_SECONDS,
    POLL_SECONDS,
    POLLED_SECONDS,
    RENEW_SECONDS,
    ReplicaCoordination,
)
from image_service.server.snapshots.replicas.observer import ClaimOutcome
from tests.server.snapshots.outcomes import Outcome
from tests.server.snapshots.replicas.hosts import Recorded, Wire, pass_time, replicas_over

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from image_service.common.database.postgresql import PostgresqlDatabase


class Holder:
    """Acquires a lock, and holds it until `done` fires."""

    def __init__(self, coordination: ReplicaCoordination, key: bytes) -> None:
        self.is_held: Callable[[], bool] | None = None
        self.done: Deferred[None] = Deferred()
        self.outcome = Outcome(self._hold(coordination, key))

    async def _hold(self, coordination: ReplicaCoordination, key: bytes) -> None:
        async with coordination.lock(key) as self.is_held:
            await self.done

    @property
    def has_lock(self) -> bool:
        return self.is_held is not None

    @property
    def may_write(self) -> bool:
        return self.is_held is not None and self.is_held()


@attrs.define(eq=False)
class Replicas:
    """Three replicas, and what became of their claims."""

    wire: Wire
    clock: Clock
    coordinations: list[ReplicaCoordination]
    key: bytes
    recorded: list[tuple[ClaimOutcome, float]]

    def hold(self, number: int) -> Holder:
        return Holder(self.coordinations[number], self.key)

    def counters(self, key: bytes | None = None) -> list[int]:
        return [each.counter(key or self.key) for each in self.coordinations]


@pytest.fixture
def replicas(replica_database: PostgresqlDatabase, tmp_path: Path) -> Replicas:
    wire, clock = Wire(replica_database), Clock()
    recorded = Recorded()
    coordinations = replicas_over(wire, tmp_path, clock, 3, recorded)
    return Replicas(wire, clock, coordinations, secrets.token_bytes(32), recorded.claims)


# Claims.


def test_one_replica_at_a_time_holds_a_lock(replicas: Replicas) -> None:
    holders = [replicas.hold(number) for number in range(3)]
    for number in range(3):
        assert sum(holder.has_lock for holder in holders) == number + 1
        holder = next(each for each in holders if each.has_lock and not each.done.called)
        assert holder.may_write
        holder.done.callback(None)
        replicas.clock.advance(POLL_SECONDS)
    assert all(holder.outcome.has_fired for holder in holders)
    assert replicas.clock.getDelayedCalls() == []
    assert [outcome for outcome, _ in replicas.recorded] == [
        ClaimOutcome.ACQUIRED,
        ClaimOutcome.WAITED,
        ClaimOutcome.WAITED,
    ]


def test_holder_renews_its_claim(replicas: Replicas, replica_database: PostgresqlDatabase) -> None:
    one, other = replicas.hold(0), replicas.hold(1)
    for _ in range(20):
        pass_time(replica_database, replicas.key, RENEW_SECONDS)
        replicas.clock.advance(RENEW_SECONDS)
        assert [one.may_write, other.has_lock] == [True, False]
    one.done.callback(None)
    replicas.clock.advance(POLL_SECONDS)
    assert other.may_write
    other.done.callback(None)


def test_abandoned_claim_is_taken_over_and_its_holder_may_not_write(
    replicas: Replicas, replica_database: PostgresqlDatabase
) -> None:
    """The holder was stopped, such as by a debugger, and goes on when its claim is another's."""
    frozen, other = replicas.hold(0), replicas.hold(1)
    pass_time(replica_database, replicas.key, CLAIM_SECONDS)
    replicas.clock.advance(POLL_SECONDS)
    assert other.may_write
    assert replicas.recorded[-1] == (ClaimOutcome.TAKEN_OVER, POLL_SECONDS)
    replicas.clock.advance(RENEW_SECONDS)
    assert not frozen.may_write
    frozen.done.callback(None)
    assert replicas.hold(2).has_lock is False, "the holder released nothing of another's"
    other.done.callback(None)


def test_holder_that_cannot_renew_counts_its_claim_as_lost_before_it_expires(replicas: Replicas) -> None:
    holder = replicas.hold(0)
    replicas.wire.failure = StoreFailed("the server is gone")
    replicas.clock.pump([1.0] * int(CLAIM_SECONDS - MARGIN_SECONDS - 1))
    assert [holder.may_write] == [True]
    replicas.clock.advance(1)
    assert not holder.may_write
    replicas.wire.failure = None
    holder.done.callback(None)


def test_without_the_database_nothing_is_locked(replicas: Replicas) -> None:
    replicas.wire.failure = StoreFailed("the server is gone")
    holders = [replicas.hold(number) for number in range(3)]
    assert all(holder.may_write for holder in holders)
    assert {outcome for outcome, _ in replicas.recorded} == {ClaimOutcome.UNAVAILABLE}
    for holder in holders:
        holder.done.callback(None)
    replicas.wire.failure = None
    replicas.clock.advance(1)
    holder = replicas.hold(0)
    assert replicas.recorded[-1][0] is ClaimOutcome.ACQUIRED
    holder.done.callback(None)


def test_claim_whose_release_failed_is_released_when_the_database_is_back(replicas: Replicas) -> None:
    holder = replicas.hold(0)
    replicas.wire.failure = StoreFailed("the server is gone")
    holder.done.callback(None)
    replicas.wire.failure = None
    other = replicas.hold(1)
    assert [other.has_lock] == [False]
    replicas.clock.advance(1)
    replicas.clock.advance(POLL_SECONDS)
    assert other.has_lock
    other.done.callback(None)


def test_lock_is_released_after_a_failure(replicas: Replicas) -> None:
    one = replicas.hold(0)
    one.done.errback(ValueError("of the holder"))
    assert isinstance(one.outcome.error, ValueError)
    other = replicas.hold(1)
    assert other.has_lock
    other.done.callback(None)


def test_replica_that_stops_releases_what_it_holds(replicas: Replicas) -> None:
    stopping, other = replicas.hold(0), replicas.hold(1)
    replicas.coordinations[0].release_all()
    replicas.clock.advance(POLL_SECONDS)
    assert [stopping.may_write, other.may_write] == [False, True]
    stopping.done.callback(None)
    assert not replicas.hold(2).has_lock, "it has released nothing of another's"
    other.done.callback(None)


def test_many_waiting_claims_cost_one_question(replicas: Replicas) -> None:
    keys = [secrets.token_bytes(32) for _ in range(100)]
    held = [Holder(replicas.coordinations[0], key) for key in keys]
    waiting = [Holder(replicas.coordinations[1], key) for key in keys]
    before = replicas.wire.transactions
    for _ in range(10):
        replicas.clock.advance(POLL_SECONDS)
    assert replicas.wire.transactions == before + 10
    for holder in held[:50]:
        holder.done.callback(None)
    replicas.clock.advance(POLL_SECONDS)
    assert [holder.has_lock for holder in waiting] == [True] * 50 + [False] * 50
    for holder in (*held[50:], *waiting):
        holder.done.callback(None)
    replicas.clock.advance(POLL_SECONDS)
    assert all(holder.outcome.has_fired for holder in waiting)
    assert replicas.clock.getDelayedCalls() == []


# Counters.


def test_bump_changes_the_counter_on_all_replicas(replicas: Replicas) -> None:
    before = replicas.counters()
    watches = [each.watch(replicas.key) for each in replicas.coordinations]
    bumped = replicas.coordinations[0].bump(replicas.key)
    after = replicas.counters()
    assert after[0] == bumped
    assert all(one != other for one, other in zip(before, after, strict=True))
    assert not any(is_unchanged() for is_unchanged in watches)


def test_counter_that_no_notification_has_changed_yet_is_changed_while_the_lock_is_held(
    replicas: Replicas,
) -> None:
    replicas.wire.is_cut = True
    before = replicas.counters()
    holder = replicas.hold(0)
    replicas.coordinations[0].bump(replicas.key)
    holder.done.callback(None)
    assert replicas.counters()[1] == before[1]
    other = replicas.hold(1)
    assert replicas.counters()[1] != before[1]
    other.done.callback(None)


def test_late_notification_does_not_bring_an_older_counter_back(replicas: Replicas) -> None:
    """An entry that was read before the second change would count as current again."""
    one, other, _ = replicas.coordinations
    replicas.wire.is_cut = True
    first = one.bump(replicas.key)
    second = one.bump(replicas.key)
    replicas.wire.deliver()
    assert one.counter(replicas.key) not in {first, second} | {0}
    assert other.counter(replicas.key) != 0


# What others have to see.


@pytest.mark.parametrize("is_notified", [False, True])
def test_bump_counts_as_seen_once_all_are_notified_or_have_asked(
    replicas: Replicas, *, is_notified: bool
) -> None:
    one = replicas.coordinations[0]
    replicas.wire.hosts[0].is_notified = is_notified
    seconds = NOTIFIED_SECONDS if is_notified else POLLED_SECONDS
    write: Deferred[None] = Deferred()
    one.bump(replicas.key)
    seen = one.until_visible(write, replicas.key)
    assert seen is not None
    replicas.clock.advance(seconds)
    assert not seen.called
    one.bump(replicas.key)
    write.callback(None)
    assert not seen.called
    replicas.clock.advance(seconds)
    assert seen.called


def test_write_without_a_bump_is_waited_for_alone(replicas: Replicas) -> None:
    one = replicas.coordinations[0]
    one.bump(replicas.key)
    write: Deferred[None] = Deferred()
    assert one.until_visible(write) is write
    write.callback(None)
    assert one.until_visible(write) is None


def test_without_the_database_nobody_waits_for_others(replicas: Replicas) -> None:
    one, write = replicas.coordinations[0], Deferred[None]()
    write.callback(None)
    replicas.wire.failure = StoreFailed("the server is gone")
    one.bump(replicas.key)
    assert one.until_visible(write, replicas.key) is None
    replicas.wire.failure = None
    replicas.clock.advance(1)
