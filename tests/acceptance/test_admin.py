"""The administrative listener, driven by curl."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest
import yaml

from tests import forks
from tests.acceptance.clients import needs_client
from tests.acceptance.prometheus import PATIENCE_SECONDS, scraping
from tests.acceptance.service import CHECKOUT, SERVE, Certificate, Service, run_service
from tests.acceptance.tenants import wait_for
from tests.ports import free_port
from tests.variants import ONE_OR_TWO, soaked

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.acceptance

COMMAND = (*SERVE, "--standalone")
TOKEN = "the-first-token-of-the-test"
NEW_TOKEN = "the-second-token-of-the-test"
ALL_ADDRESSES = "0.0.0.0"  # noqa: S104 - as it says
CONFIGURATION_STATUS = 78
_TIMEOUT_SECONDS = 100


@attrs.frozen
class Reply:
    """A response, as curl prints it."""

    status: int
    head: str
    body: bytes

    @property
    def detail(self) -> str:
        """The detail of a problem."""
        assert "content-type: application/problem+json" in self.head.lower(), self
        return str(json.loads(self.body)["detail"])


@attrs.frozen
class Administered:
    """A service with an administrative listener."""

    service: Service
    url: str

    def curl(self, path: str, *options: str, url: str = "") -> Reply:
        """Request a path by curl."""
        command = [
            needs_client("curl"),
            "--silent",
            "--show-error",
            "--include",
            "--max-time",
            "60",
            *options,
        ]
        done = subprocess.run([*command, (url or self.url) + path], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()
        head, _, body = done.stdout.rpartition(b"\r\n\r\n")
        last = head.decode().rpartition("HTTP/1.1 ")[2]  # of several, if curl has authenticated
        return Reply(int(last[:3]), last, body)

    def workers(self) -> list[int]:
        """Return the process identifiers of the workers."""
        pid = self.service.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def administered(
    directory: Path,
    address: str = "127.0.0.1",
    certificate: Certificate | None = None,
    **environment: str,
) -> Iterator[Administered]:
    port = free_port()
    listen = {"ADMIN_LISTEN": f"{address}:{port}", **environment}
    with run_service(directory, [], command=COMMAND, certificate=certificate, environment=listen) as service:
        scheme = "https" if certificate and address == ALL_ADDRESSES else "http"
        yield Administered(service, f"{scheme}://127.0.0.1:{port}")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(f"{TOKEN}\n")
    return file


def states(admin: Administered) -> list[str]:
    return [image["state"] for image in json.loads(admin.curl("/images").body)["images"]]


@pytest.mark.parametrize("workers", [soaked("1"), "2"])
def test_loopback_needs_no_token(tmp_path: Path, workers: str) -> None:
    plain = free_port()
    with administered(tmp_path, WORKERS=workers, HTTP_LISTEN_PORT=str(plain)) as admin:
        assert admin.curl("/live").body == admin.curl("/health").body == b"ok\n"
        wait_for(lambda: states(admin) == ["ready"])  # in all workers
        metrics = admin.curl("/metrics")
        assert "content-type: text/plain; version=0.0.4" in metrics.head.lower()
        subprocess.run([needs_client("promtool"), "check", "metrics"], input=metrics.body, check=True)
        for url in (admin.service.url, f"http://127.0.0.1:{plain}"):
            assert [admin.curl(path, url=url).status for path in ("/live", "/health")] == [200, 200]
            assert {admin.curl(path, url=url).status for path in ("/metrics", "/images")} == {404}
        head = admin.curl("/images", "--head")
        assert (head.status, head.body) == (200, b"")
        assert f"content-length: {len(admin.curl('/images').body)}" in head.head.lower()
        put = admin.curl("/images", "--request", "DELETE")
        assert (put.status, put.detail) == (405, "this resource only allows GET")
        assert "allow: GET, HEAD" in put.head.replace("Allow", "allow")
        unknown = admin.curl("/unknown")
        assert (unknown.status, unknown.detail) == (404, "no such resource")
        assert admin.curl("/images", "--header", "Host: rebound.example").status == 421
        assert admin.curl("/images", "--header", "Origin: http://evil.example").status == 403
        admin.service.wait_for(rf"(listening on {admin.url.removeprefix('http://')} \(HTTP: admin\))")
        assert admin.service.wait_for(r"status page: ([^\" ]+)") == f"{admin.url}/"


def test_several_addresses_need_the_token_and_loopback_no_certificate(
    tmp_path: Path, token_file: Path, certificate: Certificate
) -> None:
    loopback, all_ports = free_port(), free_port()
    listen = f"127.0.0.1:{loopback}, {ALL_ADDRESSES}:{all_ports}"
    variables = {"ADMIN_LISTEN": listen, "ADMIN_TOKEN_FILE": str(token_file), "WORKERS": "2"}
    trust = ("--cacert", str(certificate.ca))
    urls = (f"http://127.0.0.1:{loopback}", f"https://127.0.0.1:{all_ports}")
    with administered(tmp_path, certificate=certificate, **variables) as admin:
        assert admin.service.wait_for(r"status page: ([^\" ]+)") == f"{urls[0]}/"
        for url in urls:
            assert admin.curl("/health", *trust, url=url).status == 200
            assert admin.curl("/metrics", *trust, url=url).status == 401
            assert admin.curl("/metrics", *trust, "--oauth2-bearer", TOKEN, url=url).status == 200
            assert admin.curl("/", *trust, "--user", f"anybody:{TOKEN}", url=url).status == 200


@pytest.mark.parametrize("workers", ONE_OR_TWO)
def test_other_addresses_need_the_token(
    tmp_path: Path, token_file: Path, certificate: Certificate, workers: int
) -> None:
    trust = ("--cacert", str(certificate.ca))
    variables = {"ADMIN_TOKEN_FILE": str(token_file), "WORKERS": str(workers), "LOGLEVEL": "debug"}
    with administered(tmp_path, ALL_ADDRESSES, certificate, **variables) as admin:
        assert [admin.curl(path, *trust).status for path in ("/live", "/health")] == [200, 200]
        for path in ("/metrics", "/images", "/nowhere"):
            refused = admin.curl(path, *trust)
            assert (refused.status, refused.detail) == (401, "the token is missing or wrong")
            assert 'WWW-Authenticate: Bearer realm="image-service"\r\n' in refused.head
            assert 'WWW-Authenticate: Basic realm="image-service"' in refused.head
        bearer = ("--oauth2-bearer", TOKEN)
        browser = ("--anyauth", "--user", f"anybody:{TOKEN}")  # only after a challenge that it understands
        for authentication in (bearer, browser):
            assert admin.curl("/images", *trust, *authentication).status == 200
        assert b"token is wrong" not in admin.service.output
        assert admin.curl("/images", *trust, "--user", f"{TOKEN}:").status == 401
        admin.service.wait_for(r"(refused a request from 127\.0\.0\.1: its credentials are wrong)")
        token_file.write_text(f"{NEW_TOKEN}\n")
        wait_for(lambda: admin.curl("/images", *trust, "--oauth2-bearer", NEW_TOKEN).status == 200)
        assert admin.curl("/images", *trust, *bearer).status == 401
        token_file.write_text("too short\n")
        keeps = f"cannot reload {token_file}, keeping the previous content".encode()
        wait_for(
            lambda: admin.curl("/images", *trust, *bearer).status == 401 and keeps in admin.service.output
        )
    assert TOKEN.encode() not in admin.service.output


def test_token_on_loopback_is_required_if_there_is_one(tmp_path: Path, token_file: Path) -> None:
    token_file.chmod(0o644)
    with administered(tmp_path, ADMIN_TOKEN_FILE=str(token_file)) as admin:
        assert admin.curl("/metrics").status == 401
        assert admin.curl("/metrics", "--user", f":{TOKEN}").status == 200
        admin.service.wait_for(f"({token_file} has mode 0644: every user has access to it)")


@pytest.mark.parametrize("workers", ONE_OR_TWO)
def test_health_is_503_while_the_service_stops(tmp_path: Path, workers: int) -> None:
    with administered(tmp_path, DRAIN_DELAY="100000", WORKERS=str(workers)) as admin:
        admin.service.process.terminate()
        admin.service.wait_for("(shutting down)")
        stopping = admin.curl("/health")
        assert (stopping.status, stopping.detail) == (503, "this service is shutting down")
        assert "Retry-After: 1" in stopping.head
        assert admin.curl("/live").status == 200


def test_listener_answers_while_workers_are_replaced_by_some_with_the_log_level_that_was_set(
    tmp_path: Path,
) -> None:
    with administered(tmp_path, WORKERS="2") as admin:
        wait_for(lambda: b"assisted_image_service_workers 2.0\n" in admin.curl("/metrics").body)
        options = ("--request", "PUT", "--json", '{"level": "debug"}')
        assert admin.curl("/api/v1/log-level", *options).status == 204
        first, second = admin.workers()
        os.kill(first, signal.SIGSTOP)
        assert [admin.curl(path).status for path in ("/health", "/images", "/metrics")] == [200, 200, 200]
        os.kill(second, signal.SIGSTOP)  # dead ones may be replaced before the next request
        wait_for(lambda: admin.curl("/health").status == 503)
        assert admin.curl("/live").status == admin.curl("/metrics").status == 200
        for worker in (first, second):
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: admin.curl("/health").status == 200)
        wait_for(lambda: json.loads(admin.curl("/images").body)["images"][0]["state"] == "ready")
        wait_for(lambda: len({first, second, *admin.workers()}) == 4)
        wait_for(lambda: admin.curl("/api/v1/status").status == 200)
        assert json.loads(admin.curl("/api/v1/status").body)["log_level"] == "debug"


def test_idle_crowd_keeps_nobody_away(tmp_path: Path) -> None:
    with administered(tmp_path) as admin, ExitStack() as stack:
        before = admin.service.descriptors
        address = ("127.0.0.1", int(admin.url.rpartition(":")[2]))
        crowd = [stack.enter_context(socket.create_connection(address)) for _ in range(300)]
        for client in crowd[::2]:
            with suppress(ConnectionError):
                client.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert admin.curl("/images").status == 200
        assert admin.service.get("/health").status == 200
        wait_for(lambda: admin.service.descriptors <= before + 64)


@pytest.mark.parametrize("workers", [soaked("1"), "2"])
def test_taken_port_ends_with_78_and_is_named(tmp_path: Path, workers: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        done = start(tmp_path, ADMIN_LISTEN=listen, WORKERS=workers)
    assert done.returncode == CONFIGURATION_STATUS
    assert f"ADMIN_LISTEN={listen}: 127.0.0.1 port" in done.stdout + done.stderr


def test_missing_token_ends_with_78(tmp_path: Path) -> None:
    done = start(tmp_path, ADMIN_LISTEN="[::]:0")
    assert done.returncode == CONFIGURATION_STATUS
    assert "ADMIN_LISTEN is not on loopback; ADMIN_TOKEN_FILE must be set then" in done.stderr


def test_prometheus_scrapes_as_documented(tmp_path: Path, token_file: Path, certificate: Certificate) -> None:
    page = (CHECKOUT / "docs" / "metrics.md").read_text()
    (example,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    (job,) = yaml.safe_load(example)["scrape_configs"]
    assert set(job) == {"job_name", "scheme", "authorization", "static_configs"}
    assert set(job["authorization"]) == {"credentials_file"}
    options = {
        "scheme": job["scheme"],
        "authorization": {"credentials_file": str(token_file)},
        "tls_config": {"ca_file": str(certificate.ca)},
    }
    with administered(tmp_path, ALL_ADDRESSES, certificate, ADMIN_TOKEN_FILE=str(token_file)) as admin:
        target = admin.url.removeprefix("https://")
        with scraping(tmp_path, target, **options) as prometheus:
            query = "query?query=assisted_image_service_build_info"
            wait_for(lambda: prometheus.ask(query)["result"] != [], PATIENCE_SECONDS)


def start(directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Start a service that must end by itself."""
    variables = os.environ | {
        "DATA_DIR": str(directory),
        "LISTEN_PORT": "0",
        "STANDALONE_LISTEN": "127.0.0.1:0",
        **environment,
    }
    return forks.run(COMMAND, env=variables, timeout=_TIMEOUT_SECONDS)
