"""Changes of version counters, as one replica writes them and the others read them.

A change is the beginning of a key, which decides the counter, and the counter's new value. Each transaction
that writes changes notifies those who listen, and adds a row for those who poll.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.server.snapshots.replicas.database import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CHANNEL = "image_service"
KEY_BYTES = 8
"""Of a key; keys that begin alike have one counter."""
WINDOW_SECONDS = 10.0
"""How old the changes are that a poll reads: a transaction may take some time to commit."""
_KEPT = timedelta(minutes=1)
_BATCH = 200
"""Changes of one notification, which has at most 8,000 bytes."""
_CHANGE = re.compile(r"([0-9a-f]{16})=([0-9a-f]{1,16})\b")
_CLOCK = sa.func.clock_timestamp()
_NOTIFY = sa.select(sa.func.pg_notify(CHANNEL, sa.bindparam("payload", type_=sa.Text)))
_READ = sa.select(CHANGES.c.id, CHANGES.c.payload).where(
    CHANGES.c.made_at > _CLOCK - timedelta(seconds=WINDOW_SECONDS)
)
_REMOVE_OLD = sa.delete(CHANGES).where(CHANGES.c.made_at < _CLOCK - _KEPT)


def write(connection: sa.Connection, changed: Mapping[bytes, int]) -> None:
    """Write changes: of counters, by the beginnings of their keys."""
    for payload in payloads(changed):
        connection.execute(sa.insert(CHANGES), {"payload": payload})
        connection.execute(_NOTIFY, {"payload": payload})


def payloads(changed: Mapping[bytes, int]) -> Iterator[str]:
    """Return changes as the payloads of notifications."""
    texts = [f"{key.hex()}={counter:x}" for key, counter in changed.items()]
    for start in range(0, len(texts), _BATCH):
        yield " ".join(texts[start : start + _BATCH])


def notify(connection: sa.Connection, payload: str) -> None:
    """Send a notification that is not a change."""
    connection.execute(_NOTIFY, {"payload": payload})


def parse(payload: str) -> Iterator[tuple[bytes, int]]:
    """Return the changes of a payload, and none of a notification that has none."""
    for key, counter in _CHANGE.findall(payload):
        yield bytes.fromhex(key), int(counter, 16)


def read(connection: sa.Connection) -> Mapping[int, str]:
    """Return the payloads of the latest changes, by their numbers."""
    return {row.id: row.payload for row in connection.execute(_READ)}


def remove_old(connection: sa.Connection) -> None:
    """Delete the changes that nobody needs any more."""
    connection.execute(_REMOVE_OLD)
