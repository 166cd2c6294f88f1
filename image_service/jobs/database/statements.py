"""Statements that several repositories use."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.core.errors import Conflict, NotFound
from image_service.jobs.database.tables import ARTIFACTS, COMPOSES, DISCARDED, IMAGES, JOBS, TENANTS
from image_service.jobs.database.values import JOB_COLUMNS, to_job
from image_service.jobs.model import ComposeState, JobState

if TYPE_CHECKING:
    from collections.abc import Collection

    from image_service.common.database.database import Database
    from image_service.jobs.model import Job

UNFINISHED = COMPOSES.c.state.not_in([state for state in ComposeState if state.is_final])
"""Matches composes that have not ended."""
IMAGES_IN_USE = sa.select(COMPOSES.c.source_image).where(COMPOSES.c.source_image.is_not(None), UNFINISHED)
"""The ids of catalog images that jobs may read."""


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


def find_job(connection: sa.Connection, job_id: str) -> Job | None:
    """Return a job; None: there is none. Raises RowNotAuthentic."""
    row = connection.execute(sa.select(*JOB_COLUMNS).where(JOBS.c.id == job_id)).mappings().first()
    return None if row is None else to_job(row)


def unfinished_job(job_id: str) -> sa.Update:
    """Update a job that has not ended."""
    return sa.update(JOBS).where(JOBS.c.id == job_id, JOBS.c.finished_at.is_(None))


def running_attempt(job_id: str, attempt: int) -> sa.Update:
    """Update a job that this attempt does."""
    return unfinished_job(job_id).where(JOBS.c.attempt == attempt, JOBS.c.state == JobState.RUNNING)


def undiscard(keys: Collection[str]) -> sa.Delete:
    """Forget that objects are to be deleted."""
    return sa.delete(DISCARDED).where(DISCARDED.c.key.in_(keys))


def discard(
    database: Database,
    connection: sa.Connection,
    after: datetime,
    artifacts: sa.ColumnElement[bool],
    *,
    except_keys: tuple[str, ...] = (),
) -> None:
    """Remove artifacts, and record that their objects are to be deleted after that time.

    The objects of catalog images stay.
    """
    in_catalog = ARTIFACTS.c.key.in_(sa.select(IMAGES.c.key))
    removed = artifacts & ARTIFACTS.c.key.not_in(except_keys) & ~in_catalog
    columns = DISCARDED.c.key, DISCARDED.c.after, DISCARDED.c.tenant, DISCARDED.c.kept_bytes
    since = sa.literal(after, DISCARDED.c.after.type)
    objects = sa.select(ARTIFACTS.c.key, since, JOBS.c.tenant, ARTIFACTS.c.kept_bytes)
    of_jobs = objects.join(JOBS, JOBS.c.id == ARTIFACTS.c.job_id).where(removed)
    insert = database.insert(DISCARDED).from_select(columns, of_jobs)
    connection.execute(insert.on_conflict_do_nothing())
    connection.execute(sa.delete(ARTIFACTS).where(removed))


def use_image(connection: sa.Connection, tenant: str, image_id: str) -> None:
    """Lock a catalog image until the transaction ends, which adds a compose that uses it.

    Raises:
        NotFound: there is none, or it is of another tenant.
    """
    lock = sa.update(IMAGES).where(IMAGES.c.id == image_id, IMAGES.c.tenant == tenant).values(id=image_id)
    if not connection.execute(lock).rowcount:
        raise NotFound(f"there is no image {image_id}")


def delete_image(
    database: Database, connection: sa.Connection, now: datetime, wanted: sa.ColumnElement[bool]
) -> bool:
    """Delete the one catalog image that matches, and discard its object; False: there is none.

    Raises:
        Conflict: a compose that has not ended uses it.
    """
    if not connection.execute(sa.update(IMAGES).where(wanted).values(id=IMAGES.c.id)).rowcount:
        return False
    columns = IMAGES.c.id, IMAGES.c.key, IMAGES.c.tenant, IMAGES.c.kept_bytes
    image = connection.execute(sa.select(*columns).where(wanted)).one()
    if image.id in connection.scalars(IMAGES_IN_USE.where(COMPOSES.c.source_image == image.id)).all():
        raise Conflict(f"image {image.id} is in use by a compose that has not ended")
    connection.execute(sa.delete(IMAGES).where(IMAGES.c.id == image.id))
    connection.execute(sa.delete(ARTIFACTS).where(ARTIFACTS.c.key == image.key))
    row = {"key": image.key, "after": now, "tenant": image.tenant, "kept_bytes": image.kept_bytes}
    connection.execute(database.insert(DISCARDED).values(row).on_conflict_do_nothing())
    return True
