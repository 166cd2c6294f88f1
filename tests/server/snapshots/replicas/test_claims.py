"""Claims in a real PostgreSQL."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import pytest

from image_service.server.snapshots.replicas import claims
from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS, Claim, Claims
from image_service.server.snapshots.replicas.observer import ClaimOutcome
from tests.server.snapshots.replicas.hosts import pass_time

if TYPE_CHECKING:
    from image_service.common.database.postgresql import PostgresqlDatabase

REPLICAS = 6


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
