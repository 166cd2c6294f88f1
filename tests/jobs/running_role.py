"""The jobs role as a process, started as an operator starts it, and its command for people."""

from __future__ import annotations

import json
import os
import sys
import time
from base64 import b64encode
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests import forks
from tests.acceptance.clients import needs_client
from tests.acceptance.service import CHECKOUT, Answer, fetch
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.forks import Process

JOBS = (sys.executable, "-m", "image_service.cli", "jobs")
FRESH_JOBS = ("env", f"PYTHONPATH={CHECKOUT}:{Path(__file__).with_name('as_installed')}", *JOBS)
"""In an interpreter of its own, for tests of its memory (see `tests.forks`), as it is installed."""

COMPOSE = (sys.executable, "-m", "image_service.cli", "compose")
API = "/api/image-builder-composer/v2"
DISTRIBUTION = "rhcos-4.17"
"""Of the samples."""

LOCAL = {"type": "local", "upload_options": {}}
_TIMEOUT_SECONDS = 300
_POLL_SECONDS = 0.2  # a status costs the role 10 ms


@attrs.frozen
class RunningRole:
    """A jobs role that runs.

    Args:
        process: its process.
        url: of its TCP listener.
        admin_url: of its administrative listener.
        data_dir: its ``DATA_DIR``.
        environment: of the process.
    """

    process: Process
    url: str
    admin_url: str
    data_dir: Path
    environment: Mapping[str, str] = attrs.field(repr=False)

    @property
    def log(self) -> str:
        """The log of the role and its worker."""
        return (self.data_dir.parent / "log").read_text()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request to the composer API."""
        return fetch(f"{self.url}{API}{path}", headers=headers)

    def post(self, path: str, document: object) -> Answer:
        """Send a JSON document to the composer API."""
        fields = {"Content-Type": "application/json"}
        return fetch(f"{self.url}{API}{path}", "POST", headers=fields, body=json.dumps(document).encode())

    def start(
        self,
        image_type: str,
        distribution: str = DISTRIBUTION,
        *,
        config: bytes | None = None,
        targets: Sequence[object] = (LOCAL,),
        size: int | None = None,
    ) -> str:
        """Send a `compose_request`, and return the id of the compose."""
        document = compose_request(image_type, distribution, config=config, targets=targets, size=size)
        answer = self.post("/compose", document)
        assert answer.status == HTTPStatus.CREATED, answer.body
        return str(answer.json()["id"])

    def compose(self, *arguments: str | Path) -> str:
        """Run the command for people, which finds the role by ``DATA_DIR``; return its output."""
        command = [*COMPOSE, *map(str, arguments)]
        finished = forks.run(command, env=self.environment, timeout=_TIMEOUT_SECONDS)
        if "not installed" in finished.stderr:
            needs_disk_programs()
        assert finished.returncode == 0, f"{finished.stderr}\n{self.log}"
        return finished.stdout

    def status(self, compose_id: str) -> dict[str, object]:
        """Return the status of a compose."""
        document: dict[str, object] = json.loads(self.get(f"/composes/{compose_id}").body)
        return document

    def wait_until_ended(self, compose_id: str) -> dict[str, object]:
        """Return the status of a compose once it has ended."""
        wait_until(lambda: self.status(compose_id)["status"] != "pending", lambda: self.log)
        status = self.status(compose_id)
        if status["status"] == "failure":
            needs_disk_programs()
        return status


def needs_disk_programs() -> None:
    """Skip the test if a program is missing without which a worker makes no disk."""
    for program in ("debugfs", "e2fsck", "qemu-img"):
        needs_client(program)


def compose_request(
    image_type: str,
    distribution: str = DISTRIBUTION,
    *,
    config: bytes | None = None,
    targets: Sequence[object] = (LOCAL,),
    size: int | None = None,
) -> dict[str, object]:
    """Return a request for one image.

    Args:
        image_type: as in the API.
        distribution: same.
        config: Ignition; None: the image has none.
        targets: of the image.
        size: of its disk, in bytes; None: that of the base.
    """
    image: dict[str, object] = {
        "architecture": "x86_64",
        "image_type": image_type,
        "repositories": [],
        "upload_targets": list(targets),
    }
    if size is not None:
        image["size"] = size
    customizations: dict[str, object] = {}
    if config is not None:
        customizations["ignition"] = {"embedded": {"config": b64encode(config).decode()}}
    return {"distribution": distribution, "image_requests": [image], "customizations": customizations}


@contextmanager
def running_role(directory: Path, command: Sequence[str] = JOBS, **variables: str) -> Iterator[RunningRole]:
    """Run the role until the block ends; then SIGTERM must end it with status 0, unless it has ended.

    Args:
        directory: ``data`` in it is ``DATA_DIR``, ``log`` the output of the role.
        command: the command line, of a process that stays in the foreground.
        variables: more of the environment.
    """
    port, admin_port = free_port(), free_port()
    data_dir = directory / "data"
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin:/sbin",
        "PYTHONPATH": str(CHECKOUT),
        "DATA_DIR": str(data_dir),
        "ADMIN_LISTEN": f"127.0.0.1:{admin_port}",
        "JOBS_LISTEN": f"unix:{{DATA_DIR}}/jobs.sock,127.0.0.1:{port}",
        **variables,
    }
    with (
        (directory / "log").open("ab") as log,
        forks.start(command, cwd=directory, env=environment, stdout=log, stderr=log) as process,
    ):
        role = RunningRole(
            process, f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", data_dir, environment
        )
        try:
            wait_until(lambda: _is_up(role), lambda: role.log)
            yield role
        finally:
            has_ended = process.poll() is not None
            try:  # killed at once, it would leave its engine running
                process.terminate()
                status = process.wait(_TIMEOUT_SECONDS)
            finally:
                process.kill()
        assert has_ended or status == 0, role.log


def wait_until(
    holds: Callable[[], bool], explain: Callable[[], str], *, seconds: float = _TIMEOUT_SECONDS
) -> None:
    """Wait until something holds; fail with an explanation."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, explain()
        time.sleep(_POLL_SECONDS)


def _is_up(role: RunningRole) -> bool:
    """Return True once the role serves and has reached its engine."""
    assert role.process.poll() is None, role.log
    try:
        answer = fetch(f"{role.admin_url}/health")
    except ConnectionRefusedError:
        return False
    return (answer.status, answer.body) == (200, b"ok\n")
