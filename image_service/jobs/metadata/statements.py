"""Statements that several repositories use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.jobs.metadata.tables import ARTIFACTS, DISCARDED, TENANTS

if TYPE_CHECKING:
    from image_service.database.database import Database


def utc_now() -> datetime:
    """Return the present time."""
    return datetime.now(UTC)


def unless_set(column: sa.Column[datetime], instant: datetime) -> sa.ColumnElement[datetime]:
    """Return a column's value; the instant, if it has none."""
    return sa.func.coalesce(column, sa.literal(instant, column.type))


def lock_tenant(database: Database, connection: sa.Connection, tenant: str) -> None:
    """Lock a tenant until the transaction ends; other transactions that lock it wait."""
    insert = database.insert(TENANTS).values(tenant=tenant)
    connection.execute(
        insert.on_conflict_do_update(
            index_elements=[TENANTS.c.tenant], set_={TENANTS.c.tenant: insert.excluded.tenant}
        )
    )


def discard(
    database: Database,
    connection: sa.Connection,
    after: datetime,
    artifacts: sa.ColumnElement[bool],
    *,
    except_keys: tuple[str, ...] = (),
) -> None:
    """Remove artifacts, and record that their objects are to be deleted after that time."""
    removed = artifacts & ARTIFACTS.c.key.not_in(except_keys)
    keys = sa.select(ARTIFACTS.c.key, sa.literal(after, DISCARDED.c.after.type)).where(removed)
    insert = database.insert(DISCARDED).from_select([DISCARDED.c.key, DISCARDED.c.after], keys)
    connection.execute(insert.on_conflict_do_nothing())
    connection.execute(sa.delete(ARTIFACTS).where(removed))
