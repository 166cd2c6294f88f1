"""Which isolation a worker has: it says so, reports it, and may not start without."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from image_service.common.programs.isolation import works
from tests import forks
from tests.acceptance.service import CHECKOUT
from tests.jobs.running_role import JOBS
from tests.jobs.worker.workers import running_worker

if TYPE_CHECKING:
    from pathlib import Path

    from tests.jobs.worker.workers import WorkerSite

# The programs beside which each isolation works.
PROGRAMS = {"bwrap": ("bwrap", "unshare"), "unshare": ("unshare",), "none": ()}
SAID = {
    "bwrap": "programs run in bwrap",
    "unshare": "programs run in unshare",
    "none": "programs run without isolation: neither bwrap nor unshare works here",
}


@pytest.fixture(params=PROGRAMS)
def isolation(request: pytest.FixtureRequest) -> str:
    """One that works here."""
    if request.param != "none" and not works(request.param):
        pytest.skip(f"{request.param} does not work here")
    return str(request.param)


def path_with(directory: Path, *programs: str) -> str:
    """Return a PATH with some programs, and without others that isolate."""
    directory.mkdir()
    for name in (*programs, "setpriv", "setsid", "nice"):
        if found := shutil.which(name):
            (directory / name).symlink_to(found)
    return str(directory)


def test_worker_says_and_reports_its_isolation(site: WorkerSite, isolation: str) -> None:
    path = path_with(site.directory / "bin", *PROGRAMS[isolation])
    with running_worker(
        site.server, site.directory, site.toolkit.program, environment={"PATH": path}
    ) as worker:
        worker.wait_for_line(SAID[isolation])
        site.jobs.wait_for(lambda: len(site.jobs.registrations) > 0)
    assert site.jobs.registrations[0] == {"arch": "x86_64", "isolation": isolation}


def test_worker_that_requires_isolation_starts_only_with_it(site: WorkerSite, isolation: str) -> None:
    path = path_with(site.directory / "bin", *PROGRAMS[isolation])
    with running_worker(
        site.server,
        site.directory,
        site.toolkit.program,
        "--require-isolation",
        environment={"PATH": path},
    ) as worker:
        if isolation == "none":
            assert worker.process.wait() == 78
            assert (
                "--require-isolation: neither bwrap nor unshare works here; install the package bubblewrap"
                in (worker.log.read_text())
            )
        else:
            worker.wait_for_line("takes jobs of")


def test_role_does_not_start_a_worker_without_the_isolation_that_it_requires(tmp_path: Path) -> None:
    environment = {
        "PATH": path_with(tmp_path / "bin"),
        "PYTHONPATH": str(CHECKOUT),
        "DATA_DIR": str(tmp_path / "data"),
        "JOBS_LISTEN": "unix:{DATA_DIR}/jobs.sock",
        "JOBS_REQUIRE_ISOLATION": "true",
    }
    done = forks.run(JOBS, env=environment)
    assert done.returncode == os.EX_CONFIG
    assert "JOBS_REQUIRE_ISOLATION: neither bwrap nor unshare works here" in done.stdout
