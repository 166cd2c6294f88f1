"""The jobs role while it gets artifacts, and beside it the role of each peer checkout.

Each round starts the roles, one after the other and in changing order, so that other load of the machine
affects all of them. Connections send artifacts as fast as the role takes them, while a client asks for the
status of a compose, and starts others now and then. CPU time includes that of the engine and these requests.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from bench.ports import free_port
from bench.processes import cpu_seconds
from bench.servers import interpreter_of
from bench.study import Figure

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.stage import Stage

MIB = 1 << 20
_COMPOSER, _WORKER = "/api/image-builder-composer/v2", "/api/worker/v1"
_CONFIG = base64.b64encode(b'{"ignition": {"version": "3.4.0"}}').decode()
_IMAGE = {
    "architecture": "x86_64",
    "image_type": "minimal-raw",
    "repositories": [],
    "upload_targets": [{"type": "local", "upload_options": {}}],
}
_COMPOSE = {
    "distribution": "rhcos-4.17",
    "customizations": {"ignition": {"embedded": {"config": _CONFIG}}},
}
_START_SECONDS = 60.0
_LEAST_DISK_BYTES = 512 * MIB  # no smaller than the base
_PAUSE_SECONDS = 0.01  # between two requests of the client that is measured
_STATUSES_PER_START = 10


@attrs.frozen
class Measurement:
    """What one role needed.

    Args:
        cpu: seconds for a GiB.
        rate: MiB/s of all artifacts.
        status: seconds of the requests for a status.
        start: seconds of the requests for a compose.
    """

    cpu: float
    rate: float
    status: Sequence[float]
    start: Sequence[float]


@attrs.frozen
class Role:
    """A jobs role that runs, without tokens and workers."""

    process: subprocess.Popen[bytes]
    port: int

    def ask(self, method: str, path: str, document: object = None) -> Any:  # noqa: ANN401 - JSON
        """Send a request; return the JSON of the response, None: it has none."""
        with contextlib.closing(HTTPConnection("127.0.0.1", self.port)) as connection:
            fields = {"Content-Type": "application/json"}
            connection.request(method, path, None if document is None else json.dumps(document), fields)
            response = connection.getresponse()
            content = response.read()
        if response.status >= HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {response.status} {content.decode()}")
        return json.loads(content) if content else None

    def start_compose(self, size: int | None = None) -> str:
        """Start a compose of a disk of so many bytes, None: as many as its base; return its path."""
        image = {**_IMAGE, **({"size": size} if size else {})}
        document = {**_COMPOSE, "image_requests": [image]}
        return f"{_COMPOSER}/composes/{self.ask('POST', f'{_COMPOSER}/compose', document)['id']}"

    def take_job(self) -> str:
        """Return where the artifacts of a job go."""
        wanted = {"types": ["customize"], "arch": "x86_64"}
        while (job := self.ask("POST", f"{_WORKER}/jobs", wanted)) is None:
            pass
        return str(job["artifact_location"])

    def send(self, location: str, file: Path) -> None:
        """Send a file as an artifact, without work of this process."""
        lines = (
            f"PUT {location}disk.raw HTTP/1.1",
            "Host: localhost",
            f"Content-Length: {file.stat().st_size}",
        )
        with socket.create_connection(("127.0.0.1", self.port)) as connection, file.open("rb") as content:
            connection.sendall("\r\n".join((*lines, "", "")).encode())
            connection.sendfile(content)
            answer = connection.recv(MIB)
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())


def study_artifacts(stage: Stage, *, mib: int, artifacts: int) -> Iterator[Figure]:
    """Send so many artifacts of so many MiB at the same time."""
    measured: dict[str, list[Measurement]] = {name: [] for name in stage.checkouts}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=stage.directory) as directory:
        file = Path(directory, "artifact")
        file.write_bytes(os.urandom(MIB) * mib)
        for number in range(stage.effort.rounds):
            for name in sorted(stage.checkouts, reverse=bool(number % 2)):
                with running_role(stage.checkouts[name]) as role:
                    measured[name].append(_measure(role, file, artifacts))
    for name, each in measured.items():
        yield Figure(name, "CPU time for a GiB", "s", [one.cpu for one in each])
        yield Figure(name, "rate of all artifacts", "MiB/s", [one.rate for one in each])
        for what, seconds in (
            ("status", [one.status for one in each]),
            ("start", [one.start for one in each]),
        ):
            slow = [1000 * _quantile(values, 95) for values in seconds]
            yield Figure(name, f"{what} of a compose meanwhile, 95th percentile", "ms", slow)


def _measure(role: Role, file: Path, artifacts: int) -> Measurement:
    size = file.stat().st_size
    compose, *_ = [role.start_compose(max(size, _LEAST_DISK_BYTES)) for _ in range(artifacts)]
    locations = [role.take_job() for _ in range(artifacts)]
    status: list[float] = []
    start: list[float] = []
    cpu, started_at = cpu_seconds(role.process.pid), time.monotonic()
    with ThreadPoolExecutor(artifacts) as pool:
        sending = [pool.submit(role.send, location, file) for location in locations]
        while not all(each.done() for each in sending):
            for _ in range(_STATUSES_PER_START):
                with _timed(status):
                    role.ask("GET", compose)
            with _timed(start):
                role.start_compose()
        for each in sending:
            each.result()
    seconds = time.monotonic() - started_at
    mib = artifacts * size / MIB
    return Measurement((cpu_seconds(role.process.pid) - cpu) / mib * 1024, mib / seconds, status, start)


@contextlib.contextmanager
def running_role(checkout: Path) -> Iterator[Role]:
    """Run the role of a checkout, with its data in a directory that is removed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        port, interpreter = free_port(), interpreter_of(checkout)
        environment = {
            "PATH": f"{Path(interpreter).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(checkout),
            "DATA_DIR": f"{directory}/data",
            "JOBS_LISTEN": f"127.0.0.1:{port}",
            "JOBS_WORKER_SLOTS": "0",
        }
        command = (interpreter, "-m", "image_service.cli", "jobs")
        with (
            Path(directory, "log").open("wb") as log,
            subprocess.Popen(command, cwd=directory, env=environment, stdout=log, stderr=log) as process,
        ):
            role = Role(process, port)
            try:
                _wait_until_up(role)
                yield role
            finally:
                process.send_signal(signal.SIGTERM)


def _wait_until_up(role: Role) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            role.ask("GET", f"{_COMPOSER}/distributions")
        except OSError:
            if time.monotonic() > deadline or role.process.poll() is not None:
                raise
            time.sleep(0.1)
        else:
            return


@contextlib.contextmanager
def _timed(seconds: list[float]) -> Iterator[None]:
    started_at = time.monotonic()
    yield
    seconds.append(time.monotonic() - started_at)
    time.sleep(_PAUSE_SECONDS)


def _quantile(seconds: Sequence[float], percent: int) -> float:
    return sorted(seconds)[len(seconds) * percent // 100]
