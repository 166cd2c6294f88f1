"""Settings of the database that replicas share, and of the secret of the instance."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from image_service.core.formats.hosts import ascii_host
from image_service.settings.variables import setting

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECRET_BYTES = 32
_MAX_FILE_BYTES = 4096
_SECRET = re.compile(rf"[0-9A-Fa-f]{{{2 * SECRET_BYTES}}}", re.ASCII)
_SCHEME = "postgresql+psycopg"


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Return the secrets in a file, the one that seals first.

    Raises:
        ValueError: the file cannot be read, or holds something else; the message does not repeat its content.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ValueError(f"must be a readable file: {error.strerror}") from None
    lines = content.decode("ascii", "replace").split()
    if len(content) > _MAX_FILE_BYTES or not lines or not all(map(_SECRET.fullmatch, lines)):
        raise ValueError(
            f"must be a file of secrets, one a line, each of {2 * SECRET_BYTES} hexadecimal digits;"
            f" `openssl rand -hex {SECRET_BYTES}` makes one"
        )
    return tuple(map(bytes.fromhex, lines))


def _parse_secret_file(value: str) -> Path:
    read_secrets(Path(value))
    return Path(value)


def _parse_url(value: str) -> str:
    """Return the URL of a PostgreSQL database, for SQLAlchemy."""
    fault = f"must be {_SCHEME}://USER:PASSWORD@HOST:PORT/DATABASE, escaped (%40 for @ in PASSWORD)"
    try:
        parts = urlsplit(value)
        is_valid = parts.scheme in {_SCHEME, "postgresql"} and len(parts.path) > 1 and parts.port != 0
        # SQLAlchemy ends a password at the first: the rest of it would be logged as part of the host.
        is_valid = is_valid and value.partition("?")[0].count("@") <= 1
    except ValueError:
        raise ValueError(fault) from None
    if not is_valid:
        raise ValueError(fault)
    for host in (parts.hostname or "localhost").split(","):  # PostgreSQL's client tries several
        ascii_host(host)
    return f"{_SCHEME}:{value.partition(':')[2]}"


@attrs.frozen(kw_only=True)
class DatabaseSettings:
    """Replicas."""

    url: str | None = setting("DATABASE_URL", parse=_parse_url, is_secret=True)
    """URL of a PostgreSQL database (15 or later), as SQLAlchemy takes it:
    `postgresql+psycopg://USER:PASSWORD@HOST:PORT/DATABASE`, with parameters of libpq such as
    `?sslmode=verify-full`. In user and password `@ : / ? # [ ] %` are escaped, such as `%40` for `@`. All
    replicas with the same one share snapshots and mounts: they serve the same bytes under one ETag. The
    database is for this service alone; the first start creates the tables. When not set, snapshots are in an
    SQLite database in `DATA_DIR`. Requires `INSTANCE_SECRET_FILE`. Each process opens five connections at
    most."""
    listen_url: str | None = setting("DATABASE_LISTEN_URL", parse=_parse_url, is_secret=True)
    """URL of the same database without a connection pooler in between, for LISTEN; to be set if
    `DATABASE_URL` leads to PgBouncer or another pooler. When not set, `DATABASE_URL` is used. Where LISTEN is
    not to be had, replicas learn of each other's changes by polling, a second later."""
    secret_file: Path | None = setting("INSTANCE_SECRET_FILE", parse=_parse_secret_file)
    """File of the instance's secret, alike on all replicas: 64 hexadecimal digits, such as
    `openssl rand -hex 32` makes. Several may be given, one a line: the first encrypts, all decrypt, so that
    it can be rotated. Required with `DATABASE_URL`; without both, a secret is made in `DATA_DIR`."""

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """The secrets in the file; none without a file. Raises ValueError."""
        return () if self.secret_file is None else read_secrets(self.secret_file)

    def contradictions(self, environ: Mapping[str, str]) -> Iterator[str]:
        """The variables that are missing, and those that are valid but not together."""
        if environ.get("DATABASE_URL") and not environ.get("INSTANCE_SECRET_FILE"):
            yield "DATABASE_URL is set; INSTANCE_SECRET_FILE must be set then"
        if environ.get("DATABASE_LISTEN_URL") and not environ.get("DATABASE_URL"):
            yield "DATABASE_LISTEN_URL is set without DATABASE_URL"
        if environ.get("DATABASE_URL") and find_spec("psycopg") is None:
            yield "DATABASE_URL needs psycopg; install the wheel with its extra postgresql"
