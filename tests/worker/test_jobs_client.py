"""The client of the worker API, where a process would take a minute."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.concurrency.interruption import Interruption
from image_service.errors import Unavailable
from image_service.worker.jobs_client import JobsAsked, JobsClient
from image_service.worker.requests import ServerAddress, ServerRequests

if TYPE_CHECKING:
    from tests.worker.workers import WorkerSite


@pytest.fixture
def client(site: WorkerSite) -> JobsClient:
    (site.directory / "token").write_text(site.jobs.token)
    requests = ServerRequests(ServerAddress.parse(site.server), site.directory / "token", None)
    return JobsClient(requests, JobsAsked(("convert",), "x86_64"))


def test_worker_registers_once(site: WorkerSite, client: JobsClient) -> None:
    for _ in range(2):
        client.refresh(Interruption())
        assert client.poll(Interruption()) is None
    assert [poll["worker_id"] for poll in site.jobs.polls] == [*site.jobs.workers] * 2


def test_worker_that_the_server_has_forgotten_registers_again(site: WorkerSite, client: JobsClient) -> None:
    client.refresh(Interruption())
    forgotten = set(site.jobs.workers)
    site.jobs.workers.clear()
    client.refresh(Interruption())
    client.poll(Interruption())
    assert site.jobs.polls[0]["worker_id"] in site.jobs.workers - forgotten


def test_answer_of_another_server_is_no_job(site: WorkerSite, client: JobsClient) -> None:
    site.jobs.worker_answer = ["something else"]
    with pytest.raises(Unavailable, match="no worker_id, as the worker API"):
        client.poll(Interruption())
