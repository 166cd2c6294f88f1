"""The client of the worker API, where a process would take a minute."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import pytest
import trustme

from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.jobs.worker.jobs_client import AcceptedJobs, JobsClient
from image_service.jobs.worker.requests import ServerAddress, ServerRequests
from tests.jobs.worker.job_server import TOKEN, JobServer, running_job_server

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.worker.workers import WorkerSite


def connect(server: str, directory: Path, ca_file: Path | None = None) -> JobsClient:
    (directory / "token").write_text(TOKEN)
    requests = ServerRequests(ServerAddress.parse(server), directory / "token", ca_file)
    return JobsClient(requests, AcceptedJobs(("convert",), "x86_64"))


@pytest.fixture
def client(site: WorkerSite) -> JobsClient:
    return connect(site.server, site.directory)


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


def test_server_is_reached_by_tls_with_an_authority_of_its_own(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with running_job_server(JobServer(), tls=context) as server:
        assert connect(server, tmp_path, tmp_path / "ca.pem").poll(Interruption()) is None
        with pytest.raises(Unavailable, match="certificate: unable to get local issuer certificate"):
            connect(server, tmp_path).poll(Interruption())


def test_answer_of_another_server_is_no_job(site: WorkerSite, client: JobsClient) -> None:
    site.jobs.worker_answer = ["something else"]
    with pytest.raises(Unavailable, match="no worker_id, as the worker API"):
        client.poll(Interruption())
