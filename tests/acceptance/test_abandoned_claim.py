"""A replica is killed while it asks assisted-service for all: another takes over."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from image_service.server.snapshots.replicas.claims import CLAIM_SECONDS
from tests.acceptance.service import SERVE, os_image, run_service
from tests.acceptance.standstills import timed
from tests.acceptance.tenants import VERSION, Site, Tenants, serving, wait_for
from tests.acceptance.upstream import Reply, running
from tests.server.standalone.faults import Call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Certificate
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

OWNER = "owner"
TAKEN_OVER_SECONDS = 45


@contextmanager
def to_be_killed(directory: Path, tenants: Tenants, environment: Mapping[str, str]) -> Iterator[Site]:
    """Run a replica that the block kills."""
    variables = {**tenants.upstream.environment, **environment}
    images = [os_image(directory.parent / "base.iso", VERSION)]
    directory.mkdir()
    with run_service(
        directory, images, command=SERVE, environment=variables, ends_with=-signal.SIGKILL
    ) as service:
        yield Site(service, tenants)


@pytest.mark.soak  # tests/replicas/test_replicas.py lets a claim be taken over, too
@pytest.mark.parametrize("waits", [False, True])
def test_claim_of_a_killed_replica_is_taken_over(
    certificate: Certificate, postgres: PostgresServer, tmp_path: Path, *, waits: bool
) -> None:
    url, secret = postgres.create_database(), tmp_path / "secret"
    secret.write_text("5" * 64)
    environment = {"DATABASE_URL": url, "INSTANCE_SECRET_FILE": str(secret)}
    with running(certificate) as upstream, ThreadPoolExecutor(1) as thread:
        tenants = Tenants(upstream)
        infra_env = tenants.register(OWNER)
        upstream.tell(infra_env, Reply(after_seconds=None), Call.IGNITION)
        with serving(tmp_path, tenants, environment) as other:
            with to_be_killed(tmp_path / "killed", tenants, environment) as killed:
                asked = thread.submit(killed.request, OWNER, infra_env)
                wait_for(lambda: upstream.count(infra_env) == 1)
                os.kill(killed.service.process.pid, signal.SIGKILL)
                killed_at = time.monotonic()
                with suppress(OSError):
                    asked.result()
            tenants.tell(infra_env, OWNER)
            waiting, _ = timed(lambda: other.request(OWNER, infra_env))
            assert waiting.status == 504, "it waits for the claim"
            assert upstream.count(infra_env) == 1
            if not waits:
                expire_claims(url)
            other.mount(OWNER, infra_env)
            seconds = time.monotonic() - killed_at
            assert upstream.count(infra_env) == 2
            if waits:
                assert CLAIM_SECONDS - 5 < seconds < TAKEN_OVER_SECONDS
            assert other.service.total('claims_total{outcome="taken-over"}') == 1


def expire_claims(url: str) -> None:
    """Let the claims in a database be as old as they become."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        connection.execute("UPDATE claims SET expires_at = clock_timestamp()")
