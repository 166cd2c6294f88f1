"""The log's lines about assisted-service when it cannot be reached, directly or through a proxy."""

from __future__ import annotations

import json
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.service import BEGUN, IN_FLIGHT, SERVE, Service, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.upstream import Reply, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.ports import ANY_ADDRESS, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance

VERSION = "faults"
UNREACHED = "cannot reach assisted-service"
TTL_SECONDS = 0.1
_WARNINGS = {"warn", "error", "critical"}


@contextmanager
def serving(directory: Path, environment: Mapping[str, str]) -> Iterator[Service]:
    (directory / "base.iso").write_bytes(build_live_iso())
    images = [os_image(directory / "base.iso", VERSION)]
    with run_service(directory, images, command=SERVE, environment=environment) as service:
        yield service


def iso_of(infra_env_id: str) -> str:
    return f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"


def all_lines(service: Service) -> list[dict[str, Any]]:
    """Return the log lines so far."""
    return [json.loads(line) for line in service.stdout.splitlines()]


def test_unreachable_host_is_told_at_the_start_which_it_does_not_delay(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, {"ASSISTED_SERVICE_HOST": host}) as service:
        service.wait_for(f"({UNREACHED}.*it refuses the connection; check ASSISTED_SERVICE_HOST.*{host})")
        assert service.total("upstream_calls_total.*") == 0


def test_sixty_failing_requests_make_few_lines_that_name_the_request(tmp_path: Path) -> None:
    host = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, {"ASSISTED_SERVICE_HOST": host}) as service:
        for number in range(60):
            path = iso_of(f"5a3b1e00-0000-4000-8000-{number:012}")
            url, fields = service.url + path, f"X-Request-ID: mine-{number}"
            status = run_client("curl", "-so", "/dev/null", "-w", "%{http_code}", "-H", fields, url)
            assert status == b"502"
        lines = [line for line in all_lines(service) if "assisted.failure_log" in line["logger"]]
        assert 0 < len(lines) <= 20
        assert {line["level"] for line in lines} == {"warn"}
        for line in lines:
            assert f"http://{host}" in line["message"]
            assert line["id"].startswith("mine-")
            assert f"for request {line['id']}" in line["message"]
        accessed = {line["id"]: line["status"] for line in all_lines(service) if line["logger"] == "access"}
        assert {accessed[line["id"]] for line in lines} == {502}


def test_client_that_leaves_and_a_stop_log_no_warning(tmp_path: Path, certificate: Certificate) -> None:
    with running(certificate) as upstream:
        infra_env_id = upstream.register(version=VERSION)
        with serving(tmp_path, {**upstream.environment, "SNAPSHOT_TTL": str(TTL_SECONDS)}) as service:
            assert service.get_image(iso_of(infra_env_id), {"Range": "bytes=0-9"}).status == 206
            upstream.tell(infra_env_id, Reply(after_seconds=None))
            hanging = upstream.register(Reply(after_seconds=None), VERSION)
            time.sleep(TTL_SECONDS)
            with leaving(service, iso_of(infra_env_id)):
                wait_for(lambda: upstream.count(infra_env_id) == 2)
            for _ in range(2):  # the second client finds the call of the first
                with leaving(service, iso_of(hanging)):
                    wait_for(lambda: upstream.count(hanging) == 1)
            before = len(service.stdout)
        stopped = [json.loads(line) for line in service.stdout[before:].splitlines()]
        assert any(line["message"] == "shutting down" for line in stopped)
        found = [line for line in stopped if line["level"] in _WARNINGS and line["logger"] != "access"]
        assert found == []
        assert b"Traceback" not in service.output


@contextmanager
def leaving(service: Service, path: str) -> Iterator[None]:
    """Ask for an image by curl; when the service has the request, run the block, at whose end curl leaves."""
    wait_for(lambda: service.total(IN_FLIGHT) == 0)
    before = service.total(BEGUN)
    with subprocess.Popen((needs_client("curl"), "-so", "/dev/null", service.url + path)) as client:
        try:
            wait_for(lambda: service.total(BEGUN) > before)
            yield
        finally:
            client.terminate()


@contextmanager
def tinyproxy(directory: Path) -> Iterator[int]:
    """Run tinyproxy with a user and a password; yields its port."""
    port = free_port()
    (directory / "tinyproxy.conf").write_text(
        f'Port {port}\nListen 127.0.0.1\nLogFile "{directory}/tinyproxy.log"\nLogLevel Connect\n'
        "BasicAuth user s3cret\nMaxClients 20\n"
    )
    command = (needs_client("tinyproxy"), "-d", "-c", str(directory / "tinyproxy.conf"))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            run_client(
                "curl", "-so", "/dev/null", "--retry", "50", "--retry-connrefused", f"http://127.0.0.1:{port}"
            )
            yield port
        finally:
            process.terminate()


def test_https_requests_go_through_a_proxy(tmp_path: Path, certificate: Certificate) -> None:
    with running(certificate) as upstream, tinyproxy(tmp_path) as port:
        host = upstream.environment["ASSISTED_SERVICE_HOST"].replace("127.0.0.1", ANY_ADDRESS)
        infra_env_id = upstream.register(version=VERSION)
        environment = {
            **upstream.environment,
            "ASSISTED_SERVICE_HOST": host,
            "HTTPS_PROXY": f"http://user:s3cret@127.0.0.1:{port}",
        }
        with serving(tmp_path, environment) as service:
            assert service.get_image(iso_of(infra_env_id), {"Range": "bytes=0-9"}).status == 206
            assert UNREACHED.encode() not in service.output
            assert b"s3cret" not in service.output
    assert f"CONNECT {host}" in (tmp_path / "tinyproxy.log").read_text()


def test_proxy_that_refuses_the_password_is_named(tmp_path: Path) -> None:
    with tinyproxy(tmp_path) as port:
        environment = {
            "ASSISTED_SERVICE_SCHEME": "https",
            "ASSISTED_SERVICE_HOST": "assisted-service.invalid:8090",
            "HTTPS_PROXY": f"http://user:wr0ng@127.0.0.1:{port}",
        }
        with serving(tmp_path, environment) as service:
            service.wait_for(
                rf"({UNREACHED}.*the proxy http://127.0.0.1:{port} answered CONNECT with status 40[17])"
            )
            assert b"wr0ng" not in service.output
