"""A server, a toolkit that waits for the test, and jobs for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.jobs.worker.job_server import JobServer, running_job_server
from tests.jobs.worker.workers import HeldToolkit, WorkerSite, copy_job

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.jobs.worker.job_server import GivenJob


@pytest.fixture
def site(tmp_path: Path) -> Iterator[WorkerSite]:
    """Run a server, and return the other inputs of workers."""
    jobs = JobServer()
    with running_job_server(jobs) as server:
        yield WorkerSite(jobs, server, HeldToolkit.make(tmp_path / "toolkit"), tmp_path)


@pytest.fixture
def conversion() -> GivenJob:
    """Return a job for the held toolkit."""
    return copy_job(b"the disk")
