"""Both plugins under twistd, with each reactor that it offers: started, used and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import CHECKOUT, run_service
from tests.jobs.running_role import COMPOSE, DISTRIBUTION, running_role, wait_until
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.acceptance

PROGRAM = str(Path(sys.executable).with_name("twistd"))
FOREGROUND = ("--nodaemon", "--pidfile=")
TIMEOUT_SECONDS = 100


def twistd(*arguments: str) -> Sequence[str]:
    return (PROGRAM, *arguments)


@pytest.mark.parametrize("name", [soaked("epoll"), soaked("poll"), "select", "asyncio"])
def test_byte_server_serves_and_stops_under_every_reactor(name: str, tmp_path: Path) -> None:
    command = twistd(f"--reactor={name}", *FOREGROUND, "image-service", "--standalone")
    with run_service(tmp_path, [], command=command) as service:
        infra_env = service.register("4.17", {"ignition": {"version": "3.4.0"}})
        answer = service.get_image(f"/images/{infra_env}?version=4.17&type=full-iso&arch=x86_64")
        assert (answer.status, len(answer.body)) == (200, int(answer.headers["Content-Length"]))


@pytest.mark.parametrize("options", [soaked(()), ("--reactor=asyncio",)])
def test_jobs_role_composes_and_stops(options: Sequence[str], tmp_path: Path) -> None:
    with running_role(tmp_path, twistd(*options, *FOREGROUND, "image-service-jobs")) as role:
        compose_id = role.start("live-installer")
        assert role.wait_until_ended(compose_id)["status"] == "success", role.log
        assert role.get(f"/composes/{compose_id}/download").status == 200


@pytest.mark.soak
def test_jobs_role_composes_and_stops_as_a_daemon(tmp_path: Path) -> None:
    """As twistd runs without options of its own: detached, with a pid file and a log file."""
    pid_file, log, data_dir = tmp_path / "twistd.pid", tmp_path / "twistd.log", tmp_path / "data"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "DATA_DIR": str(data_dir),
        "JOBS_LISTEN": "unix:{DATA_DIR}/jobs.sock",
    }
    start = partial(subprocess.run, env=environment, cwd=tmp_path, check=True, timeout=TIMEOUT_SECONDS)
    start(twistd("image-service-jobs"))
    process = int(pid_file.read_text())
    try:
        wait_until((data_dir / "jobs.sock").exists, log.read_text)
        options = ("--distribution", DISTRIBUTION, "--type", "live-installer", "--output", "live.iso")
        start([*COMPOSE, "start", *options])
    finally:
        os.kill(process, signal.SIGTERM)
    wait_until(lambda: not pid_file.exists(), log.read_text)
    assert "the service has stopped" in log.read_text()
    assert (tmp_path / "live.iso").stat().st_size


@pytest.mark.parametrize("name", ["epoll", soaked("poll"), soaked("select")])
def test_jobs_role_names_the_option_that_another_reactor_needs(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        twistd(f"--reactor={name}", *FOREGROUND, "image-service-jobs"),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(CHECKOUT), "DATA_DIR": str(tmp_path / "data")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert (done.returncode, done.stdout) == (os.EX_CONFIG, "")
    assert "twistd --reactor=asyncio" in done.stderr
    assert not (tmp_path / "data").exists()
