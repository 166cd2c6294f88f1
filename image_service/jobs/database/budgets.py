"""Counts what tenants keep. The caller's transaction has locked the tenant.

A compose counts with its rows and with `store_bytes`: while it runs, the most that its artifacts can take, or
what its attempts have sent, if that is more; then what they take, unless the image catalog has them, where
they count as images. An object that nothing refers to any more counts until it is deleted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from image_service.core.errors import BudgetExceeded
from image_service.jobs.database.tables import ARTIFACTS, COMPOSES, DISCARDED, IMAGES, JOBS, SECRETS

if TYPE_CHECKING:
    from image_service.jobs.model import TenantBudget

_UNREPORTED_BYTES = 128 * 1024
"""For the rows of a job that has not ended: its result, error and progress."""
_COMPOSE_BYTES = sa.cast(COMPOSES.c.row_bytes, sa.Float) + sa.case(
    (COMPOSES.c.sent_bytes > COMPOSES.c.store_bytes, COMPOSES.c.sent_bytes), else_=COMPOSES.c.store_bytes
)
MOST_BYTES = 1 << 62
"""That a row can have, unless somebody has changed it."""


def sum_bytes(column: sa.ColumnElement[Any]) -> sa.ColumnElement[float]:
    """Return the sum of numbers of bytes, for `to_bytes`.

    It is exact up to 2^53 bytes. A sum of integers is an error if somebody has put large ones into rows.
    """
    return sa.func.coalesce(sa.func.sum(sa.cast(column, sa.Float)), 0.0)


def to_bytes(total: float) -> int:
    """Return a sum of `sum_bytes` as a number of bytes, 0 to 2^62."""
    return int(max(0, min(total, MOST_BYTES)))


def check_budget(connection: sa.Connection, tenant: str, budget: TenantBudget) -> None:
    """Raise BudgetExceeded if a tenant has more than its budget."""
    composes = sa.select(sa.func.count(), sum_bytes(_COMPOSE_BYTES)).where(COMPOSES.c.tenant == tenant)
    number, compose_bytes = connection.execute(composes).one()
    if number > budget.max_composes:
        raise BudgetExceeded(
            f"JOBS_MAX_COMPOSES: this tenant has {budget.max_composes} composes, imports and exports; they"
            " count until they are deleted, or JOBS_RETENTION ends"
        )
    total = to_bytes(compose_bytes)
    for objects in (IMAGES, DISCARDED):
        kept = sa.select(sum_bytes(objects.c.kept_bytes)).where(objects.c.tenant == tenant)
        total += to_bytes(connection.execute(kept).scalar_one())
    if total > (max_bytes := budget.max_bytes_of(tenant)):
        raise BudgetExceeded(
            f"JOBS_MAX_BYTES: this tenant would take up to {total} bytes, at most {max_bytes} are"
            " allowed; composes that end give back what they did not need, deleted composes and images all,"
            " a minute later"
        )


def largest_tenants(connection: sa.Connection, limit: int) -> dict[str, int]:
    """Return the bytes of the tenants that keep the most."""
    kept = sa.union_all(
        sa.select(COMPOSES.c.tenant, _COMPOSE_BYTES.label("bytes")),
        *(sa.select(objects.c.tenant, objects.c.kept_bytes) for objects in (IMAGES, DISCARDED)),
    ).subquery()
    total = sum_bytes(kept.c.bytes)
    select = sa.select(kept.c.tenant, total).group_by(kept.c.tenant)
    rows = connection.execute(select.order_by(total.desc(), kept.c.tenant).limit(limit))
    return {tenant: to_bytes(taken) for tenant, taken in rows}


def count_new_rows(connection: sa.Connection, compose_id: str) -> None:
    """Count the rows of a compose that was added, and those that its jobs will report."""
    jobs = sa.select(sa.func.count()).where(JOBS.c.compose_id == compose_id)
    unreported = connection.execute(jobs).scalar_one() * _UNREPORTED_BYTES
    taken = _row_bytes(connection, compose_id) + unreported
    connection.execute(sa.update(COMPOSES).where(COMPOSES.c.id == compose_id).values(row_bytes=taken))


def count_ended(connection: sa.Connection, compose_id: str) -> None:
    """Count what a compose keeps that has ended."""
    kept = (
        sa.select(sum_bytes(ARTIFACTS.c.kept_bytes))
        .join(JOBS, JOBS.c.id == ARTIFACTS.c.job_id)
        .where(JOBS.c.compose_id == compose_id, ARTIFACTS.c.key.not_in(sa.select(IMAGES.c.key)))
    )
    values = {
        "row_bytes": _row_bytes(connection, compose_id),
        "store_bytes": to_bytes(connection.execute(kept).scalar_one()),
        "sent_bytes": 0,
    }
    connection.execute(sa.update(COMPOSES).where(COMPOSES.c.id == compose_id).values(values))


def _row_bytes(connection: sa.Connection, compose_id: str) -> int:
    length = sa.func.length  # of ASCII, or of bytes
    own = length(COMPOSES.c.request) + length(COMPOSES.c.plan) + length(COMPOSES.c.provenance)
    parts = (
        sa.select(own).where(COMPOSES.c.id == compose_id),
        sa.select(sa.func.sum(length(JOBS.c.result))).where(JOBS.c.compose_id == compose_id),
        sa.select(length(SECRETS.c.sealed)).where(SECRETS.c.compose_id == compose_id),
    )
    return sum(int(connection.scalar(part) or 0) for part in parts)
