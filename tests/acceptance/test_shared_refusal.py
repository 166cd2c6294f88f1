"""What assisted-service refuses to one replica, no replica serves any more."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.tenants import Tenants, serving, wait_for
from tests.acceptance.upstream import running
from tests.pgbouncer import running_pgbouncer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.acceptance.service import Certificate
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

OWNER = "owner"
TTL_SECONDS = 600
"""A replica that is not notified would serve its mounts for so long."""
PATIENCE_SECONDS = 30


@pytest.mark.soak
@pytest.mark.parametrize(
    ("workers", "is_notified"), [pytest.param(1, False, marks=pytest.mark.soak), (2, True)]
)
def test_refusal_to_one_replica_ends_the_mounts_of_others(
    certificate: Certificate, postgres: PostgresServer, tmp_path: Path, workers: int, *, is_notified: bool
) -> None:
    secret, url = tmp_path / "secret", postgres.create_database()
    secret.write_text("5" * 64)
    with running(certificate) as upstream, ExitStack() as stack:
        if not is_notified:  # the pooler passes no notifications on
            port = stack.enter_context(running_pgbouncer(postgres))
            url = url.replace(f":{postgres.port}/", f":{port}/")
        environment = {
            "DATABASE_URL": url,
            "INSTANCE_SECRET_FILE": str(secret),
            "SNAPSHOT_TTL": str(TTL_SECONDS),
            "SNAPSHOT_MAX_AGE": "1",  # new mounts ask, those in progress do not
            "WORKERS": str(workers),
        }
        tenants = Tenants(upstream)
        infra_env = tenants.register(OWNER)
        for name in ("one", "other"):
            (tmp_path / name).mkdir()
        one, other = (
            stack.enter_context(serving(tmp_path / name, tenants, environment)) for name in ("one", "other")
        )
        assert other.mount(OWNER, infra_env).status == 206
        asked = upstream.count(infra_env)
        for _ in range(5 * workers):
            assert other.request(OWNER, infra_env).status == 206
        assert upstream.count(infra_env) == asked
        tenants.revoked.add(OWNER)
        wait_for(lambda: one.request(OWNER, infra_env, "GET", {}).status == 401)
        wait_for(lambda: other.request(OWNER, infra_env).status == 401, PATIENCE_SECONDS)
        for _ in range(5 * workers):
            assert other.request(OWNER, infra_env).status == 401
