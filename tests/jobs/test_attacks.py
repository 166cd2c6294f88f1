"""Tenants and clients that want more than their share of a running role, on each database."""

from __future__ import annotations

import json
import resource
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection
from itertools import count
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import attrs
import pytest
import sqlalchemy as sa

from image_service.jobs.database.tables import COMPOSES, DATABASE_FILE, JOBS
from tests.acceptance.service import fetch
from tests.jobs.running_replicas import running_replicas
from tests.jobs.running_role import API, RunningRole, compose_request, wait_until
from tests.jobs.tenant_clients import ask, finish, running_with_tenants, start, status_of, token
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.postgres import PostgresServer

pytestmark = pytest.mark.acceptance

WORKER_API = "/api/image-builder-worker/v1"
MIB = 2**20
MOST_BYTES = 128 * MIB
FILE_BYTES = 8 * MIB
VARIABLES = {"JOBS_MAX_BYTES": str(MOST_BYTES), "JOBS_POLL_TIMEOUT": "120"}


@attrs.frozen
class Attacked:
    """A role, or two replicas.

    Args:
        composer: that clients reach.
        worker: that workers reach.
        database_url: of their rows.
    """

    composer: RunningRole
    worker: RunningRole
    database_url: str

    def take(self, tenant: str) -> dict[str, Any]:
        """Order a disk, and take its job as a worker of the tenant."""
        compose_id = start(self.composer, tenant, "minimal-raw")
        while (answer := self.poll(tenant)).status == 204:
            assert json.loads(ask(self.composer, f"{API}/composes/{compose_id}", tenant).body)
        job: dict[str, Any] = json.loads(answer.body)
        assert job["compose_id"] == compose_id
        return job

    def poll(self, tenant: str) -> Any:
        """Ask for a job."""
        return ask(self.worker, f"{WORKER_API}/jobs", tenant, {"types": ["customize"], "arch": "x86_64"})

    def send(self, tenant: str, job: dict[str, Any], name: str, content: bytes) -> int:
        """Send a file of a job; return the status."""
        fields = {"Authorization": f"Bearer {token(tenant)}"}
        return fetch(
            f"{self.worker.url}{job['artifact_location']}{name}", "PUT", headers=fields, body=content
        ).status


@pytest.fixture(scope="module", params=[soaked("sqlite"), "postgresql"])
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    directory = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        with running_with_tenants(directory, JOBS_WORKER_SLOTS="0", **VARIABLES) as role:
            yield Attacked(role, role, f"sqlite:///{role.data_dir / DATABASE_FILE}")
    else:
        postgres: PostgresServer = request.getfixturevalue("postgres")
        with running_replicas(directory, postgres, JOBS_WORKER_SLOTS="0", **VARIABLES) as site:
            yield Attacked(site.second, site.first, site.database_url)


def connect(url: str, number: int) -> socket.socket:
    """Connect from one of fifty addresses."""
    parts = urlsplit(url)
    source = (f"127.0.1.{1 + number % 50}", 0)
    return socket.create_connection((str(parts.hostname), int(parts.port or 0)), 60, source)


@contextmanager
def crowd(url: str, number: int) -> Iterator[None]:
    """Keep silent connections open."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as opened:
        for each in range(number):
            opened.enter_context(connect(url, each))
        yield


@contextmanager
def repeated(work: Callable[[int], None], threads: int) -> Iterator[None]:
    """Call a function with numbers, in threads, until the block ends."""
    ended, numbers = Event(), count()

    def repeat() -> None:
        while not ended.is_set():
            with suppress(OSError):
                work(next(numbers))

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(threads):
            pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()


def test_order_has_no_more_than_its_config(attacked: Attacked) -> None:
    document = compose_request("live-installer")
    document["blueprint"] = {"name": "b", "description": "x" * 200_000}
    del document["customizations"]
    assert ask(attacked.composer, f"{API}/compose", "1", document).status == 400
    assert json.loads(ask(attacked.composer, f"{API}/composes/", "1").body) == []


def test_slow_uploads_leave_a_slot_to_another_tenant(attacked: Attacked) -> None:
    parts = urlsplit(attacked.worker.url)
    slow: list[HTTPConnection] = []
    with ExitStack() as opened:
        for tenant in ("2", "3"):
            job = attacked.take(tenant)
            for number in range(24):
                connection = HTTPConnection(parts.netloc, timeout=60)
                opened.enter_context(closing(connection))
                connection.putrequest("PUT", f"{job['artifact_location']}{number}")
                connection.putheader("Authorization", f"Bearer {token(tenant)}")
                connection.putheader("Content-Length", "1000")
                connection.endheaders(b"x")
                slow.append(connection)
        job = attacked.take("4")
        with repeated(lambda number: trickle(slow[number % len(slow)]), 1):
            assert attacked.send("4", job, "file", b"right") == 200


def trickle(connection: HTTPConnection) -> None:
    """Send a byte, as often as a connection that must not seem idle."""
    time.sleep(0.2)
    connection.send(b"x")


def test_worker_stores_no_more_than_its_tenant_may(attacked: Attacked) -> None:
    job = attacked.take("5")
    statuses = [attacked.send("5", job, f"file-{number}", b"x" * FILE_BYTES) for number in range(17)]
    assert set(statuses) <= {200, 507}
    assert 0 < statuses.count(200) * FILE_BYTES <= MOST_BYTES
    assert attacked.send("6", attacked.take("6"), "file", b"x" * FILE_BYTES) == 200


def test_writer_of_the_database_gives_no_config_to_another_tenant(attacked: Attacked) -> None:
    moved, kept = (
        start(attacked.composer, "7", "live-installer"),
        start(attacked.composer, "8", "live-installer"),
    )
    for tenant, compose_id in (("7", moved), ("8", kept)):
        finish(attacked.composer, tenant, compose_id)
    engine = sa.create_engine(attacked.database_url)
    with engine.begin() as connection:
        connection.execute(sa.update(COMPOSES).where(COMPOSES.c.id == moved).values(tenant="org-8"))
    engine.dispose()
    assert ask(attacked.composer, f"{API}/composes/{moved}/download", "8").status == 500
    assert ask(attacked.composer, f"{API}/composes/{kept}/download", "8").status == 200
    assert status_of(attacked.composer, "8", moved)["status"] == "success"
    assert listed_ids(attacked, "8") == {moved, kept}
    fields = {"Authorization": f"Bearer {token('8')}"}
    deleted = fetch(f"{attacked.composer.url}{API}/composes/{moved}", "DELETE", headers=fields)
    assert deleted.status == 200
    assert listed_ids(attacked, "8") == {kept}


def test_damaged_job_ends_its_compose_and_keeps_no_other_from_workers(attacked: Attacked) -> None:
    damaged = start(attacked.composer, "12", "minimal-raw")
    engine = sa.create_engine(attacked.database_url)
    queued = sa.update(JOBS).where(JOBS.c.compose_id == damaged, JOBS.c.state == "queued")

    def is_changed() -> bool:
        with engine.begin() as connection:
            return connection.execute(queued.values(error=[7])).rowcount > 0

    wait_until(is_changed, lambda: attacked.composer.log)
    engine.dispose()

    def has_failed() -> bool:
        return bool(status_of(attacked.composer, "12", damaged)["status"] == "failure")

    wait_until(has_failed, lambda: attacked.composer.log)
    error = status_of(attacked.composer, "12", damaged)["image_status"]["error"]
    assert "the row in the database is not as the service has written it" in error["reason"]
    next_id = attacked.take("12")["compose_id"]
    assert listed_ids(attacked, "12") == {damaged, next_id}


def listed_ids(attacked: Attacked, tenant: str) -> set[str]:
    return {compose["id"] for compose in json.loads(ask(attacked.composer, f"{API}/composes/", tenant).body)}


def test_order_beyond_the_budget_leaves_room_to_another_tenant(attacked: Attacked) -> None:
    document = compose_request("minimal-raw", size=MOST_BYTES)
    assert ask(attacked.composer, f"{API}/compose", "10", document).status == 507
    start(attacked.composer, "11", "minimal-raw")


def test_silent_connections_leave_workers_their_polls(attacked: Attacked) -> None:
    with ThreadPoolExecutor(1) as threads:
        poll = threads.submit(attacked.poll, "9")
        time.sleep(1)  # it waits for a job then
        with crowd(attacked.worker.url, 4300):
            start(attacked.composer, "9", "minimal-raw")
            assert poll.result().status == 201


def test_silent_connections_cut_no_client_of_the_administrative_listener(attacked: Attacked) -> None:
    url = attacked.composer.admin_url
    with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as known:
        known.connect()
        known.auto_open = False  # the second request has the same connection
        assert get_metrics(known) == 200
        with crowd(url, 300):  # more than the listener keeps
            assert fetch(f"{url}/health").status == 200  # after all these were accepted
            assert get_metrics(known) == 200


def get_metrics(connection: HTTPConnection) -> int:
    connection.request("GET", "/metrics")
    answer = connection.getresponse()
    answer.read()
    return answer.status
