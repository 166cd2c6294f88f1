"""The tables of the coordination of replicas, for PostgreSQL only. All instants are of its clock."""

from __future__ import annotations

import sqlalchemy as sa

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
REPLICA_TABLES = (CLAIMS, CHANGES)
"""To be added to the tables of a database that replicas share (``Table.to_metadata``)."""
