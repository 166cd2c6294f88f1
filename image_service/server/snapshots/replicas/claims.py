"""Claims: a row of the database for each key that one process of all replicas works on.

The holder of a claim holds no connection. It renews its claim; what a killed or frozen process leaves behind
expires, and the next process takes the key over.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import TYPE_CHECKING

import attrs
import sqlalchemy as sa

from image_service.server.snapshots.replicas.database import CLAIMS
from image_service.server.snapshots.replicas.observer import ClaimOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.database.postgresql import PostgresqlDatabase

CLAIM_SECONDS = 40.0
"""After this a claim that was not renewed expires, by the database's clock."""
_HOLDER_BYTES = 16
_KEPT = timedelta(minutes=10)
_CLOCK = sa.func.clock_timestamp()
_EXPIRES_AT = _CLOCK + timedelta(seconds=CLAIM_SECONDS)
_KEY, _HOLDER = sa.bindparam("of", type_=sa.LargeBinary), sa.bindparam("by", type_=sa.LargeBinary)
_IS_MINE = sa.and_(CLAIMS.c.key == _KEY, CLAIMS.c.holder == _HOLDER)
_RENEW = sa.update(CLAIMS).where(_IS_MINE).values(expires_at=_EXPIRES_AT)
_IS_HELD = sa.and_(CLAIMS.c.key.in_(sa.bindparam("keys", expanding=True)), CLAIMS.c.expires_at >= _CLOCK)
_HELD = sa.select(CLAIMS.c.key).where(_IS_HELD)
_RELEASE = sa.delete(CLAIMS).where(_IS_MINE)
_REMOVE_ABANDONED = sa.delete(CLAIMS).where(CLAIMS.c.expires_at < _CLOCK - _KEPT)


@attrs.frozen
class Claim:
    """One attempt to claim a key.

    Args:
        holder: stands for this attempt.
    """

    key: bytes
    holder: bytes = attrs.field(factory=lambda: secrets.token_bytes(_HOLDER_BYTES))


class Claims:
    """The rows. Every method blocks, and raises StoreFailed if the database cannot be used."""

    def __init__(self, database: PostgresqlDatabase) -> None:
        self._database = database
        insert = database.insert(CLAIMS).values(key=_KEY, holder=_HOLDER, expires_at=_EXPIRES_AT)
        self._claim = insert.on_conflict_do_update(
            index_elements=[CLAIMS.c.key],
            set_={"holder": insert.excluded.holder, "expires_at": insert.excluded.expires_at},
            # Its own: the database has stored it, and the connection was lost before it said so.
            where=sa.or_(CLAIMS.c.expires_at < _CLOCK, CLAIMS.c.holder == insert.excluded.holder),
        ).returning(sa.literal_column("xmax::text <> '0'", sa.Boolean))  # True: there was a row

    def acquire(self, claim: Claim) -> ClaimOutcome | None:
        """Claim a key; None: another process has a claim on it."""
        row = {"of": claim.key, "by": claim.holder}
        was_there = self._database.transact(lambda connection: connection.execute(self._claim, row).scalar())
        if was_there is None:
            return None
        return ClaimOutcome.TAKEN_OVER if was_there else ClaimOutcome.ACQUIRED

    def find_held(self, keys: Sequence[bytes]) -> set[bytes]:
        """Return those of some keys that are claimed."""
        return set(
            self._database.transact(lambda connection: connection.scalars(_HELD, {"keys": keys}).all())
        )

    def renew(self, claim: Claim) -> bool:
        """Put the expiry of a claim off; False: another process has taken it over."""
        row = {"of": claim.key, "by": claim.holder}
        return self._database.transact(lambda connection: connection.execute(_RENEW, row).rowcount > 0)


def release(connection: sa.Connection, claims: Sequence[Claim]) -> None:
    """Delete claims, unless other processes have taken them over."""
    if claims:
        connection.execute(_RELEASE, [{"of": claim.key, "by": claim.holder} for claim in claims])


def remove_abandoned(connection: sa.Connection) -> None:
    """Delete claims that have expired long ago."""
    connection.execute(_REMOVE_ABANDONED)
