"""The links in the database of snapshots: a digest of each code, and a target that only the code unseals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import attrs
import sqlalchemy as sa

from image_service.core.errors import StoreFailed, Unavailable
from image_service.server.snapshots.storage.sql_statements import LINKS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")

RETRY_AFTER_SECONDS = 2
_COLUMNS = [LINKS.c[name] for name in ("id", "digest", "description", "sealed", "expires_at")]


class Transactions(Protocol):
    """Runs transactions; raises StoreFailed if one cannot be done."""

    def read(self, work: Callable[[sa.Connection], T]) -> Awaitable[T]:
        """Run a transaction that only reads."""

    def write(self, work: Callable[[sa.Connection], T]) -> Awaitable[T]:
        """Run a transaction that writes first."""


@attrs.frozen
class StoredLink:
    """A row.

    Args:
        id: the name of the link.
        digest: of its code.
        description: sealed with the secret of the instance.
        sealed: its target, sealed with its code; None: it has expired or was revoked.
        expires_at: seconds since 1970.
    """

    id: str
    digest: bytes
    description: bytes
    sealed: bytes | None
    expires_at: float


class LinkRepository:
    """Stores links. Every method raises Unavailable if the database cannot be used."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def add(self, link: StoredLink, pinned: tuple[bytes, int] | None) -> None:
        """Store a link.

        Args:
            pinned: key and generation of the snapshot that is kept for as long as the link can be used.
        """
        key, generation = pinned or (None, None)
        row = {**attrs.asdict(link), "key": key, "generation": generation}
        await _required(self._transactions.write(lambda it: it.execute(sa.insert(LINKS), row).close()))

    async def find(self, digest: bytes) -> StoredLink | None:
        """Return the link of a code's digest; None: there never was one, or it has ended long ago."""
        query = sa.select(*_COLUMNS).where(LINKS.c.digest == digest)
        row = await _required(self._transactions.read(lambda it: it.execute(query).first()))
        return None if row is None else _to_link(*row)

    async def list_usable(self, now: float) -> Sequence[StoredLink]:
        """Return the links that have neither expired nor been revoked, the next to expire first."""
        query = (
            sa.select(*_COLUMNS)
            .where(LINKS.c.sealed.is_not(None), LINKS.c.expires_at > now)
            .order_by(LINKS.c.expires_at, LINKS.c.id)
        )
        rows = await _required(self._transactions.read(lambda it: it.execute(query).all()))
        return [_to_link(*row) for row in rows]

    async def end(self, link_id: str) -> bytes | None:
        """Erase the target of a link; return the digest of its code, None: no usable link has this id."""
        is_link = sa.and_(LINKS.c.id == link_id, LINKS.c.sealed.is_not(None))

        def work(connection: sa.Connection) -> bytes | None:
            ended = sa.update(LINKS).where(is_link).values(_ERASED).returning(LINKS.c.digest)
            digest: bytes | None = connection.scalar(ended)
            return digest

        return await _required(self._transactions.write(work))

    async def remove_expired(self, now: float, kept_seconds: float) -> None:
        """Erase the targets of expired links, and remove links that expired `kept_seconds` ago."""

        def work(connection: sa.Connection) -> None:
            has_expired = sa.and_(LINKS.c.expires_at <= now, LINKS.c.sealed.is_not(None))
            connection.execute(sa.update(LINKS).where(has_expired).values(_ERASED))
            connection.execute(sa.delete(LINKS).where(LINKS.c.expires_at <= now - kept_seconds))

        await _required(self._transactions.write(work))


_MAX_TIME = 2**37
"""Seconds since 1970, of a year of four digits."""


def _to_link(
    link_id: object, digest: bytes, description: object, sealed: object, expires_at: object
) -> StoredLink:
    """Return the link of a row; SQLite stores any value in any column, and a wrong one opens nothing."""
    is_time = isinstance(expires_at, int | float) and 0 <= expires_at < _MAX_TIME
    return StoredLink(
        str(link_id),
        digest,
        description if isinstance(description, bytes) else b"",
        sealed if sealed is None or isinstance(sealed, bytes) else b"",
        float(cast("float", expires_at)) if is_time else 0.0,
    )


_ERASED = {"sealed": None, "key": None, "generation": None}


async def _required(transaction: Awaitable[T]) -> T:
    try:
        return await transaction
    except StoreFailed:
        reason = "the database of short links cannot be used now"
        raise Unavailable(reason, retry_after_seconds=RETRY_AFTER_SECONDS) from None
