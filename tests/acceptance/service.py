"""The service as a process, started as an operator starts it, and a plain HTTP client."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests import forks
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tests.forks import Process

TWISTD = (forks.TWISTD, "--nodaemon", "--pidfile=", "image-service")
SERVE = (sys.executable, "-m", "image_service.cli", "serve")
INFRA_ENVS = "/api/assisted-install/v2/infra-envs"

CHECKOUT = Path(__file__).parents[2]
IN_FLIGHT = r"http_requests_inflight\{.*"
"""The requests for images in progress (see ``Service.total``)."""
BEGUN = rf'{IN_FLIGHT}|http_request_duration_seconds_count\{{.*handler="/byid/.*'
"""Those, and the requests that have ended."""

ONE_ATTEMPT = {"DOWNLOAD_RETRY_MIN": "10000", "DOWNLOAD_RETRY_MAX": "10000"}
"""Settings with which a base image whose download fails stays so until a test ends."""

_TIMEOUT_SECONDS = 300
SEVERAL = 10
"""Requests, of which each serving process gets one, probably: they know a base image a moment apart."""
_POLL_SECONDS = 0.05
_MOMENTARY = {503, 504}
"""The statuses of refusals after which clients ask again."""


@attrs.frozen
class Certificate:
    """PEM files: the key and chain of a TLS listener, and the CA that signed them."""

    key: Path
    chain: Path
    ca: Path


@attrs.frozen
class Answer:
    """An HTTP response."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, str]:
        """Return the content as a JSON object of strings."""
        document: dict[str, str] = json.loads(self.body)
        return document


def fetch(
    url: str,
    method: str = "GET",
    *,
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    ca: Path | None = None,
) -> Answer:
    """Send one request, byte for byte as given, and read the response to its end."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_SECONDS, context=context)
    with closing(connection):
        connection.request(method, url.partition(parts.netloc)[2], body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())


@attrs.frozen
class Service:
    """A running service.

    Args:
        process: its process.
        url: base URL of its images.
        api_url: base URL of the stand-in's API.
        directory: its working directory; ``data`` in it is ``DATA_DIR``.
        token: bearer token of the stand-in's API; None if it needs none.
        ca: PEM file of the CA of its certificate; None for plain HTTP.
    """

    process: Process
    url: str
    api_url: str
    directory: Path
    token: str | None
    ca: Path | None

    @property
    def stdout(self) -> bytes:
        """Standard output so far."""
        return (self.directory / "stdout").read_bytes()

    @property
    def output(self) -> bytes:
        """Standard output and standard error so far."""
        return self.stdout + (self.directory / "stderr").read_bytes()

    @property
    def descriptors(self) -> int:
        """The number of open descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def wait_for(self, pattern: str) -> str:
        """Wait until the output matches a pattern; return its first group."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not (found := re.search(pattern, self.output.decode())):
            assert time.monotonic() < deadline, f"{pattern} is not printed:\n{self.output.decode()}"
            time.sleep(_POLL_SECONDS)
        return found[1]

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Send a request for a path."""
        return fetch(self.url + path, method, headers=headers, ca=self.ca)

    def get_image(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Request an image as clients do: again while it is refused for the moment, as on a busy machine."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while (answer := self.get(path, headers, method)).status in _MOMENTARY:
            assert time.monotonic() < deadline, answer
            time.sleep(_POLL_SECONDS)
        return answer

    def metrics(self) -> dict[str, float]:
        """Return all samples of the service's own metrics, by name and labels."""
        lines = self.get("/metrics").body.decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("assisted_image_service_"): float(value) for name, _, value in samples}

    def total(self, pattern: str) -> float:
        """Return the sum of the samples whose names match."""
        return sum(value for name, value in self.metrics().items() if re.fullmatch(pattern, name))

    def ask_api(self, path: str, fields: Mapping[str, object] | None = None) -> Answer:
        """Send a request to the stand-in's API: POST if there are fields, else GET."""
        headers = {"Content-Type": "application/json"} if fields is not None else {}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        body = None if fields is None else json.dumps(fields).encode()
        method = "GET" if body is None else "POST"
        return fetch(self.api_url + path, method, headers=headers, body=body)

    def register(  # noqa: PLR0913 - fields of an infra-env
        self,
        version: str,
        config: Mapping[str, object],
        arguments: Sequence[str] = (),
        architecture: str = "x86_64",
        *,
        ramdisk: bytes | None = None,
        operations: Sequence[Mapping[str, object]] = (),
        name: str = "",
    ) -> str:
        """Register an infra-env; return its identifier.

        Args:
            version: of its base image.
            config: Ignition config.
            arguments: kernel arguments to append.
            architecture: of its base image.
            ramdisk: of minimal ISOs and PXE.
            operations: further operations on kernel arguments.
            name: for people; empty: the version.
        """
        fields: dict[str, object] = {
            "name": name or version,
            "openshift_version": version,
            "cpu_architecture": architecture,
            "ignition_config_override": json.dumps(config),
            "kernel_arguments": [
                *operations,
                *({"operation": "append", "value": argument} for argument in arguments),
            ],
        }
        if ramdisk is not None:
            fields["ramdisk"] = base64.b64encode(ramdisk).decode()
        answer = self.ask_api(INFRA_ENVS, fields)
        assert answer.status == 201, answer
        return answer.json()["id"]

    def ignition_config(self, infra_env_id: str) -> bytes:
        """Return the Ignition config that the stand-in renders for an infra-env."""
        answer = self.ask_api(f"{INFRA_ENVS}/{infra_env_id}/downloads/files?file_name=discovery.ign")
        assert answer.status == 200, answer
        return answer.body


@contextmanager
def run_service(  # noqa: PLR0913 - all but two have defaults
    directory: Path,
    os_images: Sequence[Mapping[str, object]],
    *,
    command: Sequence[str] = (*TWISTD, "--standalone"),
    certificate: Certificate | None = None,
    environment: Mapping[str, str] | None = None,
    reached_by: str | None = None,
    probe: str = "/health",
    port: int | None = None,
    ends_with: int = 0,
) -> Iterator[Service]:
    """Run the service until the block ends; then SIGTERM must end it with status 0.

    Args:
        directory: working directory; an empty one, or that of an earlier service.
        os_images: ``OS_IMAGES``; empty: the variable is not set.
        command: the command line.
        certificate: for HTTPS.
        environment: more variables.
        reached_by: the host by which clients reach the service, if not 127.0.0.1.
        probe: the path that must answer 200 before the block begins.
        port: of the images; None: any.
        ends_with: the expected exit status if the block itself ends the process.
    """
    port, api_port = port or free_port(), free_port()
    variables = {
        "DATA_DIR": str(directory / "data"),
        "DRAIN_DELAY": "0",  # nobody balances load
        "LISTEN_PORT": str(port),
        "OS_IMAGES": json.dumps(os_images) if os_images else "",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(CHECKOUT),
        "STANDALONE_LISTEN": f"127.0.0.1:{api_port}",
        **_tls_variables(certificate),
        **({"IMAGE_SERVICE_BASE_URL": f"http://{reached_by}:{port}"} if reached_by else {}),
        **(environment or {}),
    }
    with (
        (directory / "stdout").open("ab") as stdout,
        (directory / "stderr").open("ab") as stderr,
        forks.start(command, cwd=directory, env=variables, stdout=stdout, stderr=stderr) as process,
    ):
        service = Service(
            process,
            f"{'https' if certificate else 'http'}://127.0.0.1:{port}",
            f"http://127.0.0.1:{api_port}",
            directory,
            variables.get("STANDALONE_TOKEN"),
            certificate.ca if certificate else None,
        )
        try:
            _wait_until_up(service, probe, 1 if variables.get("WORKERS", "1") == "1" else SEVERAL)
            yield service
            process.terminate()
            assert process.wait(_TIMEOUT_SECONDS) == ends_with, service.output.decode()
        finally:
            process.kill()


def os_image(path: Path, version: str, architecture: str = "x86_64") -> dict[str, str]:
    """Return the entry of ``OS_IMAGES`` for a file."""
    return {
        "openshift_version": version,
        "cpu_architecture": architecture,
        "version": version,
        "url": path.as_uri(),
    }


def _tls_variables(certificate: Certificate | None) -> Mapping[str, str]:
    if certificate is None:
        return {}
    return {"HTTPS_KEY_FILE": str(certificate.key), "HTTPS_CERT_FILE": str(certificate.chain)}


def _wait_until_up(service: Service, probe: str, times: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not _is_up(service, probe, times):
        if service.process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"{probe} does not answer 200:\n{service.output.decode()}", pytrace=False)
        time.sleep(_POLL_SECONDS)


def _is_up(service: Service, probe: str, times: int) -> bool:
    try:
        return all(service.get(probe).status == 200 for _ in range(times))
    except ConnectionRefusedError:
        return False
