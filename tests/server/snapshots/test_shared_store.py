"""A repository that replicas share: what one of them cannot read or store first, it does not serve."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import Forbidden, StoreFull, Unavailable
from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.storage.sql_repository import SqlRepository, StoreLimits
from image_service.server.snapshots.storage.sql_statements import STORED_BYTES
from tests.server.snapshots.doubles import TTL_SECONDS, World
from tests.server.snapshots.doubles import world as make_world
from tests.server.snapshots.mounting import (
    Client,
    etag_of,
    pass_ttl,
    restart,
    rounds,
    say,
    use_faulty_repository,
)
from tests.server.snapshots.outcomes import outcome, run_now
from tests.server.snapshots.pinning import GRACE, MAX_AGE, NOW, TTL, FaultyRepository, Pinning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.postgres import PostgresServer

READS = {"find_newest", "load", "has_ended", "find_mount"}
WRITES = {"add", "record_validation", "record_refusal", "end", "save_mounts"}
CLOCK_ERROR_SECONDS = 2.0


@pytest.fixture
def pinning() -> Pinning:
    return Pinning(clock_error_seconds=CLOCK_ERROR_SECONDS)


@pytest.fixture
def store(world: World) -> FaultyRepository:
    world.clock_error_seconds = CLOCK_ERROR_SECONDS
    return use_faulty_repository(world)


@pytest.fixture
def world() -> Iterator[World]:
    with make_world() as made:
        say(made)
        yield made


# Snapshots.


def test_first_question_is_refused_without_asking_while_nothing_can_be_read(pinning: Pinning) -> None:
    pinning.store.broken = READS
    with pytest.raises(Unavailable) as raised:
        pinning.newest()
    assert raised.value.retry_after_seconds
    assert pinning.rounds == 0
    pinning.store.broken = set()
    assert pinning.newest().generation > 0


def test_first_answer_is_refused_while_it_cannot_be_stored(pinning: Pinning) -> None:
    pinning.store.broken = WRITES
    with pytest.raises(Unavailable):
        pinning.newest()
    pinning.store.broken = set()
    assert pinning.newest().generation > 0


def test_first_answer_is_refused_while_the_store_is_full(pinning: Pinning) -> None:
    pinning.store.broken, pinning.store.error = {"add"}, StoreFull("no room")
    with pytest.raises(Unavailable, match="full"):
        pinning.newest()


def test_unchanged_snapshot_is_served_while_the_store_is_away(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.store.broken = READS | WRITES
    for _ in range(3 * int(GRACE / TTL)):
        pinning.clock.advance(TTL)
        assert pinning.newest() is first


def test_changed_answer_is_served_once_it_is_stored_and_the_old_one_for_the_grace(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.store.broken = READS | WRITES
    pinning.upstream.text = "changed"
    pinning.clock.advance(TTL)
    assert pinning.newest() is first
    pinning.clock.advance(GRACE)
    with pytest.raises(Unavailable):
        pinning.newest()
    pinning.store.broken = set()
    pinning.clock.advance(TTL)
    renewed = pinning.newest()
    assert renewed.generation == first.generation + 1
    assert b"changed" in pinning.config(renewed)


def test_snapshot_that_becomes_too_old_for_new_mounts_is_refused_to_them(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.store.broken = READS | WRITES
    pinning.clock.advance(MAX_AGE)
    with pytest.raises(Unavailable):
        pinning.newest()
    outcome(pinning.snapshots.revalidate(first, None))


def test_refusal_holds_and_a_changed_answer_after_it_waits_until_the_end_is_stored(pinning: Pinning) -> None:
    first = pinning.newest()
    pinning.store.broken = READS | WRITES
    pinning.upstream.error = Forbidden("403")
    pinning.clock.advance(TTL)
    with pytest.raises(Forbidden):
        pinning.newest()
    pinning.upstream.error, pinning.upstream.text = None, "changed"
    for _ in range(3):
        pinning.clock.advance(TTL)
        with pytest.raises((Forbidden, Unavailable)):
            pinning.newest()
    assert not first.is_ended, "the other replicas do not know"
    pinning.store.broken = set()
    pinning.clock.advance(TTL)
    assert b"changed" in pinning.config(pinning.newest())
    assert first.is_ended


@pytest.mark.parametrize("ahead", [-CLOCK_ERROR_SECONDS / 2, CLOCK_ERROR_SECONDS / 2])
def test_replicas_whose_clocks_differ_a_little_share_answers(pinning: Pinning, ahead: float) -> None:
    first = pinning.newest()
    other = Pinning(
        store=pinning.store,
        upstream=pinning.upstream,
        clock=pinning.clock,
        wall_offset=pinning.wall_offset + ahead,
        clock_error_seconds=CLOCK_ERROR_SECONDS,
    )
    assert other.newest().generation == first.generation
    assert pinning.rounds == 1


# Mounts.


def test_mount_goes_on_where_it_is_known_and_is_refused_elsewhere(
    world: World, store: FaultyRepository
) -> None:
    client, stranger = Client(world), Client(world, address="192.0.2.2")
    mounted = client.range()
    store.broken = READS | WRITES
    for _ in range(3):
        pass_ttl(world)
        assert etag_of(client.range()) == etag_of(mounted)
    assert isinstance(stranger.ask().error, Unavailable), "another replica may know what it is reading"
    assert etag_of(stranger.whole()) == etag_of(mounted)
    assert etag_of(stranger.head()) == etag_of(mounted)


def test_mount_that_could_not_be_stored_is_stored_later(world: World, store: FaultyRepository) -> None:
    Client(world).head()
    store.broken = {"save_mounts"}
    mounted = Client(world).whole()
    store.broken = set()
    outcome(world.images.mounts.save())
    restart(world)
    world.clock.advance(TTL_SECONDS)
    say(world, "changed")
    assert etag_of(Client(world).range()) == etag_of(mounted)


def test_new_process_serves_nothing_while_the_store_is_away(world: World, store: FaultyRepository) -> None:
    client = Client(world)
    mounted = client.range()
    asked = rounds(world)
    restart(world)
    store.broken = READS | WRITES
    assert isinstance(client.ask().error, Unavailable)
    assert isinstance(Client(world, address="192.0.2.2").ask().error, Unavailable)
    assert rounds(world) == asked
    store.broken = set()
    assert etag_of(client.range()) == etag_of(mounted)


# Room.


def test_rows_of_a_shared_database_keep_their_limit(postgres: PostgresServer) -> None:
    limit = 1024**2
    with closing(open_replica_database(postgres.create_database())) as database:
        replicas = [SqlRepository(database, run_now, run_now, StoreLimits(limit, 60.0)) for _ in range(2)]
        for number in range(40):
            key = bytes([number]) * 32
            assert outcome(replicas[number % 2].add(key, 1, bytes(50_000), NOW + number))
        stored = database.transact(lambda connection: connection.execute(STORED_BYTES).scalar_one())
        assert limit / 4 < stored <= limit
        newest = outcome(replicas[0].find_newest(bytes([39]) * 32))
        assert newest is not None
        assert outcome(replicas[0].find_newest(bytes(32))) is None, "the least recently used is removed"
