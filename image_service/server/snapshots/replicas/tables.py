"""The tables that replicas coordinate by, for PostgreSQL only. All instants are of its clock."""

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
REPLICAS = sa.Table(
    "replicas",
    _TABLES,
    sa.Column("id", sa.LargeBinary, primary_key=True),  # a random number of each start
    # Its newest layout; replicas of earlier versions read the column by this name.
    sa.Column("composer", sa.Integer, key="layout", nullable=False),
    sa.Column("seen_at", sa.DateTime(timezone=True), nullable=False),
)
REPLICA_TABLES = (CLAIMS, CHANGES, REPLICAS)
"""To be added to the tables of a database that replicas share (``Table.to_metadata``)."""
