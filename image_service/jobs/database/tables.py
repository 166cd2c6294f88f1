"""The tables of the jobs role, and the database that has them: an SQLite file, or PostgreSQL.

The names of the tables differ from those of snapshots, which may be in the same database.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import attrs
import sqlalchemy as sa

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.common.database.sqlite import SqliteDatabase
from image_service.core.errors import StoreFailed
from image_service.jobs.database.documents import Document
from image_service.jobs.database.sealing import RowCipher
from image_service.jobs.model import Artifact, UploadResult, UploadTarget, job_id_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from image_service.common.database.database import Database

DATABASE_FILE = "jobs.sqlite"
_VERSION = 2
_BUSY_SECONDS = 10.0
"""No later call repeats a write, so a writer waits as long as a client does."""
TABLES = sa.MetaData()
UNKNOWN_ISOLATION = "unknown"
"""Of workers that do not report it."""


class Instant(sa.TypeDecorator[datetime]):
    """A datetime with a zone, stored as seconds since 1970: SQLite has no type for it."""

    impl = sa.Float
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> float | None:
        """Return seconds."""
        del dialect
        return None if value is None else value.timestamp()

    def process_result_value(self, value: float | None, dialect: sa.Dialect) -> datetime | None:
        """Return a datetime in UTC. A damaged time becomes 1970, so that lists still show the row."""
        del dialect
        try:
            return None if value is None else datetime.fromtimestamp(value, UTC)
        except (OSError, OverflowError, TypeError, ValueError):
            return datetime.fromtimestamp(0, UTC)


TENANTS = sa.Table(
    "tenants",
    TABLES,
    sa.Column("tenant", sa.Text, primary_key=True),
    sa.Column("served_at", Instant),  # when a job of it was last started
)
"""A transaction that counts rows of a tenant first writes the tenant's row, which makes others wait."""
_LISTED = "tenant origin created_at id state distribution image_type"
"""The columns by which composes of a tenant are listed: lists read no row that they do not show."""
_COUNTED = "tenant row_bytes store_bytes sent_bytes"
COMPOSES = sa.Table(
    "composes",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("distribution", sa.Text, nullable=False),
    sa.Column("architecture", sa.Text, nullable=False),
    sa.Column("image_type", sa.Text),
    sa.Column("request", Document, nullable=False),
    sa.Column("plan", Document, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("size", sa.BigInteger),
    sa.Column("started_at", Instant),
    sa.Column("finished_at", Instant, index=True),
    sa.Column("error", Document),
    sa.Column("image", Document),
    sa.Column("uploads", Document, nullable=False),
    sa.Column("ignition_sha256", sa.Text),
    sa.Column("provenance", Document, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.Column("source_image", sa.Text, index=True),
    sa.Column("row_bytes", sa.BigInteger, nullable=False, server_default="0"),  # of its rows, about
    sa.Column("store_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column(
        "sent_bytes", sa.BigInteger, nullable=False, server_default="0"
    ),  # for which uploads have begun
    sa.Index("ix_composes_tenant", "tenant", "state"),
    sa.Index("ix_composes_state", "state", "started_at"),
    sa.Index("ix_composes_created_at", "created_at", "id"),
    sa.Index("ix_composes_listed", *_LISTED.split()),
    sa.Index("ix_composes_bytes", *_COUNTED.split()),
)
SECRETS = sa.Table(
    "compose_secrets",
    TABLES,
    sa.Column("compose_id", sa.ForeignKey(COMPOSES.c.id, ondelete="CASCADE"), primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
)
"""Customizations of images, and sources of imports."""
JOBS = sa.Table(
    "jobs",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("compose_id", sa.ForeignKey(COMPOSES.c.id, ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("number", sa.Integer, nullable=False),  # in the plan
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("architecture", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("progress", Document),
    sa.Column("error", Document),
    sa.Column("artifacts", Document, nullable=False),  # of the latest report
    sa.Column("result", Document, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("queued_at", Instant),
    sa.Column("started_at", Instant),
    sa.Column("stopped_at", Instant),  # by its worker, after a cancellation
    sa.Column("finished_at", Instant),
    sa.Index("ix_jobs_state", "state", "architecture", "tenant"),
)
PERMITS = sa.Table(
    "permits",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False, index=True),
    sa.Column("expires_at", Instant, nullable=False),
)
ARTIFACTS = sa.Table(
    "artifacts",
    TABLES,
    sa.Column("job_id", sa.ForeignKey(JOBS.c.id, ondelete="CASCADE"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("sha256", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("kept_bytes", sa.BigInteger, nullable=False),  # in the object store
    sa.Column("tag", sa.Text, nullable=False, server_default=""),
)
"""The objects that jobs have stored."""
DISCARDED = sa.Table(
    "discarded_objects",
    TABLES,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("after", Instant, nullable=False, index=True),  # not before that time
    sa.Column("tenant", sa.Text, nullable=False, server_default=""),
    sa.Column("kept_bytes", sa.BigInteger, nullable=False, server_default="0"),  # unless its compose has them
)
WORKERS = sa.Table(
    "workers",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("architecture", sa.Text, nullable=False),
    sa.Column("isolation", sa.Text, nullable=False, server_default=UNKNOWN_ISOLATION),
    sa.Column("seen_at", Instant, nullable=False, index=True),
)
IMAGES = sa.Table(
    "images",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("alias", sa.Text, nullable=False, index=True),  # the digits of its aliases in EC2's API
    sa.Column("tenant", sa.Text, nullable=False, index=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("architecture", sa.Text, nullable=False),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("virtual_size", sa.BigInteger, nullable=False),
    sa.Column("artifact", Document, nullable=False),
    sa.Column("key", sa.Text, nullable=False, index=True),  # of the artifact
    sa.Column("source", sa.Text, nullable=False, unique=True),
    sa.Column("created_at", Instant, nullable=False, index=True),
    sa.Column("description", sa.Text, nullable=False),
    sa.Column("platform", sa.Text, nullable=False),
    sa.Column("layout", sa.Text, nullable=False),
    sa.Column("volume_bytes", sa.BigInteger, nullable=False),
    sa.Column("launch_specification", Document, nullable=False),
    sa.Column("kept_bytes", sa.BigInteger, nullable=False),  # in the object store
)
TASKS = sa.Table(
    "conversion_tasks",
    TABLES,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("compose_id", sa.ForeignKey(COMPOSES.c.id, ondelete="CASCADE"), nullable=False, unique=True),
    sa.Column("tenant", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("request", Document, nullable=False),
    sa.Column("tags", Document, nullable=False),
    sa.Column("volume_bytes", sa.BigInteger, nullable=False),
    sa.Column("created_at", Instant, nullable=False),
    sa.Column("expires_at", Instant, nullable=False),
    sa.Column("cancel_reason", sa.Text, nullable=False),
    sa.Index("ix_conversion_tasks_listed", "tenant", "created_at", "id", "kind"),
)
ANSWERS = sa.Table(
    "ec2_answers",
    TABLES,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("output", Document, nullable=False),
    sa.Column("created_at", Instant, nullable=False, index=True),
)
"""The answers to changing requests, for those that come again with the same signature."""


def open_database(url: str | None, data_dir: Path, secrets: Sequence[bytes] = ()) -> Database:
    """Return the database with the tables of the jobs role; it connects when it is first used.

    Args:
        url: ``postgresql+psycopg://``; None: ``jobs.sqlite`` in `data_dir`.
        data_dir: an existing directory.
        secrets: of the instance; rows of version 1 are sealed and tagged with the first.
    """
    migrations = {1: partial(_migrate_from_1, RowCipher(secrets))}
    if url is None:
        path = data_dir / DATABASE_FILE
        return SqliteDatabase(
            path, TABLES, _VERSION, migrations, busy_seconds=_BUSY_SECONDS, keeps_damaged_text=True
        )
    return PostgresqlDatabase(url, TABLES, _VERSION, migrations, version_table="image_service_jobs_version")


def _migrate_from_1(cipher: RowCipher, connection: sa.Connection) -> None:
    """Migrate from version 1, in which jobs had ids of their own, and `seen_at`, their last heartbeat.

    A plan finds its jobs by the ids of `job_id_of`; plans that have begun do not go on. Workers stopped a
    cancelled job at the last heartbeat after its end. Secrets were sealed without their tenant; one that no
    secret opens stays as it is. Version 1 had no tags, and rows of jobs had copies of the plan.
    """
    for table, column in (
        ("composes", "row_bytes"),
        ("composes", "store_bytes"),
        ("composes", "sent_bytes"),
        ("artifacts", "kept_bytes"),
        ("images", "kept_bytes"),
        ("discarded_objects", "kept_bytes"),
    ):
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column} BIGINT NOT NULL DEFAULT 0")
    connection.exec_driver_sql(
        f"ALTER TABLE workers ADD COLUMN isolation TEXT NOT NULL DEFAULT '{UNKNOWN_ISOLATION}'"
    )
    connection.exec_driver_sql("ALTER TABLE artifacts ADD COLUMN tag TEXT NOT NULL DEFAULT ''")
    for column in ("arguments", "inputs"):
        connection.exec_driver_sql(f"ALTER TABLE jobs DROP COLUMN {column}")
    connection.exec_driver_sql("ALTER TABLE discarded_objects ADD COLUMN tenant TEXT NOT NULL DEFAULT ''")
    connection.exec_driver_sql("UPDATE artifacts SET kept_bytes = size")
    connection.exec_driver_sql("UPDATE images SET kept_bytes = virtual_size")
    for index in (*COMPOSES.indexes, *TASKS.indexes):
        index.create(connection, checkfirst=True)
    connection.exec_driver_sql("ALTER TABLE jobs ADD COLUMN stopped_at FLOAT")
    connection.exec_driver_sql(
        "UPDATE jobs SET stopped_at = seen_at WHERE state = 'cancelled' AND seen_at > finished_at"
    )
    waiting = connection.exec_driver_sql(
        "SELECT jobs.id, compose_id, step FROM jobs JOIN composes ON composes.id = compose_id"
        " WHERE composes.started_at IS NULL AND composes.finished_at IS NULL"
    ).all()
    for row in waiting:
        new = {"id": job_id_of(row.compose_id, row.step)}
        connection.execute(sa.update(JOBS).where(JOBS.c.id == row.id).values(new))
    owners = connection.exec_driver_sql(
        "SELECT compose_id, tenant FROM compose_secrets JOIN composes ON composes.id = compose_id"
    ).all()
    for compose_id, tenant in owners:
        of_compose = SECRETS.c.compose_id == compose_id
        sealed = connection.execute(sa.select(SECRETS.c.sealed).where(of_compose)).scalar_one()
        with suppress(StoreFailed):
            again = cipher.seal_for_tenant(tenant, compose_id, sealed)
            connection.execute(sa.update(SECRETS).where(of_compose).values(sealed=again))
    _tag_rows(cipher, connection)


def _tag_rows(cipher: RowCipher, connection: sa.Connection) -> None:
    """Tag plans, images and uploads; the artifacts of jobs are of plans that do not go on."""
    columns = COMPOSES.c.id, COMPOSES.c.tenant, COMPOSES.c.plan, COMPOSES.c.image, COMPOSES.c.uploads
    details = COMPOSES.c.source_image, COMPOSES.c.image_type
    for row in connection.execute(sa.select(*columns, *details)).all():
        plan = {**row.plan, "tag": ""}
        tag = cipher.tag_plan(row.tenant, row.id, plan, row.source_image, row.image_type)
        values: dict[str, object] = {"plan": {**plan, "tag": tag}}
        uploads = [UploadResult(**{**each, "target": UploadTarget(**each["target"])}) for each in row.uploads]
        values["uploads"] = [cipher.tag_upload(row.tenant, row.id, upload) for upload in uploads]
        if row.image is not None:
            values["image"] = attrs.asdict(cipher.tag_artifact(row.tenant, row.id, Artifact(**row.image)))
        connection.execute(sa.update(COMPOSES).where(COMPOSES.c.id == row.id).values(values))
    for image in connection.execute(sa.select(IMAGES.c.id, IMAGES.c.tenant, IMAGES.c.artifact)).all():
        artifact = cipher.tag_artifact(image.tenant, image.id, Artifact(**image.artifact))
        connection.execute(sa.update(IMAGES).where(IMAGES.c.id == image.id).values(artifact=artifact))
