"""This service beside nginx, in one run: ``python -m bench.against_nginx``.

Both serve the same base image, nginx as a plain file, this service customised, each by one process on
plain HTTP over loopback. wrk drives them in turn, round after round. The figures are ratios of medians;
absolute ones hold for the machine and the minute only.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from tests.coreos.iso_builder import live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
SAMPLE = "byid/5a3b1e00-0000-4000-8000-000000000001/bench/x86_64/full.iso"
_TICKS = os.sysconf("SC_CLK_TCK")
_REQUESTS = re.compile(r"^ +([0-9]+) requests in", re.MULTILINE)
_ERRORS = re.compile(r"Non-2xx|Socket errors")


@attrs.frozen
class Scenario:
    """What wrk asks for.

    Args:
        name: for the table.
        connections: kept alive.
        range_bytes: of each range; None: the whole image.
    """

    name: str
    connections: int
    range_bytes: int | None


SCENARIOS = (
    Scenario("2 KiB ranges, 16 connections", 16, 2048),
    Scenario("64 KiB ranges, 1 connection", 1, 64 * 1024),
    Scenario("64 KiB ranges, 16 connections", 16, 64 * 1024),
    Scenario("1 MiB ranges, 16 connections", 16, 1024 * 1024),
    Scenario("whole image, 4 clients", 4, None),
)


@attrs.frozen
class Server:
    """A running server.

    Args:
        name: for the table.
        url: of the image.
        pids: processes whose CPU time counts.
    """

    name: str
    url: str
    pids: tuple[int, ...]

    def cpu_seconds(self) -> float:
        """CPU time spent so far, user and system."""
        total = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS


@attrs.frozen
class Sample:
    """One round: requests (or gigabytes) a second, and CPU milliseconds a request (or seconds a gigabyte)."""

    rate: float
    cpu: float


def main() -> None:
    """Run every scenario and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4, help="a round and server")
    parser.add_argument("--megabytes", type=int, default=970, help="size of the base image")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        image = make_image(directory, options.megabytes)
        servers = (start_service(stack, directory, image), start_nginx(stack, directory, image))
        print(f"{platform.machine()}, {os.cpu_count()} CPUs, Linux {platform.release()}, Python", end=" ")
        print(f"{platform.python_version()}, image of {image.stat().st_size} bytes,", end=" ")
        print(f"{options.rounds} rounds of {options.seconds} s\n")
        print("| | image-service | nginx, one worker | rate, ratio (spread) | CPU, ratio (spread) |")
        print("|---|---|---|---|---|")
        for scenario in SCENARIOS:
            print(
                compare(scenario, servers, image.stat().st_size, options.rounds, options.seconds), flush=True
            )


def make_image(directory: Path, megabytes: int) -> Path:
    """Write a live ISO whose root file system is random bytes, so that nothing is a hole."""
    image = directory / "base.iso"
    rootfs = os.urandom(1024 * 1024) * megabytes
    write_sparse_iso(image, live_files(rootfs=rootfs), {})
    return image


def start_service(stack: ExitStack, directory: Path, image: Path) -> Server:
    """Start this service, standing alone."""
    port, api_port = free_port(), free_port()
    entry = {
        "openshift_version": "4.20",
        "cpu_architecture": "x86_64",
        "version": "bench",
        "url": image.as_uri(),
    }
    environment = os.environ | {
        "DATA_DIR": str(directory / "data"),
        "DRAIN_DELAY": "0",
        "LISTEN_PORT": str(port),
        "STANDALONE_LISTEN": f"127.0.0.1:{api_port}",
        "OS_IMAGES": json.dumps([entry]),
    }
    command = [sys.executable, "-m", "image_service.cli", "serve", "--standalone"]
    with (directory / "service.log").open("w") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    stack.callback(process.wait)
    stack.callback(process.terminate)
    await_answer(f"http://127.0.0.1:{port}/health")
    return Server("image-service", f"http://127.0.0.1:{port}/{SAMPLE}", (process.pid,))


def start_nginx(stack: ExitStack, directory: Path, image: Path) -> Server:
    """Start nginx on the plain file."""
    port = free_port()
    prefix = directory / "nginx"
    prefix.mkdir()
    configuration = (HERE / "nginx.conf").read_text()
    configuration = configuration.replace("@PORT@", str(port)).replace("@ROOT@", str(directory))
    (prefix / "nginx.conf").write_text(configuration)
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin") or "nginx"
    directory.chmod(0o755)  # its worker is another user
    process = subprocess.Popen([program, "-p", str(prefix), "-c", "nginx.conf", "-e", "error.log"])
    stack.callback(process.wait)
    stack.callback(process.terminate)
    await_answer(f"http://127.0.0.1:{port}/{image.name}")
    return Server("nginx", f"http://127.0.0.1:{port}/{image.name}", (process.pid, *children(process.pid)))


def compare(scenario: Scenario, servers: tuple[Server, Server], size: int, rounds: int, seconds: int) -> str:
    """Measure one scenario on both, in turn, after one round that does not count."""
    samples: dict[str, list[Sample]] = {server.name: [] for server in servers}
    for number in range(rounds + 1):
        for server in servers if number % 2 else reversed(servers):
            sample = measure(scenario, server, size, seconds)
            if number:
                samples[server.name].append(sample)
    ours, theirs = (samples[server.name] for server in servers)
    columns = [scenario.name, figures(scenario, ours), figures(scenario, theirs)]
    columns.append(spread([own.rate / other.rate for own, other in zip(ours, theirs, strict=True)]))
    columns.append(spread([own.cpu / other.cpu for own, other in zip(ours, theirs, strict=True)]))
    return f"| {' | '.join(columns)} |"


def figures(scenario: Scenario, samples: list[Sample]) -> str:
    """The medians of one side."""
    rate = statistics.median(sample.rate for sample in samples)
    cpu = statistics.median(sample.cpu for sample in samples)
    if scenario.range_bytes:
        return f"{rate:,.0f}/s · {cpu * 1000:,.1f} us"
    return f"{rate:.2f} GB/s · {cpu * 1000:,.0f} ms/GB"


def measure(scenario: Scenario, server: Server, size: int, seconds: int) -> Sample:
    """One run of wrk against one server."""
    command = ["wrk", "-t1", f"-c{scenario.connections}", f"-d{seconds}s", "--timeout", "30s", server.url]
    environment = os.environ | {"FILE_BYTES": str(size), "RANGE_BYTES": str(scenario.range_bytes)}
    if scenario.range_bytes:
        command[1:1] = ["-s", str(HERE / "ranges.lua")]
    before, began = server.cpu_seconds(), time.monotonic()
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    took, cpu = time.monotonic() - began, server.cpu_seconds() - before
    done = _REQUESTS.search(output)
    if done is None or _ERRORS.search(output):
        raise SystemExit(f"wrk failed against {server.name}:\n{output}")
    if scenario.range_bytes:
        return Sample(int(done[1]) / took, cpu / int(done[1]) * 1000)
    gigabytes = transferred(output) / 1e9
    return Sample(gigabytes / took, cpu / gigabytes)


def transferred(output: str) -> float:
    """Bytes that wrk read, answers that it did not see to their end included."""
    match = re.search(r"requests in [^,]+, ([0-9.]+)([KMGT]?)B read", output)
    if match is None:
        raise SystemExit(f"wrk told no bytes:\n{output}")
    return float(match[1]) * float(1024 ** " KMGT".index(match[2] or " "))


def spread(ratios: list[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started."""
    for _ in range(50):
        found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if found:
            yield from map(int, found)
            return
        time.sleep(0.1)


def await_answer(url: str) -> None:
    """Wait until a server answers."""
    for _ in range(600):
        request = urllib.request.Request(url, method="HEAD")  # noqa: S310 - our own URL
        try:
            with urllib.request.urlopen(request, timeout=5):  # noqa: S310 - same
                return
        except OSError:
            time.sleep(0.1)
    raise SystemExit(f"{url} does not answer")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
