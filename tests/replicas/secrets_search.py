"""Searches a PostgreSQL server for secrets: its rows as a client reads them, and its files with the WAL."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_TABLES = "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema = 'public'"


def find(secrets: Iterable[bytes], places: Iterable[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the places that hold a secret in clear, in hexadecimal or in base64, and which one."""
    forms = {
        form: secret
        for secret in secrets
        for form in (secret, secret.hex().encode(), secret.hex().upper().encode(), *_base64_forms(secret))
    }
    return [(place, secret) for place, content in places for form, secret in forms.items() if form in content]


def _base64_forms(secret: bytes) -> Iterator[bytes]:
    """Yield what a text has in base64 if the secret begins at each of three offsets in it."""
    for offset in range(3):
        encoded = base64.b64encode(bytes(offset) + secret)
        yield encoded[4 if offset else 0 : -4]


def rows(dsn: str) -> Iterator[tuple[str, bytes]]:
    """Yield all rows of a database: the table, and the values' bytes."""
    with psycopg.connect(dsn) as connection:
        for schema, table in connection.execute(_TABLES).fetchall():
            query = sql.SQL("SELECT * FROM {}").format(sql.Identifier(schema, table))
            for row in connection.execute(query):
                yield table, b"\0".join(_bytes(value) for value in row)


def files(directory: Path) -> Iterator[tuple[str, bytes]]:
    """Yield all files below a directory."""
    for path in directory.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()


def _bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
