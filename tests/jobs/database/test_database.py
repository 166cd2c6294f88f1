"""The database of the jobs role, beside that of snapshots."""

from __future__ import annotations

import json
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from image_service.core.errors import RowNotAuthentic, StoreFailed
from image_service.jobs.database.tables import COMPOSES, DATABASE_FILE, SECRETS, open_database
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.model import ComposeState, job_id_of
from image_service.server.snapshots.replicas.database import open_replica_database
from image_service.server.snapshots.storage.encryption import encrypt
from image_service.server.snapshots.storage.sql_statements import SNAPSHOTS
from tests.jobs.database.composing import CUSTOMIZATION, DISK_PLAN, SECRET, Rows

if TYPE_CHECKING:
    from pathlib import Path

    from tests.postgres import PostgresServer


def test_tables_of_jobs_and_of_snapshots_share_a_database(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create_database()
    count = sa.select(sa.func.count()).select_from(SNAPSHOTS)
    for _ in range(2):  # created, then found
        with closing(open_replica_database(url)) as snapshots, closing(open_database(url, tmp_path)) as jobs:
            assert snapshots.transact(lambda connection: connection.scalar(count)) == 0
            compose, _ = Rows(jobs).add()
            assert Rows(jobs).composes.find(compose.id) == compose


def test_replicas_that_start_at_once_create_the_tables_once(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create_database()
    replicas = [open_database(url, tmp_path) for _ in range(4)]
    with ThreadPoolExecutor(len(replicas)) as threads:
        list(threads.map(lambda replica: Rows(replica).add(), replicas))
    assert sum(Rows(replicas[0]).composes.count_by_state().values()) == 4
    for replica in replicas:
        replica.close()


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    with closing(open_database(None, tmp_path)) as first, closing(open_database(None, tmp_path)) as second:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda number: Rows((first, second)[number % 2]).add(), range(200)))
        assert sum(Rows(first).composes.count_by_state().values()) == 200


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_stop_of_a_worker_survives_the_migration(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = request.getfixturevalue("postgres").create_database() if kind == "postgresql" else None
    version = (
        "PRAGMA user_version = 1" if url is None else "UPDATE image_service_jobs_version SET version = 1"
    )
    with closing(open_database(url, tmp_path)) as database:
        rows = Rows(database)
        (cancelled, first), (_, second) = rows.add(), rows.add()
        for jobs in (first, second):
            rows.start(jobs["customize"])
        rows.composes.finish(cancelled.id, ComposeState.CANCELLED)
        rows.clock.advance(1)
        rows.jobs.record_stop(first["customize"], 1)
        before = [rows.jobs.find(jobs["customize"]) for jobs in (first, second)]
        for statement in (
            *DOWNGRADE,
            "UPDATE jobs SET seen_at = started_at WHERE seen_at IS NULL",
            version,
        ):
            database.transact(partial(run, statement))
    with closing(open_database(url, tmp_path, [SECRET])) as database:
        assert [Rows(database).jobs.find(jobs["customize"]) for jobs in (first, second)] == before
        assert LISTED in database.transact(indexes_of_tasks)


def test_jobs_of_waiting_composes_get_the_ids_of_plans_by_the_migration(tmp_path: Path) -> None:
    with closing(open_database(None, tmp_path)) as database:
        waiting, _ = Rows(database).add()
        for statement in (
            *DOWNGRADE,
            "UPDATE jobs SET id = 'as before, of ' || step",
            "PRAGMA user_version = 1",
        ):
            database.transact(partial(run, statement))
    with closing(open_database(None, tmp_path, [SECRET])) as database:
        job = Rows(database).jobs.find(job_id_of(waiting.id, "customize"))
        assert job is not None
        assert job.step == "customize"


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_workers_of_before_have_an_unknown_isolation(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = request.getfixturevalue("postgres").create_database() if kind == "postgresql" else None
    version = (
        "PRAGMA user_version = 1" if url is None else "UPDATE image_service_jobs_version SET version = 1"
    )
    with closing(open_database(url, tmp_path)) as database:
        WorkerRepository(database).add("before", "", "x86_64")
        for statement in (*DOWNGRADE, version):
            database.transact(partial(run, statement))
    with closing(open_database(url, tmp_path)) as database:
        workers = WorkerRepository(database)
        workers.add("after", "", "x86_64", "bwrap")
        assert workers.count_by_isolation(datetime.fromtimestamp(0, UTC)) == {
            ("", "x86_64", "unknown"): 1,
            ("", "x86_64", "bwrap"): 1,
        }


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_secrets_and_plans_belong_to_their_tenants_after_the_migration(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    url = request.getfixturevalue("postgres").create_database() if kind == "postgresql" else None
    version = (
        "PRAGMA user_version = 1" if url is None else "UPDATE image_service_jobs_version SET version = 1"
    )
    with closing(open_database(url, tmp_path)) as database:
        (kept, _), (damaged, _) = Rows(database).add(), Rows(database).add()
        document = json.dumps(
            attrs.asdict(CUSTOMIZATION), default=lambda content: b64encode(content).decode()
        )
        key = HKDF(SHA256(), 32, salt=None, info=b"compose secrets").derive(SECRET)
        sealed = encrypt(AESGCM(key), document.encode(), kept.id.encode())  # as version 1 did, for both
        database.transact(lambda connection: connection.execute(sa.update(SECRETS).values(sealed=sealed)))
        untagged = sa.update(COMPOSES).values(plan=DISK_PLAN)
        database.transact(lambda connection: connection.execute(untagged))
        for statement in (*DOWNGRADE, version):
            database.transact(partial(run, statement))
    with closing(open_database(url, tmp_path, [SECRET])) as database:
        composes = Rows(database).composes
        found = composes.find(kept.id)
        assert found is not None
        assert found == kept
        composes.check_upload(found, found.uploads[0])
        assert composes.customization(kept) == CUSTOMIZATION
        with pytest.raises(RowNotAuthentic):
            composes.customization(attrs.evolve(kept, tenant="org-2"))
        with pytest.raises(RowNotAuthentic, match=damaged.id):
            composes.customization(damaged)


DOWNGRADE = (
    "ALTER TABLE workers DROP COLUMN isolation",
    "ALTER TABLE jobs RENAME COLUMN stopped_at TO seen_at",
    "DROP INDEX ix_composes_listed",
    "DROP INDEX ix_composes_bytes",
    "DROP INDEX ix_conversion_tasks_listed",
    "CREATE INDEX ix_conversion_tasks_tenant ON conversion_tasks (tenant)",
    "ALTER TABLE composes DROP COLUMN row_bytes",
    "ALTER TABLE composes DROP COLUMN store_bytes",
    "ALTER TABLE composes DROP COLUMN sent_bytes",
    "ALTER TABLE artifacts DROP COLUMN kept_bytes",
    "ALTER TABLE images DROP COLUMN kept_bytes",
    "ALTER TABLE discarded_objects DROP COLUMN kept_bytes",
    "ALTER TABLE discarded_objects DROP COLUMN tenant",
    "ALTER TABLE artifacts DROP COLUMN tag",
    "ALTER TABLE jobs ADD COLUMN arguments TEXT NOT NULL DEFAULT '{}'",
    "ALTER TABLE jobs ADD COLUMN inputs TEXT NOT NULL DEFAULT '{}'",
)
"""To version 1."""


def run(statement: str, connection: sa.Connection) -> None:
    connection.exec_driver_sql(statement).close()


LISTED = "ix_conversion_tasks_listed"


def indexes_of_tasks(connection: sa.Connection) -> set[str | None]:
    return {index["name"] for index in sa.inspect(connection).get_indexes("conversion_tasks")}


def test_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    with closing(open_database(None, tmp_path)) as database:
        Rows(database).add()
        for path in tmp_path.glob(f"{DATABASE_FILE}*"):
            assert path.stat().st_mode & 0o077 == 0


def test_error_repeats_no_secret(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.create_database()
    with closing(open_database(url, tmp_path)) as database:
        compose, _ = Rows(database).add()
        with pytest.raises(StoreFailed) as caught:
            Rows(database).add(compose)  # its id is taken
        assert compose.distribution not in str(caught.value)
