"""Claims in a real PostgreSQL."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, TypeVar, cast

import pytest
import sqlalchemy as sa

from image_service.server.snapshots.replicas import claims
from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS, Claim, Claims
from image_service.server.snapshots.replicas.observer import ClaimOutcome
from tests.server.snapshots.replicas.hosts import pass_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.database.postgresql import PostgresqlDatabase

T = TypeVar("T")

REPLICAS = 6


_COUNT_WAITING = sa.text(
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)


class HeldDatabase:
    """A database whose transactions commit when they may."""

    def __init__(self, database: PostgresqlDatabase) -> None:
        self._database = database
        self.is_done, self.may_commit = Event(), Event()
        self.insert = database.insert

    def transact(self, work: Callable[[sa.Connection], T]) -> T:
        """As `Database.transact`."""

        def held(connection: sa.Connection) -> T:
            result = work(connection)
            self.is_done.set()
            self.may_commit.wait()
            return result

        return self._database.transact(held)


@pytest.fixture
def key() -> bytes:
    return secrets.token_bytes(32)


@pytest.fixture
def rows(replica_database: PostgresqlDatabase) -> Claims:
    return Claims(replica_database)


def release(database: PostgresqlDatabase, *released: Claim) -> None:
    database.transact(partial(claims.release, claims=released))


def test_one_of_many_replicas_acquires_a_claim(rows: Claims, key: bytes) -> None:
    claimed = [Claim(key) for _ in range(REPLICAS)]
    with ThreadPoolExecutor(REPLICAS) as threads:
        outcomes = list(threads.map(rows.acquire, claimed))
    assert sorted(outcomes, key=str) == [ClaimOutcome.ACQUIRED, *[None] * (REPLICAS - 1)]
    assert [rows.renew(claim) for claim in claimed] == [outcome is not None for outcome in outcomes]


@pytest.mark.parametrize("is_expired", [False, True])
def test_claim_of_a_transaction_that_commits_later_is_waited_for(
    rows: Claims, key: bytes, replica_database: PostgresqlDatabase, *, is_expired: bool
) -> None:
    """Its row, or its change of a row, is in no snapshot of the other's transaction."""
    if is_expired:
        rows.acquire(Claim(key))
        pass_time(replica_database, key, CLAIM_SECONDS)
    held = HeldDatabase(replica_database)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(Claims(cast("PostgresqlDatabase", held)).acquire, Claim(key))
        held.is_done.wait()
        second = threads.submit(rows.acquire, Claim(key))
        try:
            while not replica_database.transact(lambda connection: connection.scalar(_COUNT_WAITING)):
                assert not second.done()
        finally:
            held.may_commit.set()
        assert first.result() is (ClaimOutcome.TAKEN_OVER if is_expired else ClaimOutcome.ACQUIRED)
        assert second.result() is None


def test_attempt_whose_answer_was_lost_succeeds_again(rows: Claims, key: bytes) -> None:
    claim = Claim(key)
    rows.acquire(claim)
    assert rows.acquire(claim) is not None
    assert rows.acquire(Claim(key)) is None


def test_keys_are_claimed_independently(rows: Claims, key: bytes) -> None:
    assert rows.acquire(Claim(key)) == rows.acquire(Claim(secrets.token_bytes(32))) == ClaimOutcome.ACQUIRED


def test_released_claim_can_be_acquired(
    rows: Claims, key: bytes, replica_database: PostgresqlDatabase
) -> None:
    one, other = Claim(key), Claim(key)
    rows.acquire(one)
    release(replica_database, other)
    assert rows.acquire(other) is None
    release(replica_database, one)
    assert rows.acquire(other) is ClaimOutcome.ACQUIRED


def test_claim_expires_by_the_clock_of_the_database(
    rows: Claims, key: bytes, replica_database: PostgresqlDatabase
) -> None:
    abandoned, other = Claim(key), Claim(key)
    rows.acquire(abandoned)
    pass_time(replica_database, key, CLAIM_SECONDS - 10)
    assert rows.acquire(other) is None
    pass_time(replica_database, key, 10)
    assert rows.acquire(other) is ClaimOutcome.TAKEN_OVER
    assert not rows.renew(abandoned)
    release(replica_database, abandoned)
    assert rows.renew(other)


def test_renewed_claim_does_not_expire(
    rows: Claims, key: bytes, replica_database: PostgresqlDatabase
) -> None:
    renewed = Claim(key)
    rows.acquire(renewed)
    for _ in range(3):
        pass_time(replica_database, key, CLAIM_SECONDS - 10)
        assert rows.renew(renewed)
    assert rows.acquire(Claim(key)) is None


def test_claim_that_nobody_asks_for_again_is_removed(
    rows: Claims, key: bytes, replica_database: PostgresqlDatabase
) -> None:
    abandoned, kept = Claim(key), Claim(secrets.token_bytes(32))
    for claim in (abandoned, kept):
        rows.acquire(claim)
    pass_time(replica_database, key, 3600)
    replica_database.transact(claims.remove_abandoned)
    assert not rows.renew(abandoned)
    assert rows.renew(kept)
