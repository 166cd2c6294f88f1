"""The database that replicas share: the tables of snapshots, and those of replicas."""

from __future__ import annotations

import sqlalchemy as sa

from image_service.common.database.postgresql import PostgresqlDatabase
from image_service.server.snapshots.replicas.data_key import DATA_KEYS
from image_service.server.snapshots.replicas.tables import REPLICA_TABLES
from image_service.server.snapshots.storage.sql_statements import PAYLOADS, STORED_BYTES, TABLES

VERSION = 2
"""Of the tables in PostgreSQL."""
# They are encrypted: an attempt to compress them is in vain.
_UNCOMPRESSED = sa.DDL(  # type: ignore[no-untyped-call]  # SQLAlchemy has annotated it in part
    "ALTER TABLE payloads ALTER COLUMN sealed SET STORAGE EXTERNAL"
)


def open_replica_database(url: str) -> PostgresqlDatabase:
    """Return the database at a URL; it connects when it is first used."""
    tables = sa.MetaData()
    for table in (*TABLES.sorted_tables, *REPLICA_TABLES, DATA_KEYS):
        table.to_metadata(tables)
    sa.event.listen(tables.tables[PAYLOADS.name], "after_create", _UNCOMPRESSED)
    return PostgresqlDatabase(url, tables, VERSION, stored_bytes=STORED_BYTES)
