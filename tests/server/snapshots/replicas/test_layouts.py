"""Which layouts replicas have, in a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from image_service.core.errors import StoreFailed
from image_service.core.images.layouts import LAYOUTS
from image_service.server.snapshots.replicas.database import REPLICAS
from image_service.server.snapshots.replicas.layouts import SEEN_SECONDS, LayoutExchange
from image_service.server.snapshots.storage.shared_layouts import SharedLayouts
from tests.core.images.later_layout import LATER as NEW
from tests.core.images.later_layout import PRESENT as OLD
from tests.core.images.later_layout import become_later_release
from tests.server.snapshots.outcomes import outcome, run_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.common.database.postgresql import PostgresqlDatabase


@pytest.fixture(autouse=True)
def _later_release(monkeypatch: pytest.MonkeyPatch) -> None:
    become_later_release(monkeypatch)


class Replica:
    """A replica that has the layouts up to its newest."""

    def __init__(self, database: PostgresqlDatabase, *, is_leader: bool = True) -> None:
        self.layouts = SharedLayouts()
        self.exchange = LayoutExchange(database, run_now, self.layouts, is_leader=is_leader)

    def known(self) -> tuple[int, int]:
        """Exchange, and return the newest layout that all have, and the one that any has."""
        outcome(self.exchange.exchange())
        return self.layouts.common, self.layouts.latest


@pytest.fixture
def make_old(replica_database: PostgresqlDatabase, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Replica]:
    def make() -> Replica:
        with monkeypatch.context() as patch:
            patch.delitem(LAYOUTS, NEW)
            return Replica(replica_database)

    return make


@pytest.fixture(autouse=True)
def no_replicas(replica_database: PostgresqlDatabase) -> None:
    replica_database.transact(lambda connection: connection.execute(sa.delete(REPLICAS)).close())


def pass_time(database: PostgresqlDatabase, seconds: float) -> None:
    older = sa.update(REPLICAS).values(seen_at=REPLICAS.c.seen_at - timedelta(seconds=seconds))
    database.transact(lambda connection: connection.execute(older).close())


def count(database: PostgresqlDatabase) -> int:
    counting = sa.select(sa.func.count()).select_from(REPLICAS)
    return database.transact(lambda connection: connection.execute(counting).scalar_one())


def test_replica_uses_its_oldest_layout_until_it_has_read_the_table(
    replica_database: PostgresqlDatabase,
) -> None:
    replica = Replica(replica_database)
    assert replica.layouts.common == OLD
    assert replica.known() == (NEW, NEW)


def test_all_use_the_older_layout_while_one_has_no_other(
    replica_database: PostgresqlDatabase, make_old: Callable[[], Replica]
) -> None:
    one, other, old = Replica(replica_database), Replica(replica_database), make_old()
    assert (one.known(), other.known()) == ((NEW, NEW), (NEW, NEW))
    outcome(old.exchange.exchange())
    assert (one.known(), other.known()) == ((OLD, NEW), (OLD, NEW))
    pass_time(replica_database, SEEN_SECONDS - 10)
    assert one.known() == (OLD, NEW)
    pass_time(replica_database, 11)
    assert (one.known(), other.known()) == ((NEW, NEW), (NEW, NEW))


def test_replica_that_leaves_does_not_count_any_more(
    replica_database: PostgresqlDatabase, make_old: Callable[[], Replica]
) -> None:
    new, old = Replica(replica_database), make_old()
    outcome(old.exchange.exchange())
    assert new.known() == (OLD, NEW)
    outcome(old.exchange.leave())
    assert new.known() == (NEW, NEW)


def test_absent_replicas_are_removed(replica_database: PostgresqlDatabase) -> None:
    for _ in range(3):
        Replica(replica_database).known()
    pass_time(replica_database, SEEN_SECONDS + 1)
    Replica(replica_database).known()
    assert count(replica_database) == 1


def test_process_that_is_no_leader_only_reads(
    replica_database: PostgresqlDatabase, make_old: Callable[[], Replica]
) -> None:
    outcome(make_old().exchange.exchange())
    assert Replica(replica_database, is_leader=False).known() == (OLD, NEW)
    assert count(replica_database) == 1


def test_what_is_known_stays_while_the_database_is_away(
    replica_database: PostgresqlDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = Replica(replica_database)
    assert replica.known() == (NEW, NEW)

    def fail(_: object) -> None:
        raise StoreFailed("away")

    monkeypatch.setattr(replica_database, "transact", fail)
    assert replica.known() == (NEW, NEW)
    outcome(replica.exchange.leave())
