"""The database that replicas share: the tables of snapshots, and those of replicas, for PostgreSQL only.

All instants in the latter are of its clock.
"""

from __future__ import annotations

import sqlalchemy as sa

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.server.snapshots.storage.sql_statements import PAYLOADS, STORED_BYTES, TABLES

VERSION = 3
"""Of the tables in PostgreSQL."""
_TABLES = sa.MetaData()
_CLOCK = sa.func.clock_timestamp()

CLAIMS = sa.Table(
    "claims",
    _TABLES,
    sa.Column("key", sa.LargeBinary, primary_key=True),
    sa.Column("holder", sa.LargeBinary, nullable=False),  # a random number of each claim
    sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False, index=True),
)
CHANGES = sa.Table(
    "changes",
    _TABLES,
    sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("made_at", sa.DateTime(timezone=True), nullable=False, index=True, server_default=_CLOCK),
    sa.Column("payload", sa.Text, nullable=False),  # of the notification
)
REPLICAS = sa.Table(
    "replicas",
    _TABLES,
    sa.Column("id", sa.LargeBinary, primary_key=True),  # a random number of each start
    # Its newest layout; replicas of earlier versions read the column by this name.
    sa.Column("composer", sa.Integer, key="layout", nullable=False),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
)
DATA_KEYS = sa.Table(
    "data_keys",
    _TABLES,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("wrapped", sa.LargeBinary, nullable=False),
)
REPLICA_FIGURES = sa.Table(
    "replica_figures",
    _TABLES,
    sa.Column("id", sa.Text, primary_key=True),  # a random text of each start
    sa.Column("figures", sa.Text, nullable=False),  # JSON: what the replica does now
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
)
REPLICA_TABLES = (CLAIMS, CHANGES, REPLICAS, DATA_KEYS, REPLICA_FIGURES)
_MIGRATIONS = {2: REPLICA_FIGURES.create}

# They are encrypted: an attempt to compress them is in vain.
_UNCOMPRESSED = sa.DDL(  # type: ignore[no-untyped-call]  # SQLAlchemy has annotated it in part
    "ALTER TABLE payloads ALTER COLUMN sealed SET STORAGE EXTERNAL"
)


def open_replica_database(url: str) -> PostgresqlDatabase:
    """Return the database at a URL; it connects when it is first used."""
    tables = sa.MetaData()
    for table in (*TABLES.sorted_tables, *REPLICA_TABLES):
        table.to_metadata(tables)
    sa.event.listen(tables.tables[PAYLOADS.name], "after_create", _UNCOMPRESSED)
    return PostgresqlDatabase(url, tables, VERSION, _MIGRATIONS, stored_bytes=STORED_BYTES)
