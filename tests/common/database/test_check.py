"""The one try to reach the database."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
import sqlalchemy as sa

from image_service.common.database.postgresql import check_database
from tests.ports import free_port

if TYPE_CHECKING:
    from tests.postgres import PostgresServer

SECRET = "top-secret"


@pytest.fixture
def url(postgres: PostgresServer) -> sa.URL:
    return sa.make_url(postgres.create_database())


def check(url: sa.URL) -> str | None:
    return check_database(url.render_as_string(hide_password=False))


def execute(url: sa.URL, *statements: str) -> None:
    plain = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(plain, autocommit=True)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_database_that_can_be_used_is_not_changed(url: sa.URL) -> None:
    assert check(url) is None
    execute(url, "CREATE TABLE image_service_version ()")  # fails if the check has created it


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"database": "absent"}, 'database "absent" does not exist'),
        ({"username": "nobody"}, 'role "nobody" does not exist'),
        ({"port": free_port()}, "Connection refused"),
        ({"host": "database.invalid"}, "database.invalid"),
        ({"query": {"sslmod": "require"}}, 'invalid connection option "sslmod"'),
    ],
)
def test_reason_is_told_without_the_password(url: sa.URL, changes: dict[str, object], reason: str) -> None:
    changed = url.set(password=SECRET, **changes)  # type: ignore[arg-type]  # each of its own type
    fault = check(changed)
    assert fault is not None
    assert fault.startswith(f"PostgreSQL database {changed.database} at {changed.host}: ")
    assert reason in fault
    assert SECRET not in fault
    assert "\n" not in fault


def test_user_who_may_not_create_tables_is_told_of_until_they_are_there(url: sa.URL) -> None:
    name = f"reader_{url.database}"
    execute(url, f'CREATE ROLE "{name}" LOGIN', "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    reader = url.set(username=name)
    right = "must have the right to create tables"
    assert check(reader) == f"PostgreSQL database {url.database} at {url.host}: its user {name} {right}"
    execute(url, "CREATE TABLE image_service_version ()")
    assert check(reader) is None
