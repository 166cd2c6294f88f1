"""Replicas that share a PostgreSQL database: their secret, and the database's absence, hangs and return."""

from __future__ import annotations

import secrets
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.tenants import Site, Tenants, serving
from tests.acceptance.upstream import running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate
    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

OWNER = "owner"


def write_secret(directory: Path, *instance_secrets: str) -> str:
    path = directory / "instance.secret"
    path.write_text("\n".join(instance_secrets) + "\n")
    path.chmod(0o600)
    return str(path)


@contextmanager
def replicas(
    directory: Path, tenants: Tenants, environment: dict[str, str], count: int
) -> Iterator[list[Site]]:
    with ExitStack() as stack:
        sites = []
        for number in range(count):
            (directory / str(number)).mkdir()
            sites.append(stack.enter_context(serving(directory / str(number), tenants, environment)))
        yield sites


def test_replicas_serve_one_image(certificate: Certificate, postgres: PostgresServer, tmp_path: Path) -> None:
    environment = {
        "DATABASE_URL": postgres.create_database(),
        "INSTANCE_SECRET_FILE": write_secret(tmp_path, secrets.token_hex(32)),
    }
    with running(certificate) as upstream:
        tenants = Tenants(upstream)
        infra_env = tenants.register(OWNER)
        with replicas(tmp_path, tenants, environment, 2) as sites:
            answers = [site.mount(OWNER, infra_env) for site in sites]
            assert len({(answer.headers["ETag"], answer.body) for answer in answers}) == 1
            assert upstream.count(infra_env) == 1
