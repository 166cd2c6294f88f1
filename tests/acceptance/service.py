"""The service as a process of its own, started as an operator starts it, and a plain client of it."""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest

from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TWISTD = (str(Path(sys.executable).with_name("twistd")), "--nodaemon", "--pidfile=", "image-service")
SERVE = (sys.executable, "-m", "image_service.cli", "serve")
INFRA_ENVS = "/api/assisted-install/v2/infra-envs"

CHECKOUT = Path(__file__).parents[2]
_PATIENCE_SECONDS = 100
_POLL_SECONDS = 0.05


@attrs.frozen
class Certificate:
    """What a TLS listener shows, and the CA that signed it, each a PEM file."""

    key: Path
    chain: Path
    ca: Path


@attrs.frozen
class Answer:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, str]:
        """Read the content as a JSON object; everything of it that tests look at is text."""
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
    """Send one request, byte for byte as it is given, and read the answer to its end."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_PATIENCE_SECONDS)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca)
        connection = http.client.HTTPSConnection(parts.netloc, timeout=_PATIENCE_SECONDS, context=context)
    with closing(connection):
        connection.request(method, url.partition(parts.netloc)[2], body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())


@attrs.frozen
class Service:
    """A service that runs.

    Args:
        process: for its identifier and its status.
        url: where it serves images.
        api_url: where its stand-in for assisted-service listens.
        directory: its working directory; ``data`` in it is ``DATA_DIR``.
        token: of the stand-in's API; None: it asks for none.
        ca: PEM file that its certificate is trusted by; None: plain HTTP.
    """

    process: subprocess.Popen[bytes]
    url: str
    api_url: str
    directory: Path
    token: str | None
    ca: Path | None

    @property
    def stdout(self) -> bytes:
        """What it has written there until now."""
        return (self.directory / "stdout").read_bytes()

    @property
    def output(self) -> bytes:
        """What it has written to stdout and stderr until now."""
        return self.stdout + (self.directory / "stderr").read_bytes()

    @property
    def descriptors(self) -> int:
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def wait_for(self, pattern: str) -> str:
        """Wait until something is printed; the first group of the pattern is what comes back."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while not (found := re.search(pattern, self.output.decode())):
            assert time.monotonic() < deadline, f"{pattern} is not printed:\n{self.output.decode()}"
            time.sleep(_POLL_SECONDS)
        return found[1]

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Ask for what is at ``path``."""
        return fetch(self.url + path, method, headers=headers, ca=self.ca)

    def ask_api(self, path: str, fields: Mapping[str, object] | None = None) -> Answer:
        """Ask the stand-in's API, or post a JSON object to it."""
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
        operations: Sequence[Mapping[str, str]] = (),
    ) -> str:
        """Register an infra-env; its identifier is what comes back.

        Args:
            version: of its base image.
            config: Ignition config.
            arguments: kernel arguments to append.
            architecture: of its base image.
            ramdisk: of minimal ISOs and PXE.
            operations: on kernel arguments, besides.
        """
        fields: dict[str, object] = {
            "name": version,
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
        """Ask the stand-in for the Ignition config that it makes for an infra-env."""
        answer = self.ask_api(f"{INFRA_ENVS}/{infra_env_id}/downloads/files?file_name=discovery.ign")
        assert answer.status == 200, answer
        return answer.body


@contextmanager
def run_service(  # noqa: PLR0913 - all but two have defaults
    directory: Path,
    os_images: Sequence[Mapping[str, str]],
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
        directory: for everything that it writes; a new one, or that of a service that it comes after.
        os_images: ``OS_IMAGES``; empty: the variable is not set.
        command: what starts it.
        certificate: for HTTPS.
        environment: more variables.
        reached_by: the host by which clients reach it, where it is not this one's name.
        probe: what must answer 200 before the block begins.
        port: where it serves images; None: any.
        ends_with: another status, where the block itself ends it.
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
        subprocess.Popen(command, cwd=directory, env=variables, stdout=stdout, stderr=stderr) as process,
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
            _wait_until_up(service, probe)
            yield service
            process.terminate()
            assert process.wait(_PATIENCE_SECONDS) == ends_with, service.output.decode()
        finally:
            process.kill()


def os_image(path: Path, version: str, architecture: str = "x86_64") -> dict[str, str]:
    """Make the entry of ``OS_IMAGES`` for a file."""
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


def _wait_until_up(service: Service, probe: str) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _is_up(service, probe):
        if service.process.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"{probe} does not answer 200:\n{service.output.decode()}", pytrace=False)
        time.sleep(_POLL_SECONDS)


def _is_up(service: Service, probe: str) -> bool:
    try:
        return service.get(probe).status == 200
    except ConnectionRefusedError:
        return False
