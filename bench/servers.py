"""The servers of a run: each on plain HTTP and on HTTPS, with one certificate, and the same base image."""

from __future__ import annotations

import grp
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import time
from http import HTTPStatus
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench import processes
from bench.ports import free_port
from image_service.common.http.tls import client_context
from image_service.server.standalone.sample import SAMPLE_OPENSHIFT_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack

SERVICE = "image-service"
NGINX = "nginx"
MOUNT = "mount"
"""Key of the URL that is best for a mount, if a server has one."""
OPEN_FILES = 19_000
"""Descriptors of a server: 10,000 readers and some."""
INFRA_ENV = "5a3b1e00-0000-4000-8000-000000000001"
"""Made by the stand-in for assisted-service at its first start."""
CHECKOUT = Path(__file__).resolve().parents[1]

_CONFIGURATION = Path(__file__).with_name("nginx.conf")
_START_SECONDS = 600
_POLL_SECONDS = 0.1
_STOP_SECONDS = 20
_LOG_TAIL = 2000


class LeftOut(SystemExit):
    """A scenario cannot be measured on this machine; the message says why."""


@attrs.frozen
class Server:
    """A running server.

    Args:
        name: in tables.
        urls: of the image, by scheme, and perhaps ``MOUNT``.
        pid: of the process whose cost is measured, with its children; None: unknown.
    """

    name: str
    urls: Mapping[str, str]
    pid: int | None

    def cpu_seconds(self) -> float | None:
        """Return CPU time used so far; None: unknown."""
        return None if self.pid is None else processes.cpu_seconds(self.pid)

    def memory_bytes(self) -> int | None:
        """Return memory used now; None: unknown."""
        return None if self.pid is None else processes.memory_bytes(self.pid)

    def size_bytes(self, scheme: str) -> int:
        """Return the size of the image."""
        return int(head(self.urls[scheme])["content-length"])


def start_nginx(stack: ExitStack, directory: Path, image: Path, certificate: Path) -> Server:
    """Start nginx with the plain file, and wait until it responds.

    Args:
        stack: stops it.
        directory: for its configuration and its log.
        image: the file.
        certificate: PEM, with the key.
    """
    http_port, https_port, mount_port = free_port(), free_port(), free_port()
    prefix = directory / "nginx"
    prefix.mkdir(exist_ok=True)
    (prefix / "nginx.conf").write_text(
        _configuration(
            USER=pwd.getpwuid(os.getuid()).pw_name,
            GROUP=grp.getgrgid(os.getgid()).gr_name,
            FILES=OPEN_FILES,
            HTTP_PORT=http_port,
            HTTPS_PORT=https_port,
            MOUNT_PORT=mount_port,
            CERTIFICATE=certificate,
            ROOT=image.parent,
        )
    )
    command = [program("nginx"), "-p", str(prefix), "-c", "nginx.conf", "-e", "stderr"]
    urls = {
        "http": f"http://127.0.0.1:{http_port}/{image.name}",
        "https": f"https://127.0.0.1:{https_port}/{image.name}",
        MOUNT: f"http://127.0.0.1:{mount_port}/{image.name}",
    }
    process = start(stack, command, prefix / "nginx.log", lambda: _head_each(urls.values()))
    return Server(NGINX, urls, process.pid)


def start_service(  # noqa: PLR0913 - three have defaults
    stack: ExitStack,
    directory: Path,
    images: Sequence[Path],
    certificate: Path,
    environment: Mapping[str, str],
    *,
    name: str = SERVICE,
    checkout: Path = CHECKOUT,
    module: str = "image_service.cli",
) -> Server:
    """Start the service of a checkout, and wait until it responds.

    Args:
        stack: stops it.
        directory: for its data and its log.
        images: the base images, whose versions are the names of the files; the first is measured.
        certificate: PEM, with the key.
        environment: more variables; without ASSISTED_SERVICE_HOST the service is standalone.
        name: in tables.
        checkout: whose code runs, by `interpreter_of` it.
        module: of its command.
    """
    http_port, https_port = free_port(), free_port()
    directory.mkdir(exist_ok=True, parents=True)
    own = {
        "DATA_DIR": str(directory / "data"),
        "DRAIN_DELAY": "0",
        "DRAIN_TIMEOUT": "0",
        "HTTPS_CERT_FILE": str(certificate),
        "HTTPS_KEY_FILE": str(certificate),
        "HTTP_LISTEN_PORT": str(http_port),
        "HTTP_SERVES_IMAGES": "true",
        "LISTEN_PORT": str(https_port),
        "OS_IMAGES": json.dumps([os_image(image) for image in images]),
        "STANDALONE_LISTEN": f"127.0.0.1:{free_port()}",
        "PYTHONPATH": str(checkout),
        **environment,
    }
    command = [interpreter_of(checkout), "-m", module, "serve"]
    if "ASSISTED_SERVICE_HOST" not in own:
        command.append("--standalone")
    root = f"http://127.0.0.1:{http_port}"
    urls = [f"{root}/{image_path(image)}" for image in images]
    process = start(
        stack,
        command,
        directory / "service.log",
        lambda: _head_each(urls),
        environment=own,
        working_directory=checkout,
    )
    path = image_path(images[0])
    return Server(
        name, {"http": f"{root}/{path}", "https": f"https://127.0.0.1:{https_port}/{path}"}, process.pid
    )


def interpreter_of(checkout: Path) -> str:
    """Return the interpreter of a peer's own environment, else that of this process."""
    own = checkout / ".venv/bin/python"
    return str(own) if checkout != CHECKOUT and own.exists() else sys.executable


def start(  # noqa: PLR0913 - same
    stack: ExitStack,
    command: Sequence[str],
    log: Path,
    probe: Callable[[], object],
    *,
    environment: Mapping[str, str] | None = None,
    working_directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process, and wait until it is up.

    Args:
        stack: stops it.
        command: its arguments, the program first.
        log: its output is appended.
        probe: raises OSError until the process is up.
        environment: more variables.
        working_directory: ``python -m`` imports from it first.

    Raises:
        SystemExit: the process has ended, or is not up after a long time; with the end of its output.
    """
    with log.open("ab") as output:
        printed_before = output.tell()
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=output,
            cwd=working_directory,
        )
    stack.callback(_stop, process)
    fault = _await(process, probe)
    if fault:
        printed = log.read_bytes()[printed_before:].decode(errors="replace")
        raise SystemExit(f"{shlex.join(command)}\n{fault}; {log.name} ends:\n{printed[-_LOG_TAIL:]}")
    return process


def stop_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit, so that the processes started here are stopped."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def image_path(image: Path, infra_env_id: str = INFRA_ENV) -> str:
    """Return the path of the image of an infra-env from a base image."""
    return f"byid/{infra_env_id}/{image.stem}/x86_64/full.iso"


def os_image(image: Path) -> dict[str, object]:
    """Return the entry of OS_IMAGES for a file."""
    return {
        "openshift_version": SAMPLE_OPENSHIFT_VERSION,  # for later ones an initrd would be derived
        "version": image.stem,
        "cpu_architecture": "x86_64",
        "url": image.as_uri(),
    }


def program(name: str) -> str:
    """Return the path of a program, root's included; raises LeftOut if it is missing."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        raise LeftOut(f"{name} is not installed: `make deps` installs most programs")
    return found


def head(url: str) -> dict[str, str]:
    """Send a HEAD, whose status must be 200; return the fields by lower-case name."""
    parts = urlsplit(url)
    connection = HTTPConnection(parts.netloc, timeout=60)
    if parts.scheme == "https":
        connection = HTTPSConnection(parts.netloc, timeout=60, context=client_context(insecure=True))
    try:
        connection.request("HEAD", url.partition(parts.netloc)[2])
        response = connection.getresponse()
    finally:
        connection.close()
    if response.status != HTTPStatus.OK:
        raise ConnectionError(f"{url}: {response.status}")
    return {name.lower(): value for name, value in response.getheaders()}


def _configuration(**values: object) -> str:
    text = _CONFIGURATION.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], probe: Callable[[], object]) -> str | None:
    """Wait until a process is up; return why it is not, or None."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            probe()
        except OSError as error:
            status = process.poll()
            if status is not None:
                return f"exited with status {status} before it was up"
            if time.monotonic() >= deadline:
                return f"is not up after {_START_SECONDS} s: {error}"
            time.sleep(_POLL_SECONDS)
        else:
            return None


def _head_each(urls: Iterable[str]) -> None:
    for url in urls:
        head(url)
