"""The jobs role while it gets artifacts, beside the role of another checkout: ``python -m bench.jobs``.

Each round starts both roles, one after the other and in alternating order, so that other load of the machine
affects both. Connections send artifacts as fast as the role takes them, while a client asks for the status of
a compose, and starts others now and then. CPU time includes the engine's and that of these requests.

    python -m bench.jobs --other ../before --rounds 5
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
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
from bench.servers import CHECKOUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MIB = 1 << 20
_COMPOSER, _WORKER = "/api/image-builder-composer/v2", "/api/worker/v1"
_CONFIG = base64.b64encode(b'{"ignition": {"version": "3.4.0"}}').decode()
_COMPOSE = {
    "distribution": "rhcos-4.17",
    "image_requests": [
        {
            "architecture": "x86_64",
            "image_type": "minimal-raw",
            "repositories": [],
            "upload_targets": [{"type": "local", "upload_options": {}}],
        }
    ],
    "customizations": {"ignition": {"embedded": {"config": _CONFIG}}},
}
_START_SECONDS = 60.0
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

    def start_compose(self) -> str:
        """Start a compose of a disk; return its path."""
        return f"{_COMPOSER}/composes/{self.ask('POST', f'{_COMPOSER}/compose', _COMPOSE)['id']}"

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


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--other", type=Path, metavar="CHECKOUT", help="to compare with; this one by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--mib", type=int, default=512, help="of an artifact")
    parser.add_argument("--artifacts", type=int, default=4, help="at the same time")
    options = parser.parse_args()
    checkouts = {"other": (options.other or CHECKOUT).resolve(), "this": CHECKOUT}
    measured: dict[str, list[Measurement]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        file = Path(directory, "artifact")
        file.write_bytes(os.urandom(MIB) * options.mib)
        for number in range(options.rounds):
            for name in sorted(checkouts, reverse=bool(number % 2)):
                with running_role(checkouts[name]) as role:
                    measured[name].append(measure(role, file, options.artifacts))
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {options.rounds} rounds\n")
    print("| | CPU time for a GiB | rate | status, median and p95 | start, median and p95 |")
    print("|---|---|---|---|---|")
    for name, measurements in measured.items():
        print(_row(name, measurements))


def measure(role: Role, file: Path, artifacts: int) -> Measurement:
    """Measure one role."""
    compose, *_ = [role.start_compose() for _ in range(artifacts)]
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
    mib = artifacts * file.stat().st_size / MIB
    return Measurement((cpu_seconds(role.process.pid) - cpu) / mib * 1024, mib / seconds, status, start)


@contextlib.contextmanager
def running_role(checkout: Path) -> Iterator[Role]:
    """Run the role of a checkout, with its data in a directory that is removed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        port = free_port()
        environment = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(checkout),
            "DATA_DIR": f"{directory}/data",
            "JOBS_LISTEN": f"127.0.0.1:{port}",
            "JOBS_WORKER_SLOTS": "0",
        }
        command = (sys.executable, "-m", "image_service.cli", "jobs")
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


def _row(name: str, measurements: Sequence[Measurement]) -> str:
    cpu = statistics.median(each.cpu for each in measurements)
    rate = statistics.median(each.rate for each in measurements)
    latencies = (
        [seconds for each in measurements for seconds in each.status],
        [seconds for each in measurements for seconds in each.start],
    )
    shown = [f"{1000 * _quantile(each, 50):.0f}, {1000 * _quantile(each, 95):.0f} ms" for each in latencies]
    return f"| {name} | {cpu:.2f} s | {rate:.0f} MiB/s | {shown[0]} | {shown[1]} |"


def _quantile(seconds: Sequence[float], percent: int) -> float:
    return sorted(seconds)[len(seconds) * percent // 100]


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
