"""A connection of its own to PostgreSQL, on which notifications arrive. No transaction runs on it."""

from __future__ import annotations

import select
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from image_service.common.database.postgresql import CONNECT_ARGUMENTS
from image_service.core.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Iterator


class ListeningConnection:
    """An open connection that listens to a channel."""

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - psycopg's, which may not be installed
        self._connection = connection

    def receive(self, seconds: float, interrupt: int) -> list[str] | None:
        """Wait for notifications.

        Args:
            seconds: after which an empty list is returned.
            interrupt: a descriptor that becomes readable to end the wait.

        Returns:
            their payloads; None: interrupted.

        Raises:
            StoreFailed: the connection is lost.
        """
        poll = select.poll()
        for descriptor in (self._connection.fileno(), interrupt):
            poll.register(descriptor, select.POLLIN)
        ready = dict(poll.poll(seconds * 1000))
        if interrupt in ready:
            return None
        if not ready:
            return []
        pgconn = self._connection.pgconn
        payloads = []
        try:
            pgconn.consume_input()
            while (notification := pgconn.notifies()) is not None:
                payloads.append(notification.extra.decode(errors="replace"))
        except OSError as error:
            raise StoreFailed(f"cannot listen: {error}") from None
        return payloads


@contextmanager
def listening(url: str, channel: str) -> Iterator[ListeningConnection]:
    """Listen to a channel until the block ends.

    Args:
        url: ``postgresql+psycopg://``, of the server itself: a pooler may accept LISTEN, and pass nothing on.
        channel: an SQL name.

    Raises:
        StoreFailed: there is no connection, or it is lost.
    """
    arguments = {**CONNECT_ARGUMENTS, "application_name": "image-service listener"}
    engine = sa.create_engine(url, connect_args=arguments, poolclass=NullPool)
    try:
        with closing(engine.raw_connection()) as proxy:
            connection: Any = proxy.driver_connection
            connection.autocommit = True
            connection.execute(f"LISTEN {channel}")
            yield ListeningConnection(connection)
    except engine.dialect.loaded_dbapi.Error as error:
        raise _failure(error) from None
    except DBAPIError as error:
        raise _failure(error.orig) from None


def _failure(error: BaseException | None) -> StoreFailed:
    """Return an error with the first line, which names the server, and no password."""
    first_line = str(error).strip().partition("\n")[0]
    return StoreFailed(f"cannot listen: {first_line}")
