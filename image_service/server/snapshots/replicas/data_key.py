"""The data key of a shared database: a row, encrypted with the instance's secret, which is never stored.

The row also proves that all replicas have the same secret: one that cannot open it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.server.snapshots.replicas.database import DATA_KEYS
from image_service.server.snapshots.storage.encryption import (
    is_wrapped_by,
    new_data_key,
    unwrap_data_key,
    wrap_data_key,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.database.postgresql import PostgresqlDatabase

_NUMBER = 1
"""Of the only row."""
_LOAD = sa.select(DATA_KEYS.c.wrapped).where(DATA_KEYS.c.number == _NUMBER)


def open_data_key(database: PostgresqlDatabase, secrets: Sequence[bytes]) -> bytes:
    """Return the data key; the first replica makes it. Waits for the database.

    Args:
        secrets: of the instance. If another than the first has encrypted the row, the first does so again.

    Raises:
        ConfigurationError: none of them opens the row.
        StoreFailed: it can be neither read nor written.
    """

    def work(connection: sa.Connection) -> bytes:
        insert = database.insert(DATA_KEYS).on_conflict_do_nothing()
        connection.execute(insert, {"number": _NUMBER, "wrapped": wrap_data_key(secrets[0], new_data_key())})
        wrapped: bytes = connection.execute(_LOAD.with_for_update()).scalar_one()
        data_key = unwrap_data_key(secrets, wrapped)
        if not is_wrapped_by(secrets[0], wrapped):
            wrapped = wrap_data_key(secrets[0], data_key)
            connection.execute(sa.update(DATA_KEYS).values(wrapped=wrapped))
        return data_key

    return database.transact(work)
