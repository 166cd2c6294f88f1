"""Slow readers take all slots and come back at once when they are closed: others get their downloads."""

from __future__ import annotations

import hashlib
import socket
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from threading import Event, Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests.acceptance.latency_client import PROMISED_SECONDS
from tests.acceptance.standstills import ALLOWED_SECONDS, timed
from tests.acceptance.tenants import VERSION, Site, bearer, iso_of, serving_tenants, wait_for
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

SLOTS = 40
SLOW_READERS = 60
"""So that some of them always wait for a slot. Half of them have one address, the others one each."""
SLOW_BYTES_PER_SECOND = 2_000
HONEST_BYTES_PER_SECOND = 125_000  # 1 Mbit/s, a BMC's slow link
ROOTFS_BYTES = 32 * 1024 * 1024
ROOTFS = f"/boot-artifacts/rootfs?version={VERSION}"
CLOSED_WITHIN_SECONDS = 10
DOWNLOADS = 20
OWNER = "owner"
_PAUSE_SECONDS = 0.1
_RECEIVE_BUFFER_BYTES = 4096
_SILENCE_SECONDS = 10
_TIMEOUT_SECONDS = 60


@attrs.frozen
class SlowReader:
    """A client that reads a root file system slowly, again and again.

    Args:
        netloc: of the service.
        address: the client's.
        bytes_per_second: its rate.
        ended: stops it.
        closed: set when its first download was closed before its end.
    """

    netloc: str
    address: str
    bytes_per_second: int
    ended: Event
    closed: Event = attrs.field(factory=Event)

    def run(self) -> None:
        """Read until it is stopped."""
        while not self.ended.wait(_PAUSE_SECONDS):
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
                connection.settimeout(_SILENCE_SECONDS)
                connection.bind((self.address, 0))
                try:
                    self._read(connection)
                except OSError:
                    self.closed.set()

    def _read(self, connection: socket.socket) -> None:
        host, port = self.netloc.split(":")
        connection.connect((host, int(port)))
        connection.sendall(f"GET {ROOTFS} HTTP/1.1\r\nHost: {self.netloc}\r\n\r\n".encode())
        begun_at, received = time.monotonic(), 0
        while not self.ended.wait(_PAUSE_SECONDS):
            due = int((time.monotonic() - begun_at) * self.bytes_per_second)
            while received < due:
                data = connection.recv(due - received)
                if not data:
                    self.closed.set()
                    return
                received += len(data)


@contextmanager
def running(*readers: SlowReader) -> Iterator[None]:
    threads = [Thread(target=reader.run) for reader in readers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for reader in readers:
            reader.ended.set()
        for thread in threads:
            thread.join()


@pytest.fixture(params=ONE_OR_TWO)
def site(request: pytest.FixtureRequest, certificate: Certificate, tmp_path: Path) -> Iterator[Site]:
    rootfs = hashlib.shake_128(b"fair").digest(ROOTFS_BYTES)
    write_sparse_iso(tmp_path / "base.iso", live_files(rootfs=rootfs), {})
    environment = {"MAX_CONCURRENT_REQUESTS": str(SLOTS), "WORKERS": str(request.param)}
    with serving_tenants(tmp_path, certificate, environment) as served:
        yield served


def begins(site: Site, path: str, address: str) -> bool:
    """Return True if a download begins within 3 s, and what a busy machine may add."""
    netloc = urlsplit(site.service.url).netloc

    def ask() -> bool:
        connection = HTTPConnection(netloc, timeout=_TIMEOUT_SECONDS, source_address=(address, 0))
        with closing(connection):
            connection.request("GET", path, headers=bearer(OWNER))
            response = connection.getresponse()
            response.read(1)
            return response.status == 200

    begun, seconds = timed(ask)
    return begun and seconds < PROMISED_SECONDS + ALLOWED_SECONDS


def test_slow_readers_on_all_slots_keep_nobody_from_downloading(site: Site) -> None:
    netloc = urlsplit(site.service.url).netloc
    image = iso_of(site.tenants.register(OWNER))
    ended = Event()
    honest = [SlowReader(netloc, f"127.1.0.{n}", HONEST_BYTES_PER_SECOND, ended) for n in range(2)]
    addresses = [f"127.2.0.{n}" if n % 2 else "127.2.0.0" for n in range(SLOW_READERS)]
    slow = [SlowReader(netloc, address, SLOW_BYTES_PER_SECOND, ended) for address in addresses]
    with ExitStack() as stack:
        stack.enter_context(running(*honest))
        wait_for(lambda: site.service.total("slots_taken") == len(honest))
        stack.enter_context(running(*slow))
        wait_for(lambda: site.service.total("slots_queue_length") > 0)
        full_at = time.monotonic()
        assert begins(site, image, "127.3.0.1")  # an ISO, from the start
        time.sleep(max(0.0, full_at + CLOSED_WITHIN_SECONDS - time.monotonic()))
        begun = [begins(site, (image, ROOTFS)[n % 2], f"127.4.0.{n + 1}") for n in range(DOWNLOADS)]
        assert sum(begun) >= DOWNLOADS * 0.9, begun
        assert [reader.address for reader in honest if reader.closed.is_set()] == []
        assert site.service.total('aborted_responses_total{reason="too-slow"}') > 0
