"""Base images that stay at their origin: ranges that are local, and reading that has to fetch first.

nginx is the origin; where a round trip matters, a proxy adds 20 ms to it.
"""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from typing import TYPE_CHECKING
from urllib.parse import urljoin, urlsplit

import attrs

from bench.base_images import dense_image
from bench.delaying_proxy import delaying_proxy
from bench.flatness import cpu_measurement
from bench.load import run_load_test
from bench.ports import free_port
from bench.results import Target
from bench.servers import SERVICE, Server, head, image_path, os_image, start_nginx
from bench.study import Figure, ratios

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.stage import Stage

ROUND_TRIP_MS = 20
_RANGE_BYTES = 64 * 1024
_CONNECTIONS = 16
_COLD_READERS = 2
_COLD_MEGABYTES = 970
_POLL_SECONDS = 0.1


def study_warm(stage: Stage) -> Iterator[Figure]:
    """CPU time of a 64 KiB range of a remote base that is all local, divided by that of a local base."""
    with ExitStack() as stack:
        origin = start_nginx(stack, stage.directory, stage.image, stage.certificate)
        served = _serve(stage, stack, origin.urls["http"], "warm", {"REMOTE_PREFETCH": "all"})
        served.wait_until_local()
        size = served.server.size_bytes("http")
        local, remote = (
            cpu_measurement(served.server, url, size, _CONNECTIONS)
            for url in (served.server.urls["http"], served.remote_url)
        )
        values = ratios(stage.effort, local, remote)
        yield Figure(SERVICE, "CPU of a 64 KiB range, warm remote ÷ local", "", values, Target(at_most=1.05))


def study_cold(stage: Stage) -> Iterator[Figure]:
    """Read a remote base in order, in 64 KiB ranges on one connection, with 20 ms to the origin."""
    rates, worst = [], []
    for number in range(stage.effort.rounds):
        with _delayed(stage, f"cold-{number}") as served:
            read = _Reading(served.remote_url)
            read.run(stage.effort.seconds)
            rates.append(read.megabytes_per_second)
            worst.append(read.worst_seconds * 1000)
    yield Figure(SERVICE, "cold, in order, 20 ms to the origin", "MB/s", rates, Target(at_least=100))
    yield Figure(SERVICE, "the same, longest request", "ms", worst)


def study_neighbors(stage: Stage) -> Iterator[Figure]:
    """99th percentile of ranges of a local base while others read a remote one for the first time."""
    report = stage.directory / "report"
    mount = ("--clients=1", f"--duration={stage.effort.seconds}s")
    with _delayed(stage, "neighbors") as served:
        alone = run_load_test(served.server.urls["http"], report, *mount)
        readers = [_Reading(served.remote_url, part, _COLD_READERS) for part in range(_COLD_READERS)]
        threads = [threading.Thread(target=reader.run, args=(3600,)) for reader in readers]
        for thread in threads:
            thread.start()
        beside = run_load_test(served.server.urls["http"], report, *mount)
        still_reading = all(thread.is_alive() for thread in threads)
        for reader in readers:
            reader.stopped.set()
        for thread in threads:
            thread.join()
    label = "a local range, 99th percentile"
    yield Figure(SERVICE, f"{label}, alone", "ms", [alone["timings"]["range"]["p99_seconds"] * 1000])
    milliseconds = beside["timings"]["range"]["p99_seconds"] * 1000
    beside_label = f"{label}, beside {_COLD_READERS} cold readers"
    yield Figure(SERVICE, beside_label, "ms", [milliseconds], Target(at_most=20))
    rate = sum(reader.megabytes_per_second for reader in readers)
    ended = "" if still_reading else ", which ended before"
    yield Figure(SERVICE, f"cold reading meanwhile{ended}", "MB/s", [rate])


@attrs.frozen
class _Served:
    """A service with a local and a remote base.

    Args:
        server: its URLs are those of the local base.
        remote_url: of the image of the remote one.
    """

    server: Server
    remote_url: str

    def wait_until_local(self) -> None:
        """Wait until the remote base is all on the local disk."""
        while not all(image["bytes_done"] == image["size"] for image in self._states()):
            time.sleep(_POLL_SECONDS)

    def _states(self) -> list[dict[str, int]]:
        parts = urlsplit(self.remote_url)
        with closing(HTTPConnection(parts.netloc)) as connection:
            connection.request("GET", "/images")
            states: list[dict[str, int]] = json.loads(connection.getresponse().read())["images"]
            return states


@attrs.define
class _Reading:
    """One client that reads an image in order, as virtual media does.

    Args:
        url: of the image.
        part: which of the parts it reads.
        parts: equal ones of the image.
    """

    url: str
    part: int = 0
    parts: int = 1
    worst_seconds: float = 0.0
    megabytes_per_second: float = 0.0
    stopped: threading.Event = attrs.field(factory=threading.Event)

    def run(self, seconds: float) -> None:
        """Read for some seconds, or up to the end of the part; raises SystemExit for a refused range."""
        size, parts = int(head(self.url)["content-length"]), urlsplit(self.url)
        share = size // self.parts
        first, stop = self.part * share, (self.part + 1) * share
        began = time.monotonic()
        received = 0
        with closing(HTTPConnection(parts.netloc, timeout=60)) as connection:
            while first + received < stop and not self.stopped.is_set():
                asked = time.monotonic()
                if asked - began > seconds:
                    break
                received += self._read(connection, parts.path, first + received, stop)
                self.worst_seconds = max(self.worst_seconds, time.monotonic() - asked)
        self.megabytes_per_second = received / 1e6 / (time.monotonic() - began)

    def _read(self, connection: HTTPConnection, path: str, first: int, stop: int) -> int:
        last = min(first + _RANGE_BYTES, stop) - 1
        connection.request("GET", path, headers={"Range": f"bytes={first}-{last}"})
        response = connection.getresponse()
        body = response.read()
        if response.status != HTTPStatus.PARTIAL_CONTENT:
            raise SystemExit(f"{self.url}: status {response.status}: {body!r}")
        return len(body)


@contextmanager
def _delayed(stage: Stage, purpose: str) -> Iterator[_Served]:
    """Serve a remote base of which nothing but the boot set is local, 20 ms away from its origin."""
    port = free_port()
    with ExitStack() as stack:
        image = dense_image(stage.directory, max(stage.effort.megabytes, _COLD_MEGABYTES))
        origin = urlsplit(start_nginx(stack, stage.directory, image, stage.certificate).urls["http"])
        stack.enter_context(delaying_proxy(port, origin.netloc, ROUND_TRIP_MS))
        yield _serve(stage, stack, f"http://127.0.0.1:{port}{origin.path}", purpose, {})


def _serve(stage: Stage, stack: ExitStack, url: str, purpose: str, environment: dict[str, str]) -> _Served:
    """Start a service with the local image and, as the version ``remote``, the one at a URL."""
    remote = stage.directory / "remote.iso"
    entries = [os_image(stage.image), {**os_image(remote), "url": url, "remote": True}]
    server = stage.start_service(
        stack,
        {**environment, "OS_IMAGES": json.dumps(entries)},
        stage.directory / purpose,
        [stage.image, remote],
    )
    return _Served(server, urljoin(server.urls["http"], f"/{image_path(remote)}"))
