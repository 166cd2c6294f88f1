"""Clients whose TLS handshakes fail, and a certificate that ends soon, as the operator sees both."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest
import trustme

from tests.acceptance.clients import needs_client
from tests.acceptance.service import SERVE, Certificate, Service, os_image, run_service
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

NOW = datetime.now(UTC).replace(microsecond=0)
END, LATER_END = NOW + timedelta(days=5, hours=1), NOW + timedelta(days=100)
GAUGE = 'certificate_not_after_seconds{purpose="server"}'
_POLL_SECONDS = 0.05
_TIMEOUT_SECONDS = 60


@attrs.frozen
class Site:
    """A service with HTTPS and plain HTTP.

    Args:
        service: runs.
        plain_port: number of its port for plain HTTP.
    """

    service: Service
    plain_port: int

    @property
    def authority(self) -> str:
        """Host and port of HTTPS."""
        return urlsplit(self.service.url).netloc

    def count(self, reason: str) -> float:
        return self.service.metrics()[f'tls_handshake_failures_total{{reason="{reason}"}}']

    def counts(self) -> dict[str, float]:
        metrics = self.service.metrics()
        return {name: value for name, value in metrics.items() if name.startswith("tls_handshake_failures")}

    def connect(self) -> socket.socket:
        host, _, port = self.authority.partition(":")
        return socket.create_connection((host, int(port)))

    def warnings(self) -> list[str]:
        """Return the messages of all warnings so far."""
        lines = map(json.loads, self.service.stdout.splitlines())
        return [line["message"] for line in lines if line["level"] == "warn"]

    def handshake_warnings(self) -> list[str]:
        return [line for line in self.warnings() if "TLS handshake" in line]


def issue(directory: Path, authority: trustme.CA, end: datetime) -> Certificate:
    leaf = authority.issue_cert("127.0.0.1", not_after=end)
    files = Certificate(directory / "tls.key", directory / "tls.crt", directory / "ca.pem")
    leaf.private_key_pem.write_to_path(str(files.key))
    files.chain.write_bytes(b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
    authority.cert_pem.write_to_path(str(files.ca))
    return files


@contextmanager
def running(directory: Path, certificate: Certificate, **environment: str) -> Iterator[Site]:
    iso, plain_port = directory / "base.iso", free_port()
    write_sparse_iso(iso, live_files(), {})
    with run_service(
        directory,
        [os_image(iso, "4.20")],
        command=(*SERVE, "--standalone"),
        certificate=certificate,
        environment={"HTTP_LISTEN_PORT": str(plain_port), "LOG_FORMAT": "json", **environment},
    ) as service:
        yield Site(service, plain_port)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    with running(directory, issue(directory, trustme.CA(), END), HANDSHAKE_TIMEOUT="5") as site:
        yield site


def run(*command: str, status: int) -> bytes:
    """Run a client, which must end with a status; return its standard output."""
    done = subprocess.run(
        [needs_client(command[0]), *command[1:]],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == status, done
    return done.stdout


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


UNTRUSTING = ("curl", "--silent", "https://{}/health")


@pytest.mark.parametrize(
    ("command", "status", "reason", "logged"),
    [
        (UNTRUSTING, 60, "not-trusted", r"does not trust the certificate: .* \(tlsv1 alert unknown ca\)"),
        (
            ("curl", "--silent", "--tls-max", "1.2", "https://{}/health"),
            60,
            "not-trusted",
            r"does not trust the certificate: .* \(tlsv1 alert unknown ca\)",
        ),
        (
            ("openssl", "s_client", "-verify_return_error", "-tls1_3", "-connect", "{}"),
            1,
            "not-trusted",
            r"does not trust the certificate: .* \(tlsv1 alert unknown ca\)",
        ),
        (
            ("curl", "--silent", "--tls-max", "1.1", "--ciphers", "ALL:@SECLEVEL=0", "https://{}/health"),
            35,
            "protocol-version",
            r"supports neither TLS 1\.2 nor TLS 1\.3 \(unsupported protocol\)",
        ),
        (
            ("openssl", "s_client", "-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0", "-connect", "{}"),
            1,
            "no-shared-cipher",
            r"no cipher suite, .* TLS_LEGACY_CIPHERS allows older suites \(no shared cipher\)",
        ),
    ],
    ids=["curl", "curl-1.2", "openssl-1.3", "curl-1.1", "openssl-cbc"],
)
def test_failed_handshake_is_counted_and_explained(
    site: Site, command: tuple[str, ...], status: int, reason: str, logged: str
) -> None:
    before = site.count(reason)
    run(*(argument.format(site.authority) for argument in command), status=status)
    until(lambda: site.count(reason) == before + 1)
    line = f"a TLS handshake of 127.0.0.1 failed: .*{logged}"
    assert any(re.search(line, warning) for warning in site.warnings())


def test_client_that_stalls_is_counted(site: Site) -> None:
    before = site.count("timeout")
    with site.connect() as client:
        client.sendall(b"\x16\x03\x01")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    until(lambda: site.count("timeout") == before + 1)
    assert "a TLS handshake of 127.0.0.1 failed: not complete within HANDSHAKE_TIMEOUT" in site.warnings()


def test_garbage_is_counted(site: Site) -> None:
    with site.connect() as client:
        client.sendall(b"\x00" * 100)
        assert b"HTTP" not in client.recv(1000)
    until(lambda: site.count("not-tls") == 1)


def test_checks_of_the_port_and_working_clients_leave_no_trace(site: Site) -> None:
    before = site.counts(), site.handshake_warnings()
    for _ in range(20):
        site.connect().close()
    assert site.service.get("/health").status == 200
    url = f"https://{site.authority}/health"
    assert run("curl", "--silent", "--cacert", str(site.service.ca), url, status=0) == b"ok\n"
    assert (site.counts(), site.handshake_warnings()) == before


def test_plain_http_on_the_https_port_is_answered(site: Site) -> None:
    before = site.count("plain-http")
    url = f"http://{site.authority}/health"
    body = run("curl", "--silent", "--include", url, status=0)
    assert body.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b'"detail": "this port requires TLS; use https://"' in body
    assert run("curl", "--silent", "--head", url, status=0).startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert site.count("plain-http") == before + 2


def test_tls_on_the_port_of_plain_http_is_logged(site: Site) -> None:
    run("curl", "--silent", f"https://127.0.0.1:{site.plain_port}/health", status=35)
    until(lambda: any("the client speaks TLS, and this port plain HTTP" in line for line in site.warnings()))


def test_end_of_the_certificate_is_shown_and_warned_of(site: Site) -> None:
    assert site.service.metrics()[GAUGE] == END.timestamp()
    assert any("tls.crt expires in 5 days" in line for line in site.warnings())


def test_workers_sum_up_failures_and_agree_on_the_certificate(tmp_path: Path) -> None:
    authority = trustme.CA()
    with running(tmp_path, issue(tmp_path, authority, END), WORKERS="2") as site:
        for _ in range(10):
            run(*(argument.format(site.authority) for argument in UNTRUSTING), status=60)
        until(lambda: site.count("not-trusted") == 10)
        assert site.service.metrics()[GAUGE] == END.timestamp()
        issue(tmp_path, authority, LATER_END)
        until(lambda: site.service.metrics()[GAUGE] == LATER_END.timestamp())
    lines = [line for line in site.warnings() if "does not trust" in line]
    summed = [re.match(r"(\d+) TLS handshakes? of \S+ failed within 60 s: ", line) for line in lines]
    assert len(lines) < 10  # of each worker: the first at once, the others at its end at the latest
    assert sum(int(found[1]) if found else 1 for found in summed) == 10
