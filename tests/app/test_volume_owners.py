"""A volume whose files another uid made: of group 0, as of containers, and of other groups."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.service import CHECKOUT, SERVE, run_service
from tests.jobs.running_role import JOBS, running_role
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can run processes as other users"),
]
STANDALONE = (*SERVE, "--standalone")
LOCKS = "image-service.lock"


def as_user(uid: int, gid: int) -> tuple[str, ...]:
    """Return words that run a program as a user, who may read the checkout if that is private too."""
    return (
        *("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups"),
        *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
    )


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that other users reach, which `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("workers", ["1", soaked("2")])
def test_user_of_group_0_takes_over_the_files_of_another(directory: Path, workers: str) -> None:
    data = directory / "data"
    data.mkdir()
    os.chown(data, 0, 0)
    data.chmod(0o775)
    for uid in (1234567, 1001):
        environment = {"HOME": "/", "WORKERS": workers}
        command = (*as_user(uid, 0), *STANDALONE)
        with run_service(directory, [], command=command, environment=environment) as service:
            service.register("sample", {"ignition": {"version": "3.2.0"}})
    made = [path for path in data.rglob("*") if path.lstat().st_uid in (1234567, 1001)]
    assert {data / "snapshot.secret", data / LOCKS} <= set(made)
    modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in made if path.suffix != ".pem"}
    assert [path for path, mode in modes.items() if mode & 0o060 != 0o060 or mode & 0o007] == []


@pytest.mark.soak
def test_user_of_group_0_takes_over_the_jobs_of_another(directory: Path) -> None:
    data = directory / "data"
    data.mkdir()
    data.chmod(0o775)
    composes = []
    for uid in (1234567, 1001):
        with running_role(directory, (*as_user(uid, 0), *JOBS)) as role:
            composes.append(role.start("minimal-raw"))
            for compose_id in composes:
                assert role.wait_until_ended(compose_id)["status"] == "success", role.log


def test_secrets_of_other_groups_are_for_their_owner_alone(directory: Path) -> None:
    data = directory / "data"
    data.mkdir()
    os.chown(data, 1234567, 1234567)
    with run_service(directory, [], command=(*as_user(1234567, 1234567), *STANDALONE)):
        assert stat.S_IMODE((data / "snapshot.secret").stat().st_mode) == 0o600


@pytest.mark.parametrize("arguments", [("serve", "--standalone"), ("jobs",)], ids=["serve", "jobs"])
def test_file_that_cannot_be_taken_over_is_a_fault_that_names_its_owner(
    directory: Path, arguments: tuple[str, ...]
) -> None:
    data = directory / "data"
    data.mkdir()
    data.chmod(0o777)
    (data / LOCKS).touch(mode=0o600)
    os.chown(data / LOCKS, 1234567, 1234567)
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "DATA_DIR": str(data),
        "LISTEN_PORT": "0",
        "JOBS_LISTEN": "unix:{DATA_DIR}/jobs.sock",
    }
    command = (*as_user(1001, 1001), *SERVE[:-1], *arguments)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == os.EX_CONFIG, done.stdout
    assert f"{data / LOCKS} belongs to uid 1234567 and gid 1234567 with mode 0600" in done.stdout
    assert "this service runs as uid 1001, gid 1001" in done.stdout
    assert "chown -R" in done.stdout
