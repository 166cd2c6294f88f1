"""One try to reach a shared database, so that a wrong URL is known before a start."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from image_service.common.database.postgresql import CONNECT_ARGUMENTS

_MAY_USE = sa.text(
    "SELECT to_regclass('image_service_version') IS NOT NULL"
    " OR coalesce(has_schema_privilege(current_schema(), 'CREATE'), false)"
)
_LINE_END = "\n"


def check_database(url: str) -> str | None:
    """Connect once, with the user and password of a URL; nothing is written.

    Args:
        url: ``postgresql+psycopg://``; what is returned does not repeat its password.

    Returns:
        None: the database can be used. Else why not.
    """
    parsed = sa.make_url(url)
    name = f"PostgreSQL database {parsed.database} at {parsed.host}"
    engine = sa.create_engine(parsed, connect_args=CONNECT_ARGUMENTS, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            may_use = connection.execute(_MAY_USE).scalar_one()
    except SQLAlchemyError as error:
        reason = str(error.orig if isinstance(error, DBAPIError) else error)
        return f"{name}: {reason.strip().partition(_LINE_END)[0]}"
    return None if may_use else f"{name}: its user {parsed.username} must have the right to create tables"
