"""The servers of a run: each on plain HTTP and on HTTPS, with one certificate, and the same base image."""

from __future__ import annotations

import grp
import http.client
import json
import os
import pwd
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs

from bench import processes
from image_service.standalone.sample import SAMPLE_OPENSHIFT_VERSION
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import ExitStack

SERVICE = "image-service"
NGINX = "nginx"
MOUNT = "mount"
"""The URL that suits a mount best, where a server has one."""
OPEN_FILES = 19_000
"""What a server may have open: 10,000 readers and some."""
INFRA_ENV = "5a3b1e00-0000-4000-8000-000000000001"
"""Of the stand-in for assisted-service, from its first start on."""

_CONFIGURATION = Path(__file__).with_name("nginx.conf")
_START_SECONDS = 180
_POLL_SECONDS = 0.1
_STOP_SECONDS = 20
_TOLD = 2000


@attrs.frozen
class Server:
    """A running server.

    Args:
        name: in tables.
        urls: of the image, by scheme, and perhaps ``MOUNT``.
        pid: of the process that counts, with its children; None: it is not known, or not on this machine.
    """

    name: str
    urls: Mapping[str, str]
    pid: int | None

    def cpu_seconds(self) -> float | None:
        """CPU time spent so far; None: that is not known."""
        return None if self.pid is None else processes.cpu_seconds(self.pid)

    def memory_bytes(self) -> int | None:
        """Memory that it takes now; None: that is not known."""
        return None if self.pid is None else processes.memory_bytes(self.pid)

    def size_bytes(self, scheme: str) -> int:
        """Size of the image."""
        return int(head(self.urls[scheme])["content-length"])


def start_nginx(stack: ExitStack, directory: Path, image: Path, certificate: Path) -> Server:
    """Start nginx on the plain file.

    Args:
        stack: ends it.
        directory: for its configuration and its log.
        image: the file.
        certificate: PEM, with the key.

    Returns:
        nginx, which answers.
    """
    http_port, https_port, mount_port = free_port(), free_port(), free_port()
    prefix = directory / "nginx"
    prefix.mkdir(exist_ok=True)
    (prefix / "nginx.conf").write_text(
        _filled_in(
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


def start_service(
    stack: ExitStack,
    directory: Path,
    images: Sequence[Path],
    certificate: Path,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start this service; it stands alone, unless the environment names assisted-service.

    Args:
        stack: ends it.
        directory: for its data and its log.
        images: the base images, whose versions are the names of the files; the first is what is measured.
        certificate: PEM, with the key.
        environment: more variables.

    Returns:
        the service, which answers.
    """
    http_port, https_port = free_port(), free_port()
    directory.mkdir(exist_ok=True)
    own = {
        "DATA_DIR": str(directory / "data"),
        "DOWNLOAD_RETRY_MIN": "300",  # no minimal ISO can be made of such a base: not tried while measuring
        "DRAIN_DELAY": "0",
        "DRAIN_TIMEOUT": "0",
        "HTTPS_CERT_FILE": str(certificate),
        "HTTPS_KEY_FILE": str(certificate),
        "HTTP_LISTEN_PORT": str(http_port),
        "HTTP_SERVES_IMAGES": "true",
        "LISTEN_PORT": str(https_port),
        "OS_IMAGES": json.dumps([_os_image(image) for image in images]),
        "STANDALONE_LISTEN": f"127.0.0.1:{free_port()}",
        **(environment or {}),
    }
    command = [sys.executable, "-m", "image_service.cli", "serve"]
    if "ASSISTED_SERVICE_HOST" not in own:
        command.append("--standalone")
    root = f"http://127.0.0.1:{http_port}"
    urls = [f"{root}/{image_path(image)}" for image in images]
    process = start(stack, command, directory / "service.log", lambda: _head_each(urls), own)
    path = image_path(images[0])
    return Server(
        SERVICE, {"http": f"{root}/{path}", "https": f"https://127.0.0.1:{https_port}/{path}"}, process.pid
    )


def start(
    stack: ExitStack,
    command: Sequence[str],
    log: Path,
    probe: Callable[[], object],
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process, and wait until it is up.

    Args:
        stack: ends it.
        command: its arguments, the program first.
        log: takes what it prints, behind what others have printed.
        probe: raises OSError as long as it is not up.
        environment: more variables.

    Returns:
        the process.

    Raises:
        SystemExit: it has ended, or is not up after a long time; tells what it printed.
    """
    with log.open("ab") as output:
        printed_before = output.tell()
        process = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, stdout=output, stderr=output
        )
    stack.callback(_stop, process)
    fault = _await(process, probe)
    if fault:
        printed = log.read_bytes()[printed_before:].decode(errors="replace")
        raise SystemExit(f"{shlex.join(command)}\n{fault}; {log.name} ends:\n{printed[-_TOLD:]}")
    return process


def end_on_sigterm() -> None:
    """Have SIGTERM end this process as an exception does, so that what it has started ends too."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


def image_path(image: Path, infra_env_id: str = INFRA_ENV) -> str:
    """Where the service serves the image of an infra-env made from a base image."""
    return f"byid/{infra_env_id}/{image.stem}/x86_64/full.iso"


def program(name: str) -> str:
    """Find a program, root's included; it is an error that there is none."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
    if found is None:
        raise SystemExit(f"{name} is not installed; `make deps` does that")
    return found


def head(url: str) -> dict[str, str]:
    """Ask for the head of an answer that must be 200; its fields, by lower-case name, come back."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=60)
    if parts.scheme == "https":
        connection = http.client.HTTPSConnection(parts.netloc, timeout=60, context=trusting())
    try:
        connection.request("HEAD", url.partition(parts.netloc)[2])
        answer = connection.getresponse()
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK:
        raise ConnectionError(f"{url}: {answer.status}")
    return {name.lower(): value for name, value in answer.getheaders()}


@cache
def trusting() -> ssl.SSLContext:
    """TLS towards servers of the bench, whose certificates nobody has signed; as wrk does it.

    Made once: that takes longer than a handshake.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _filled_in(**values: object) -> str:
    text = _CONFIGURATION.read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def _os_image(image: Path) -> dict[str, str]:
    return {
        "openshift_version": SAMPLE_OPENSHIFT_VERSION,  # for later ones an initrd would be derived
        "version": image.stem,
        "cpu_architecture": "x86_64",
        "url": image.as_uri(),
    }


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _await(process: subprocess.Popen[bytes], probe: Callable[[], object]) -> str | None:
    """Wait until a process is up; what comes back says why it will not be, or None."""
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            probe()
        except OSError as error:
            status = process.poll()
            if status is not None:
                return f"has ended with status {status} before it was up"
            if time.monotonic() >= deadline:
                return f"is not up after {_START_SECONDS} s: {error}"
            time.sleep(_POLL_SECONDS)
        else:
            return None


def _head_each(urls: Iterable[str]) -> None:
    for url in urls:
        head(url)
