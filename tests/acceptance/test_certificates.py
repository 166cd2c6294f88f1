"""Renewal of a certificate under load, as Kubernetes renews a volume."""

from __future__ import annotations

import http.client
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest
import trustme
from cryptography import x509

from tests.acceptance.readers import reading
from tests.acceptance.service import Certificate, Service, os_image, run_service
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VERSION = "renewed"
ROOTFS_BYTES = 8 * 1024 * 1024
RENEWALS = 4
CLIENTS = 3  # of each sort
_POLL_SECONDS = 0.05
_TIMEOUT_SECONDS = 60


@attrs.define
class Volume:
    """A directory whose files are links through ``..data``, which is replaced as a whole."""

    directory: Path
    authority: trustme.CA = attrs.field(factory=trustme.CA)
    versions: int = 0

    def leaf(self) -> trustme.LeafCert:
        return self.authority.issue_cert("127.0.0.1")

    def renew(self, key: trustme.LeafCert, chain: trustme.LeafCert) -> None:
        self.versions += 1
        version = self.directory / f"..version{self.versions}"
        version.mkdir()
        key.private_key_pem.write_to_path(str(version / "tls.key"))
        for pem in chain.cert_chain_pems:
            pem.write_to_path(str(version / "tls.crt"), append=True)
        link = self.directory / "..data_tmp"
        link.symlink_to(version.name)
        link.rename(self.directory / "..data")

    def certificate(self) -> Certificate:
        for name in ("tls.key", "tls.crt"):
            (self.directory / name).symlink_to(f"..data/{name}")
        self.authority.cert_pem.write_to_path(str(self.directory / "ca.pem"))
        return Certificate(self.directory / "tls.key", self.directory / "tls.crt", self.directory / "ca.pem")


@attrs.frozen
class Served:
    """The service, its certificate volume and one image."""

    service: Service
    volume: Volume
    path: str
    content: bytes = attrs.field(repr=False)

    def connect(self) -> http.client.HTTPSConnection:
        """Open a kept-alive connection."""
        context = ssl.create_default_context(cafile=self.service.ca)
        connection = http.client.HTTPSConnection(
            urlsplit(self.service.url).netloc, timeout=_TIMEOUT_SECONDS, context=context
        )
        connection.connect()
        return connection

    def check_range(self, connection: http.client.HTTPSConnection, start: int) -> None:
        stop = start + 64 * 1024
        connection.request("GET", self.path, headers={"Range": f"bytes={start}-{stop - 1}"})
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (206, self.content[start:stop])

    def new_connection(self) -> int:
        """Open a connection, use it once, and return the serial number of the certificate."""
        with closing(self.connect()) as connection:
            self.check_range(connection, 100_000)
            return serial_shown(connection)


def serial_shown(connection: http.client.HTTPSConnection) -> int:
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


def serial_of(leaf: trustme.LeafCert) -> int:
    return x509.load_pem_x509_certificate(leaf.cert_chain_pems[0].bytes()).serial_number


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "volume").mkdir()
    volume = Volume(tmp_path / "volume")
    leaf = volume.leaf()
    volume.renew(leaf, leaf)
    iso = tmp_path / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=bytes(range(256)) * (ROOTFS_BYTES // 256)), {})
    with run_service(tmp_path, [os_image(iso, VERSION)], certificate=volume.certificate()) as service:
        infra_env_id = service.register(VERSION, {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        yield Served(service, volume, path, service.get_image(path).body)


def until_shown(served: Served, leaf: trustme.LeafCert) -> None:
    until(lambda: served.new_connection() == serial_of(leaf))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


def test_a_certificate_is_renewed_under_load(served: Served) -> None:
    before = served.service.descriptors
    enough = threading.Event()
    leaves = [served.volume.leaf() for _ in range(RENEWALS)]
    known = {served.new_connection(), *map(serial_of, leaves)}

    def come_and_go() -> None:
        while not enough.is_set():
            assert served.new_connection() in known

    def stay() -> None:
        with closing(served.connect()) as connection:
            number = 0
            while not enough.is_set():
                number += 1
                served.check_range(connection, number * 4099 % ROOTFS_BYTES)

    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(2 * CLIENTS))
        stack.callback(enough.set)
        running = [pool.submit(work) for work in (come_and_go, stay) for _ in range(CLIENTS)]
        reader = stack.enter_context(reading(served.service.url + served.path, ca=served.service.ca))
        reader.read_head()
        for leaf in leaves:
            served.volume.renew(leaf, leaf)
            until_shown(served, leaf)
            reader.read(64 * 1024)
        assert reader.read_to_the_end() == served.content
        enough.set()
        for client in running:
            client.result()
    until(lambda: served.service.descriptors <= before)


def test_mismatched_key_pair_is_logged_once_and_keeps_the_previous_certificate(served: Served) -> None:
    shown = served.new_connection()
    served.volume.renew(served.volume.leaf(), served.volume.leaf())
    until(lambda: served.new_connection() == shown and b"are not a pair" in served.service.output)
    leaf = served.volume.leaf()
    served.volume.renew(leaf, leaf)
    until_shown(served, leaf)
    assert sum(b"are not a pair" in line for line in served.service.output.splitlines()) == 1
