"""Another process locks the snapshot store, as a backup does: no answer waits for it."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.standstills import ALLOWED_SECONDS, Standstills
from tests.acceptance.tenants import Site, serving_tenants
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate

pytestmark = pytest.mark.acceptance

TTL_SECONDS = 1
OWNER = "owner"
NEW_IMAGES = 5
LOCK_SECONDS = 60
FIRST_SECONDS = 1.5
"""Of the first image that finds the store locked: well below the 3 s of a request."""


@pytest.fixture(params=ONE_OR_TWO)
def site(request: pytest.FixtureRequest, certificate: Certificate, tmp_path: Path) -> Iterator[Site]:
    environment = {"SNAPSHOT_TTL": str(TTL_SECONDS), "WORKERS": str(request.param)}
    with serving_tenants(tmp_path, certificate, environment) as served:
        yield served


@contextmanager
def locked(database: Path) -> Iterator[None]:
    with closing(sqlite3.connect(database, LOCK_SECONDS, isolation_level=None)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
        yield
        connection.execute("ROLLBACK")


def warnings_about_store(site: Site) -> list[tuple[int | None, str]]:
    """Return each warning about the store, with the worker that logged it."""
    lines = [json.loads(line) for line in site.service.stdout.decode().splitlines()]
    return [
        (line.get("worker"), line["message"])
        for line in lines
        if line["level"] in {"warn", "error"} and "snapshots.sqlite" in line["message"]
    ]


def test_locked_store_delays_no_image(site: Site) -> None:
    known = site.tenants.register(OWNER)
    before = site.mount(OWNER, known)
    seconds = []
    with Standstills().measured() as machine, locked(site.service.directory / "data" / "snapshots.sqlite"):

        def mount(infra_env_id: str) -> Answer:
            asked_at = time.monotonic()
            answer = site.mount(OWNER, infra_env_id)
            seconds.append(time.monotonic() - asked_at - machine.seconds_since(asked_at))
            return answer

        for _ in range(NEW_IMAGES):
            mount(site.tenants.register(OWNER))
            time.sleep(TTL_SECONDS / NEW_IMAGES)
        assert mount(known).headers["ETag"] == before.headers["ETag"]
    assert max(seconds) < FIRST_SECONDS + ALLOWED_SECONDS
    warnings = warnings_about_store(site)
    assert len(warnings) == len(set(warnings))
    assert warnings
