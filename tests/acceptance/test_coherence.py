"""A BMC reads an ISO in thousands of ranges: all of them are of one version, whatever changes meanwhile."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import attrs
import pytest

from tests.acceptance.assisted import Assisted, run_assisted
from tests.acceptance.service import SERVE, Answer, Service, fetch, os_image, run_service
from tests.core.formats.filesystems.iso_builder import IGNITION_LENGTH, build_live_iso
from tests.ports import free_port
from tests.server.standalone.tokens import TokenSigner
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

pytestmark = pytest.mark.acceptance

VERSION = "4.20"
TTL_SECONDS = 0.25
CONNECTIONS = 8
# Behind the token there is enough that the checksum of both is in another range than it is.
CONFIG = {
    "ignition": {"version": "3.2.0"},
    "storage": {"files": [{"path": "/etc/x", "contents": {"source": f"data:,{'x' * 20_000}"}}]},
}
OTHER_CONFIG = {**CONFIG, "passwd": {"users": [{"name": "core"}]}}
_TIMEOUT_SECONDS = 60
_POLL_SECONDS = 0.02
_OK, _PARTIAL_CONTENT = 200, 206
_REFUSALS = {503, 504}
"""While a worker starts, or when a busy machine lets assisted-service be too slow."""


@attrs.define(eq=False)
class Reader:
    """Reads an image like a BMC: in ranges, on several connections, in random order, with retries.

    Args:
        url: of the image.
        ranges: in which it is read.
        read: ranges read so far.
        etags: all ETags received.
    """

    url: str
    ranges: int = 300
    read: int = 0
    etags: set[str | None] = attrs.field(factory=set)
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @property
    def digest(self) -> str:
        """The SHA-256 of the image, as the service reports it."""
        answer = _fetch(self.url.replace("full.iso", "full.iso.sha256"))
        assert answer.status == _OK, answer
        return answer.body.decode().split()[0]

    def read_all(self) -> str:
        """Read the image in ranges; return its SHA-256."""
        size = int(_fetch(self.url, "HEAD").headers["Content-Length"])
        step = -(-size // self.ranges)
        parts = [(start, min(start + step, size)) for start in range(0, size, step)]
        random.Random(self.url).shuffle(parts)  # noqa: S311 - any order does
        image = bytearray(size)
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for done in [pool.submit(self._read, parts[n::CONNECTIONS], image) for n in range(CONNECTIONS)]:
                done.result()
        return hashlib.sha256(image).hexdigest()

    def _read(self, parts: list[tuple[int, int]], image: bytearray) -> None:
        """Read parts on one connection."""
        connection = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=_TIMEOUT_SECONDS)
        for start, stop in parts:
            etag, image[start:stop] = self._read_one(connection, start, stop)
            with self._lock:
                self.read += 1
                self.etags.add(etag)
        connection.close()

    def _read_one(
        self, connection: http.client.HTTPConnection, start: int, stop: int
    ) -> tuple[str | None, bytes]:
        """Read a range; retry while the service is down."""
        target = "/" + self.url.split("/", 3)[3]
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            try:
                connection.request("GET", target, headers={"Range": f"bytes={start}-{stop - 1}"})
                answer = connection.getresponse()
                content = answer.read()
            except (OSError, http.client.HTTPException):
                connection.close()
            else:
                if answer.status == _PARTIAL_CONTENT:
                    assert len(content) == stop - start
                    return answer.getheader("ETag"), content
                assert answer.status in _REFUSALS, (answer.status, content)
            time.sleep(_POLL_SECONDS)
        raise AssertionError("the service does not come back")


def _fetch(url: str, method: str = "GET") -> Answer:
    """Send a request; repeat it while it is refused for the moment."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while (answer := fetch(url, method)).status in _REFUSALS:
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)
    return answer


@pytest.fixture(scope="module")
def assisted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Assisted]:
    with run_assisted(tmp_path_factory.mktemp("assisted")) as running:
        yield running


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("base") / "live.iso"
    path.write_bytes(build_live_iso())
    return path


@attrs.frozen
class Site:
    """The service across restarts, and its stand-in for assisted-service.

    Args:
        directory: working directory of the service.
        base: its base image.
        assisted: the stand-in.
        workers: number of workers.
        running: the services to stop.
        port: of the service.
    """

    directory: Path
    base: Path
    assisted: Assisted
    workers: int
    running: ExitStack
    port: int = attrs.field(factory=free_port)

    def run(self, ends_with: int = 0) -> Service:
        """Start the service."""
        environment = {"SNAPSHOT_TTL": str(TTL_SECONDS), "LOG_RANGES": "each", "WORKERS": str(self.workers)}
        service = run_service(
            self.directory,
            [os_image(self.base, VERSION)],
            command=SERVE,
            environment={**self.assisted.environment, **environment},
            port=self.port,
            ends_with=ends_with,
        )
        return self.running.enter_context(service)

    @property
    def serving(self) -> int:
        """The number of processes that have started to serve."""
        return sum(line["message"].startswith("serving at ") for line in self._log())

    def served(self, infra_env_id: str) -> set[int]:
        """Return the workers that have served ranges of an infra-env."""
        lines = self._log()
        wanted = (infra_env_id, _PARTIAL_CONTENT)
        return {
            line.get("worker", 0) for line in lines if (line.get("infra_env"), line.get("status")) == wanted
        }

    def _log(self) -> Iterator[dict[str, Any]]:
        """Yield the complete log lines so far."""
        text, _, _ = (self.directory / "stdout").read_text().rpartition("\n")
        return map(json.loads, text.splitlines())


def kill(service: Service) -> None:
    """Kill the process that serves; with several workers, one of them."""
    if workers := children(service):
        os.kill(workers[0], signal.SIGKILL)
    else:
        service.process.kill()
        service.process.wait()


def children(service: Service) -> list[int]:
    """Return the identifiers of its child processes."""
    pid = service.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@attrs.frozen
class Readers:
    """A test case: the readers' credentials, the changed config, numbers of serving processes and ranges."""

    credentials: tuple[str, ...]
    changed: Mapping[str, object]
    workers: int = 1
    ranges: int = 3000


TWO = Readers(("?api_key=one", "?api_key=two"), OTHER_CONFIG)
OF_TWO_WORKERS = attrs.evolve(TWO, workers=2)
CASES = [
    soaked(Readers(("",), CONFIG), id="one"),
    soaked(TWO, id="two whose infra-env changes"),
    soaked(OF_TWO_WORKERS, id="two whose infra-env changes, of two workers"),
    pytest.param(attrs.evolve(OF_TWO_WORKERS, ranges=300), id="small"),
]


@pytest.mark.parametrize("case", CASES)
def test_mount_of_many_ranges_is_coherent_across_ttls_and_a_kill(
    assisted: Assisted, base: Path, tmp_path: Path, case: Readers
) -> None:
    infra_env_id = assisted.register(VERSION, CONFIG)
    with ExitStack() as running, ThreadPoolExecutor(len(case.credentials)) as pool:
        site = Site(tmp_path, base, assisted, case.workers, running)
        url = f"http://127.0.0.1:{site.port}/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        readers = [Reader(url + query, case.ranges) for query in case.credentials]
        began, rounds_before = time.monotonic(), assisted.rounds
        service = site.run(ends_with=-signal.SIGKILL if case.workers == 1 else 0)
        _wait_until(lambda: site.serving == case.workers)  # else the first one gets all connections
        expected = [reader.digest for reader in readers]
        reading = [pool.submit(reader.read_all) for reader in readers]
        _wait_until(lambda: all(reader.read > reader.ranges // 2 for reader in readers))
        kill(service)
        assisted.change(infra_env_id, case.changed)
        rounds_at_change = assisted.rounds
        if case.workers == 1:
            site.run()
        assert [done.result() for done in reading] == expected
        while assisted.rounds - rounds_at_change < 4 * len(readers):
            assert [reader.read_all() for reader in readers] == expected
        elapsed_seconds = time.monotonic() - began
        newest = [reader.digest for reader in readers]
    assert newest == expected if case.changed is CONFIG else not set(newest) & set(expected)
    assert [len(reader.etags) for reader in readers] == [1] * len(readers)
    assert len(set(expected)) == len(readers)
    assert site.served(infra_env_id) == set(range(case.workers))
    # One more for the first, and one more for what the process that was killed had no time to note.
    most = (elapsed_seconds / TTL_SECONDS + 2) * len(readers)
    assert assisted.rounds - rounds_before <= most


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


def test_reader_detects_a_service_that_composes_anew_for_each_range() -> None:
    with refetching() as (url, made):
        reader = Reader(url)
        digest = reader.read_all()
    assert len(made) == reader.read + 1, "one for each range, and one for its size"
    assert digest not in made


class _Refetching(BaseHTTPRequestHandler):
    """A server that composes an image anew for each request, with a token of its own."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65536  # or the content waits for the client to acknowledge the head
    signer = TokenSigner()
    made: ClassVar[set[str]]

    def do_HEAD(self) -> None:
        self._answer(200, len(self._image()), b"")

    def do_GET(self) -> None:
        image = self._image()
        start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        self._answer(206, stop + 1 - start, image[start : stop + 1])

    def log_message(self, *_: object) -> None:
        pass

    def _image(self) -> bytes:
        config = json.dumps({**CONFIG, "token": self.signer.sign("x")}).encode()
        image = bytes(8192) + zlib.compress(config).ljust(8192, b"\0") + bytes(32768)
        self.made.add(hashlib.sha256(image).hexdigest())
        return image

    def _answer(self, status: int, length: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def refetching() -> Iterator[tuple[str, set[str]]]:
    """Run a server without snapshots; yield its URL and the SHA-256 of each image that it has composed."""

    class Handler(_Refetching):
        made: ClassVar[set[str]] = set()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/full.iso", Handler.made
        finally:
            server.shutdown()
            serving.join()


def test_further_range_makes_no_upstream_call_open_or_compression(
    assisted: Assisted, base: Path, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    text = "y" * IGNITION_LENGTH  # compressed, or it does not fit
    infra_env_id = assisted.register(
        VERSION, {**CONFIG, "passwd": {"users": [{"name": "core", "gecos": text}]}}
    )
    # A new interpreter, which imports the compressors after they are replaced.
    command = ("env", sys.executable, "-m", "tests.acceptance.audited", str(events), "serve")
    images = [os_image(base, VERSION)]
    environment = {**assisted.environment, "SNAPSHOT_TTL": "3600"}
    with run_service(tmp_path, images, command=command, environment=environment) as service:
        reader = Reader(f"{service.url}/byid/{infra_env_id}/{VERSION}/x86_64/full.iso")
        at_first, rounds = events.read_text().split(), assisted.rounds
        expected = reader.read_all()
        first = events.read_text().split()[len(at_first) :]
        assert {"socket.connect", "compression"} <= set(first)
        assert assisted.rounds == rounds + 1
        before = len(events.read_text())
        assert reader.read_all() == expected
        assert reader.read > 2 * reader.ranges * 0.9
        assert events.read_text()[before:].split() == []
        assert assisted.rounds == rounds + 1
