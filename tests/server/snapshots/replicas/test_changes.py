"""Changes of counters, as they are written and read."""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from image_service.server.snapshots.replicas import changes
from image_service.server.snapshots.replicas.changes import KEY_BYTES

if TYPE_CHECKING:
    from image_service.common.database.postgresql import PostgresqlDatabase

CHANGES = st.dictionaries(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.integers(0, 2**64 - 1))
MAX_PAYLOAD_BYTES = 8000  # of PostgreSQL, minus one


@given(CHANGES)
def test_changes_are_parsed_as_they_were_written(changed: dict[bytes, int]) -> None:
    parsed = list(chain.from_iterable(changes.parse(payload) for payload in changes.payloads(changed)))
    assert parsed == list(changed.items())


def test_payloads_fit_into_notifications() -> None:
    many = {number.to_bytes(KEY_BYTES): 2**64 - 1 for number in range(1000)}
    assert all(len(payload) < MAX_PAYLOAD_BYTES for payload in changes.payloads(many))


@given(st.text())
def test_notification_of_another_program_is_no_change(payload: str) -> None:
    for key, counter in changes.parse(payload):
        assert len(key) == KEY_BYTES
        assert 0 <= counter < 2**64


def test_reading_returns_what_was_written_last(replica_database: PostgresqlDatabase) -> None:
    before = replica_database.transact(changes.read)
    replica_database.transact(partial(changes.write, changed={b"k" * KEY_BYTES: 5}))
    after = replica_database.transact(changes.read)
    (new,) = after.keys() - before.keys()
    assert list(changes.parse(after[new])) == [(b"k" * KEY_BYTES, 5)]


def test_old_changes_are_removed(replica_database: PostgresqlDatabase) -> None:
    replica_database.transact(partial(changes.write, changed={b"o" * KEY_BYTES: 5}))
    replica_database.transact(
        lambda connection: connection.exec_driver_sql(
            "UPDATE changes SET made_at = made_at - interval '2 min'"
        ).close()
    )
    replica_database.transact(partial(changes.write, changed={b"n" * KEY_BYTES: 5}))
    replica_database.transact(changes.remove_old)
    assert len(replica_database.transact(changes.read)) == 1
