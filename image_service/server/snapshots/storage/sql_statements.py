"""The tables of the snapshot repository, and its statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from image_service.server.snapshots.storage.repository import KEPT_CREDENTIALS, KEPT_GENERATIONS

if TYPE_CHECKING:
    from image_service.common.database.database import Database

DATABASE_FILE = "snapshots.sqlite"
SCHEMA_VERSION = 4
TABLES = sa.MetaData()
GENERATION = sa.BigInteger().with_variant(sa.Integer, "sqlite")  # up to 2**62
SNAPSHOTS = sa.Table(
    "snapshots",
    TABLES,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("generation", GENERATION, primary_key=True),
    sa.Column("taken_at", sa.Float, nullable=False),  # all times are seconds since 1970, UTC
    sa.Column("validated_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False, index=True),
    sa.Column("ended", sa.Boolean, nullable=False),  # refused; without a payload: ended for good
    sa.Column("infra_env", sa.LargeBinary),
    sa.Column("credentials", sa.LargeBinary),
    sa.Column("read_at", sa.Float, nullable=False, index=True),  # by a mount
    # The layout of its images; replicas of earlier versions read the column by this name.
    sa.Column("composer", sa.Integer, key="layout", nullable=False),
    sa.Index("ix_snapshots_credentials", "infra_env", "credentials", "read_at", "used_at"),
)
PAYLOADS = sa.Table(
    "payloads",
    TABLES,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("generation", GENERATION, primary_key=True),
    sa.Column("sealed", sa.LargeBinary, nullable=False),
    sa.ForeignKeyConstraint(
        ["key", "generation"], ["snapshots.key", "snapshots.generation"], ondelete="CASCADE"
    ),
)
MOUNTS = sa.Table(
    "mounts",
    TABLES,
    sa.Column("reader", sa.LargeBinary, primary_key=True),
    sa.Column("key", sa.LargeBinary, nullable=False, index=True),
    sa.Column("generation", GENERATION, nullable=False),
    sa.Column("base_sha256", sa.String(64), nullable=False),
    sa.Column("read_at", sa.Float, nullable=False, index=True),
)
LINKS = sa.Table(
    "links",
    TABLES,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),  # of the code
    sa.Column("description", sa.LargeBinary, nullable=False),  # sealed with the instance's secret
    sa.Column("sealed", sa.LargeBinary),  # with the code: the link's target; none once it has ended
    sa.Column("key", sa.LargeBinary),  # of the snapshot that a pinned link keeps
    sa.Column("generation", GENERATION),  # same
    sa.Column("expires_at", sa.Float, nullable=False, index=True),
    sa.Index("ix_links_snapshot", "key", "generation"),
)

# Statements. They are made once: SQLAlchemy takes longer to make one than SQLite to run it.

BATCH_ROWS = 256
"""What one statement removes at most."""
ROW_BYTES = 512
"""What a snapshot needs beside its payload, about; a mount needs less."""
_OF, _NUMBER = sa.bindparam("of", type_=sa.LargeBinary), sa.bindparam("number", type_=GENERATION)
_AT, _BEFORE = sa.bindparam("at", type_=sa.Float), sa.bindparam("before", type_=sa.Float)
_NOW = sa.bindparam("now", type_=sa.Float)
_INFRA_ENV = sa.bindparam("infra_env", type_=sa.LargeBinary)
_CREDENTIALS = sa.bindparam("credentials", type_=sa.LargeBinary)
_LAYOUT = sa.bindparam("layout", type_=sa.Integer)

_NEWEST = sa.select(sa.func.max(SNAPSHOTS.c.generation)).where(SNAPSHOTS.c.key == _OF).scalar_subquery()


def _is_generation(table: sa.Table) -> sa.ColumnElement[bool]:
    return sa.and_(table.c.key == _OF, table.c.generation == _NUMBER)


def _later(column: sa.Column[float]) -> sa.ColumnElement[float]:
    """A time, unless a later one is stored; but one in the future is of a clock that was ahead."""
    return sa.case((column.between(_AT, _NOW), column), else_=_AT)


def add_snapshot(database: Database) -> sa.Insert:
    """Insert a snapshot, unless its generation, or a newer one of its key, is there."""
    whose = _INFRA_ENV, _CREDENTIALS
    row = sa.select(_OF, _NUMBER, _AT, _AT, _AT, sa.false(), *whose, sa.literal(0.0), _LAYOUT)
    insert = database.insert(SNAPSHOTS).from_select(
        list(SNAPSHOTS.c), row.where(sa.func.coalesce(_NEWEST, 0) < _NUMBER)
    )
    # Another transaction may be inserting it; psycopg's rows are not counted for an insert by default.
    return insert.on_conflict_do_nothing().execution_options(preserve_rowcount=True)


def upsert_mount(database: Database) -> sa.Insert:
    """Insert a mount, or update the reader's unless that has read another image since, or the same later.

    A snapshot that was not stored at first has got another number since.
    """
    upsert = database.insert(MOUNTS)
    known, new = MOUNTS.c, upsert.excluded
    is_generation = sa.or_(known.generation == new.generation, known.generation < 0)
    is_same = sa.and_(known.key == new.key, known.base_sha256 == new.base_sha256, is_generation)
    return upsert.on_conflict_do_update(
        index_elements=[known.reader],
        set_={column.name: column for column in new if column.name != "reader"},
        where=sa.or_(
            known.read_at < sa.bindparam("replaces_before", type_=sa.Float),
            known.read_at > _NOW,
            is_same & (known.read_at <= new.read_at),
        ),
    )


_OLDER, _NEWER = SNAPSHOTS.alias("older"), SNAPSHOTS.alias("newer")
_HAS_OLDER = sa.exists().where(_OLDER.c.key == SNAPSHOTS.c.key, _OLDER.c.generation < SNAPSHOTS.c.generation)
_HAS_NEWER = sa.exists().where(_NEWER.c.key == SNAPSHOTS.c.key, _NEWER.c.generation > SNAPSHOTS.c.generation)


def _is_pinned(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return whether a link keeps a generation of a snapshot's key."""
    return sa.exists().where(LINKS.c.key == SNAPSHOTS.c.key, *conditions)


_IS_PINNED = _is_pinned(LINKS.c.generation == SNAPSHOTS.c.generation)


def _oldest(order: sa.Column[float], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
    """Select snapshots that may be removed, and what each occupies."""
    size = sa.func.coalesce(sa.func.length(PAYLOADS.c.sealed), 0) + ROW_BYTES
    is_same = sa.and_(PAYLOADS.c.key == SNAPSHOTS.c.key, PAYLOADS.c.generation == SNAPSHOTS.c.generation)
    return (
        sa.select(SNAPSHOTS.c.key, SNAPSHOTS.c.generation, size)
        .outerjoin_from(SNAPSHOTS, PAYLOADS, is_same)
        .where(*conditions)
        .order_by(order)
        .limit(BATCH_ROWS)
    )


def _select(*columns: sa.Column[Any]) -> sa.Select[Any]:
    """Select values of the columns' types; a damaged file may have any in any column of SQLite."""
    return sa.select(*(sa.cast(column, column.type) for column in columns))


FIND_NEWEST = (
    _select(
        SNAPSHOTS.c.generation,
        SNAPSHOTS.c.taken_at,
        SNAPSHOTS.c.validated_at,
        SNAPSHOTS.c.ended,
        SNAPSHOTS.c.layout,
    )
    .where(SNAPSHOTS.c.key == _OF)
    .order_by(SNAPSHOTS.c.generation.desc())
    .limit(1)
)
_HAS_PAYLOAD = sa.exists().where(
    PAYLOADS.c.key == SNAPSHOTS.c.key, PAYLOADS.c.generation == SNAPSHOTS.c.generation
)
HAS_ENDED = sa.select(
    sa.exists().where(
        SNAPSHOTS.c.key == _OF, SNAPSHOTS.c.generation >= _NUMBER, SNAPSHOTS.c.ended, ~_HAS_PAYLOAD
    )
)
FIND_LAYOUT = _select(SNAPSHOTS.c.layout).where(_is_generation(SNAPSHOTS), _HAS_PAYLOAD)
LOAD = _select(PAYLOADS.c.sealed).where(_is_generation(PAYLOADS))
ADD_PAYLOAD = sa.insert(PAYLOADS)
_SURPLUS = (  # a number may be far above the one before it
    sa.select(_OLDER.c.generation)
    .where(_OLDER.c.key == _OF)
    .order_by(_OLDER.c.generation.desc())
    .offset(KEPT_GENERATIONS)
    .limit(1)
    .scalar_subquery()
)
REMOVE_GENERATIONS = sa.delete(SNAPSHOTS).where(
    SNAPSHOTS.c.key == _OF, SNAPSHOTS.c.generation <= _SURPLUS, ~_IS_PINNED
)
REMOVE_CREDENTIALS = sa.delete(SNAPSHOTS).where(
    SNAPSHOTS.c.infra_env == _INFRA_ENV,
    ~_is_pinned(),
    SNAPSHOTS.c.credentials.in_(
        sa.select(_OLDER.c.credentials)
        .where(_OLDER.c.infra_env == _INFRA_ENV)
        .group_by(_OLDER.c.credentials)
        .order_by((sa.func.max(_OLDER.c.read_at) >= _BEFORE).desc(), sa.func.max(_OLDER.c.used_at).desc())
        .offset(KEPT_CREDENTIALS)
    ),
)
RECORD_VALIDATION = (
    sa.update(SNAPSHOTS)
    .where(_is_generation(SNAPSHOTS), _HAS_PAYLOAD)
    .values(validated_at=_AT, used_at=_AT, ended=False)
)
RECORD_REFUSAL = sa.update(SNAPSHOTS).where(_is_generation(SNAPSHOTS)).values(ended=True)
RECORD_READ = (
    sa.update(SNAPSHOTS)
    .where(_is_generation(SNAPSHOTS))
    .values(used_at=_later(SNAPSHOTS.c.used_at), read_at=_later(SNAPSHOTS.c.read_at))
)
END = (
    sa.update(SNAPSHOTS).where(SNAPSHOTS.c.key == _OF).values(ended=True, used_at=_AT),
    sa.delete(SNAPSHOTS).where(SNAPSHOTS.c.key == _OF, SNAPSHOTS.c.generation < _NEWEST),
    sa.delete(PAYLOADS).where(PAYLOADS.c.key == _OF),
)
FIND_MOUNTS = _select(*MOUNTS.c).where(MOUNTS.c.reader.in_(sa.bindparam("readers", expanding=True)))
COUNT_MOUNTS = (
    sa.select(MOUNTS.c.base_sha256, sa.func.count())
    .where(MOUNTS.c.read_at >= sa.bindparam("read_since", type_=sa.Float))
    .group_by(MOUNTS.c.base_sha256)
)
UNUSED = _oldest(
    SNAPSHOTS.c.used_at,
    SNAPSHOTS.c.used_at < _BEFORE,
    ~sa.exists().where(
        _OLDER.c.key == SNAPSHOTS.c.key,
        _OLDER.c.generation < SNAPSHOTS.c.generation,
        _OLDER.c.used_at >= _BEFORE,
    ),
    ~_is_pinned(LINKS.c.generation <= SNAPSHOTS.c.generation),  # else the kept one would be the newest
)
IDLE = _oldest(
    SNAPSHOTS.c.used_at,
    SNAPSHOTS.c.read_at + 0.0 < _BEFORE,  # an expression, or SQLite sorts by its index on this
    _HAS_NEWER | ~_HAS_OLDER,
    ~_IS_PINNED,
)
IN_PROGRESS = _oldest(SNAPSHOTS.c.read_at, _HAS_NEWER | ~_HAS_OLDER)
STORED_BYTES = sa.select(
    sa.func.coalesce(sa.func.sum(sa.func.length(PAYLOADS.c.sealed)), 0)
    + ROW_BYTES
    * (
        sa.select(sa.func.count()).select_from(SNAPSHOTS).scalar_subquery()
        + sa.select(sa.func.count()).select_from(MOUNTS).scalar_subquery()
    )
)
"""The size of all rows, about."""
REMOVE = sa.delete(SNAPSHOTS).where(_is_generation(SNAPSHOTS))
CORRECT_FUTURE = (  # times of a clock that was ahead
    sa.update(SNAPSHOTS).where(SNAPSHOTS.c.used_at > _NOW).values(used_at=_NOW),
    sa.update(SNAPSHOTS).where(SNAPSHOTS.c.read_at > _NOW).values(read_at=_NOW),
    sa.delete(MOUNTS).where(MOUNTS.c.read_at > _NOW),
)
REMOVE_MOUNTS = sa.delete(MOUNTS).where(
    MOUNTS.c.reader.in_(
        sa.select(MOUNTS.c.reader)
        .where(MOUNTS.c.read_at < _BEFORE)
        .order_by(MOUNTS.c.read_at)
        .limit(BATCH_ROWS)
    )
)
