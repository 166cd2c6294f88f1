"""``image-service health`` against real listeners that answer as the service does, and otherwise."""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
import trustme

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.cli.conftest import Run

ANSWERS = {
    "/live": (200, b"ok\n"),
    "/health": (503, b'{"title": "Service Unavailable", "detail": "no base image is ready\\n(1 of 2)"}'),
}


class Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(certificate: trustme.LeafCert | None = None) -> Iterator[int]:
    """Answer on a port of 127.0.0.1 alone."""
    with HTTPServer(("127.0.0.1", 0), Answering) as server:
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate.configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LISTEN_ADDRESS", "LISTEN_PORT", "HTTPS_KEY_FILE", "HTTPS_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "127.0.0.1"])  # noqa: S104 - a value of LISTEN_ADDRESS
def test_success_is_one_line_and_status_0(run: Run, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with listening() as port:
        monkeypatch.setenv("LISTEN_ADDRESS", address)
        monkeypatch.setenv("LISTEN_PORT", str(port))
        ran = run("health", "--live")
    assert (ran.status, ran.output, ran.errors) == (0, b"ok\n", "")


def test_failure_is_one_line_with_the_detail_and_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening() as port:
        monkeypatch.setenv("LISTEN_PORT", str(port))
        ran = run("health")
    assert (ran.status, ran.output) == (1, b"")
    assert ran.errors == "image-service: /health: status 503, no base image is ready (1 of 2)\n"


def test_certificate_is_not_verified(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificate = trustme.CA().issue_cert("images.example.com")
    certificate.private_key_pem.write_to_path(tmp_path / "key")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    with listening(certificate) as port:
        monkeypatch.setenv("LISTEN_PORT", str(port))
        monkeypatch.setenv("HTTPS_KEY_FILE", str(tmp_path / "key"))
        monkeypatch.setenv("HTTPS_CERT_FILE", str(tmp_path / "crt"))
        ran = run("health", "--live")
    assert (ran.status, ran.output, ran.errors) == (0, b"ok\n", "")


def test_no_listener_is_one_line_and_status_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("LISTEN_ADDRESS", "127.0.0.1")
    monkeypatch.setenv("LISTEN_PORT", str(port))
    ran = run("health")
    assert ran.status == 1
    assert ran.errors == f"image-service: no response to /health from 127.0.0.1:{port}: Connection refused\n"


@pytest.mark.parametrize(
    ("port", "fault"), [("0", "LISTEN_PORT=0: the service has chosen the port"), ("no", "LISTEN_PORT='no': ")]
)
def test_unknown_port_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, port: str, fault: str) -> None:
    monkeypatch.setenv("LISTEN_PORT", port)
    ran = run("health")
    assert ran.status == 1
    assert fault in ran.errors
