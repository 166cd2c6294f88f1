"""Two replicas of the jobs role, with PostgreSQL, S3, an engine of their own, and tenants."""

from __future__ import annotations

import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from tests.jobs.ec2_clients import ec2_settings
from tests.jobs.engine.servers import running_engine
from tests.jobs.tenant_clients import running_with_tenants
from tests.s3_server import BUCKET, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.jobs.running_role import RunningRole
    from tests.postgres import PostgresServer


@attrs.frozen
class Site:
    """Two replicas; the first alone has the worker API.

    Args:
        database_url: of their rows.
    """

    first: RunningRole
    second: RunningRole
    object_store: str
    database_url: str


@contextmanager
def running_replicas(directory: Path, postgres: PostgresServer, **variables: str) -> Iterator[Site]:
    """Run two replicas until the block ends.

    Args:
        postgres: for a database of theirs.
        variables: more of their environment.
    """
    parts = {name: directory / name for name in ("s3", "engine", "first", "second")}
    for part in parts.values():
        part.mkdir()
    (directory / "secret").write_text(secrets.token_hex(32))
    with running_s3_server(parts["s3"]) as s3, running_engine(parts["engine"]) as engine:
        shared = {
            **s3.environment,
            "DATABASE_URL": postgres.create_database(),
            "INSTANCE_SECRET_FILE": str(directory / "secret"),
            "STORE_URL": f"s3://{BUCKET}/store",
            "TEMPORAL_ADDRESS": engine.address,
            "UPLOAD_S3_URL": f"s3://{BUCKET}/uploads",
            **ec2_settings(directory, s3),
            **variables,
        }
        without_worker = {**shared, "JOBS_APIS": "composer,ec2", "JOBS_WORKER_SLOTS": "0"}
        with (
            running_with_tenants(parts["first"], **shared) as first,
            running_with_tenants(parts["second"], **without_worker) as second,
        ):
            yield Site(first, second, f"http://127.0.0.1:{s3.port}", shared["DATABASE_URL"])
