"""The jobs role as a process, and a client on its Unix socket."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from tests.acceptance.service import CHECKOUT, Answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

API = "/api/image-builder-composer/v2"
DISTRIBUTION = "rhcos-4.17"
"""Of the sample."""
CONFIG = b'{"ignition":{"version":"3.4.0"}}'
_SECONDS = 100
_POLL_SECONDS = 0.1


class UnixConnection(http.client.HTTPConnection):
    """HTTP on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_SECONDS)
        self.sock.connect(str(self._path))


@attrs.frozen
class JobsRole:
    """A running role.

    Args:
        process: the role itself, the parent of engine and worker.
        data_dir: its ``DATA_DIR``.
    """

    process: subprocess.Popen[bytes]
    data_dir: Path

    def call(
        self,
        path: str,
        document: Mapping[str, object] | None = None,
        *,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request to the composer API: POST if there is a document, else GET."""
        body = None if document is None else json.dumps(document).encode()
        fields = {**({"Content-Type": "application/json"} if body else {}), **(headers or {})}
        with closing(UnixConnection(self.data_dir / "jobs.sock")) as connection:
            connection.request(method or ("POST" if body else "GET"), API + path, body, fields)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())

    def start_compose(self, image_type: str = "vsphere-ova", config: bytes = CONFIG) -> str:
        """Start a compose of the sample with an Ignition config; return its id."""
        target = {"type": "local", "upload_options": {}}
        image = {"architecture": "x86_64", "image_type": image_type, "repositories": []}
        embedded = {"config": base64.b64encode(config).decode()}
        document = {
            "distribution": DISTRIBUTION,
            "image_requests": [{**image, "upload_targets": [target]}],
            "customizations": {"ignition": {"embedded": embedded}},
        }
        answer = self.call("/compose", document)
        assert answer.status == http.HTTPStatus.CREATED, answer.body
        return answer.json()["id"]

    def status_of(self, compose_id: str) -> dict[str, Any]:
        """Return the status of a compose."""
        answer = self.call(f"/composes/{compose_id}")
        assert answer.status == http.HTTPStatus.OK, answer.body
        document: dict[str, Any] = json.loads(answer.body)
        return document

    def wait_for(self, compose_id: str, *states: str) -> dict[str, Any]:
        """Wait until the image of a compose is in one of these states; return its status.

        Args:
            compose_id: of the compose.
            states: none: those in which it has ended.
        """
        deadline = time.monotonic() + _SECONDS
        wanted = states or ("success", "failure")
        while (status := self.status_of(compose_id))["image_status"]["status"] not in wanted:
            assert time.monotonic() < deadline, f"{status}\n{self.log}"
            time.sleep(_POLL_SECONDS)
        return status

    @property
    def log(self) -> str:
        """What it has logged so far."""
        return (self.data_dir / "log").read_text()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while True:
            assert self.process.poll() is None, self.log
            try:
                if DISTRIBUTION.encode() in self.call("/distributions").body:
                    return
            except OSError:
                assert time.monotonic() < deadline, self.log
            time.sleep(_POLL_SECONDS)


@contextmanager
def running_jobs_role(data_dir: Path, environ: Mapping[str, str] | None = None) -> Iterator[JobsRole]:
    """Run the role with the sample until the block ends; it must stop with 0 then, unless it was killed.

    Args:
        data_dir: keeps its state; of a directory whose path is short enough for a socket.
        environ: variables beside those that make it listen on its Unix socket alone.
    """
    variables = {
        **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
        "DATA_DIR": str(data_dir),
        "JOBS_LISTEN": f"unix:{data_dir}/jobs.sock",
        **(environ or {}),
    }
    command = (sys.executable, "-m", "image_service.cli", "jobs")
    data_dir.mkdir(exist_ok=True)
    with (
        (data_dir / "log").open("ab") as log,
        subprocess.Popen(command, env=variables, cwd=CHECKOUT, stdout=log, stderr=log) as process,
    ):
        role = JobsRole(process, data_dir)
        try:
            role._wait_until_ready()
            yield role
        finally:
            process.terminate()
        assert process.wait(_SECONDS) in {0, -signal.SIGKILL}, role.log
