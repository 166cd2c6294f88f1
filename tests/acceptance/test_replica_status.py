"""Two replicas that share a PostgreSQL database: each shows the other, and that it is away."""

from __future__ import annotations

import json
import secrets
import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.service import SERVE, fetch, run_service
from tests.acceptance.tenants import wait_for
from tests.ports import free_port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance


def status_of(port: int) -> dict[str, Any]:
    """Return the status of a replica."""
    status: dict[str, Any] = json.loads(fetch(f"http://127.0.0.1:{port}/api/v1/status").body)
    return status


def test_replica_sums_the_others_and_misses_one_that_is_killed(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text(secrets.token_hex(32))
    ports = free_port(), free_port()
    shared = {"DATABASE_URL": postgres.create_database(), "INSTANCE_SECRET_FILE": str(secret)}
    first, second = ({**shared, "ADMIN_LISTEN": f"127.0.0.1:{port}"} for port in ports)
    command = (*SERVE, "--standalone")
    directories = [tmp_path / name for name in ("first", "second")]
    for directory in directories:
        directory.mkdir()
    with run_service(directories[0], [], command=command, environment={**first, "WORKERS": "2"}):
        with run_service(
            directories[1], [], command=command, environment=second, ends_with=-signal.SIGKILL
        ) as killed:
            wait_for(lambda: all(len(status_of(port)["replicas"]) == 2 for port in ports))
            status = status_of(ports[0])
            assert sorted(each["is_own"] for each in status["replicas"]) == [False, True]
            assert status["totals"]["replicas"] == 2
            assert f"this replica ({status['host']}): " in status["verdict"]["text"]
            assert "all 2 replicas: serving 0 machines" in status["verdict"]["text"]
            killed.process.kill()
        away = f"the replica {status['host']} has been away for "
        wait_for(lambda: away in status_of(ports[0])["verdict"]["text"])
        assert status_of(ports[0])["verdict"]["level"] == "impaired"
