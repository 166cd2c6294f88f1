"""SIGHUP: files are read again in every process, and no connection is lost."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import ssl
import time
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import attrs
import pytest
import trustme

from tests.acceptance.readers import reading
from tests.acceptance.service import SERVE, Certificate, os_image, run_service
from tests.acceptance.test_workers import until
from tests.core.formats.filesystems.iso_builder import live_files, write_sparse_iso
from tests.variants import soaked

if TYPE_CHECKING:
    from tests.acceptance.service import Service

pytestmark = pytest.mark.acceptance

DOWNLOADS = 50
ROOTFS_BYTES = 4 * 1024 * 1024
REQUESTS = 12  # several for each worker, whichever the kernel chooses
SECRET = "a-token-that-no-log-may-have"
COMMAND = (*SERVE, "--standalone")


@attrs.frozen
class Files:
    """The files that are read again."""

    directory: Path
    authority: trustme.CA = attrs.field(factory=trustme.CA)

    @property
    def certificate(self) -> Certificate:
        return Certificate(*(self.directory / name for name in ("tls.key", "tls.crt", "ca.crt")))

    @property
    def variables(self) -> dict[str, str]:
        return {
            "OS_IMAGES": f"@{self.directory / 'images.json'}",
            "LOGLEVEL": f"@{self.directory / 'level'}",
        }

    def write_images(self, *images: dict[str, str]) -> None:
        (self.directory / "images.json").write_text(json.dumps(images))

    def write_level(self, level: str) -> None:
        (self.directory / "level").write_text(f"{level}\n")

    def write_certificate(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(self.certificate.key)
        issued.cert_chain_pems[0].write_to_path(self.certificate.chain)
        self.authority.cert_pem.write_to_path(self.certificate.ca)

    def make_iso(self, version: str) -> dict[str, str]:
        path = self.directory / f"{version}.iso"
        write_sparse_iso(
            path, live_files(rootfs=hashlib.shake_128(version.encode()).digest(ROOTFS_BYTES)), {}
        )
        return os_image(path, version)


def reload(service: Service, message: str) -> str:
    """Send SIGHUP; return the next line of the log with this message."""
    seen = len(service.stdout)

    def lines() -> list[str]:
        return [line for line in service.stdout[seen:].decode().splitlines() if message in line]

    service.process.send_signal(signal.SIGHUP)
    until(lines)
    return str(json.loads(lines()[0])["message"])


def shown_certificate(service: Service) -> bytes | None:
    parts = urlsplit(service.url)
    context = ssl.create_default_context(cafile=service.ca)
    with (
        socket.create_connection((parts.hostname, parts.port), timeout=100) as plain,
        context.wrap_socket(plain, server_hostname=parts.hostname) as connection,
    ):
        return connection.getpeercert(binary_form=True)


def versions(service: Service) -> set[str]:
    """Return the versions in ``GET /images``, which all workers agree about."""
    found = set()
    for _ in range(REQUESTS):
        images = json.loads(service.get("/images").body)["images"]
        found.add(frozenset(image["version"] for image in images))
    (agreed,) = found
    return set(agreed)


def are_ready(service: Service) -> bool:
    """Return True if all workers serve the base images, which lack a recipe of their minimal ISO."""
    answers = [json.loads(service.get("/images").body)["images"] for _ in range(REQUESTS)]
    return all(image["state"] in {"ready", "degraded"} for images in answers for image in images)


def workers(service: Service) -> list[int]:
    pid = service.process.pid
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


@pytest.mark.parametrize("workers_count", [soaked("1"), "2"])
@pytest.mark.parametrize("scheme", [soaked("http"), "https"])
def test_reloads_lose_no_connection_and_no_byte_of_50_downloads(
    tmp_path: Path, workers_count: str, scheme: str
) -> None:
    files = Files(tmp_path)
    first, second, third = map(files.make_iso, ("first", "second", "third"))
    files.write_images(first)
    files.write_level("info")
    files.write_certificate()
    environment = {**files.variables, "WORKERS": workers_count}
    certificate = files.certificate if scheme == "https" else None
    with (
        run_service(
            tmp_path, [], command=COMMAND, certificate=certificate, environment=environment
        ) as service,
        ExitStack() as stack,
    ):
        infra_env = service.register("first", {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env}/first/x86_64/full.iso"
        until(lambda: are_ready(service))
        expected = hashlib.sha256(service.get_image(path).body).hexdigest()
        readers = [stack.enter_context(reading(service.url + path, ca=service.ca)) for _ in range(DOWNLOADS)]
        for reader in readers:
            reader.read_head()
            assert reader.status == 200

        # A good configuration.
        before = shown_certificate(service) if scheme == "https" else None
        files.write_images(first, second)
        files.write_level("debug")
        files.write_certificate()
        message = reload(service, "reloaded: ")
        assert message.startswith("reloaded: OS_IMAGES, LOGLEVEL")
        assert versions(service) == {"first", "second"}
        if scheme == "https":
            assert shown_certificate(service) != before
        assert reload(service, "reloaded: ") == "reloaded: nothing changed"

        # A bad one: the service applies nothing of it, and logs all its faults.
        files.write_images({**third, "url": f"https://user:{SECRET}@127.0.0.1/x#"}, third)
        files.write_level("loud")
        if scheme == "https":
            files.certificate.key.write_text("no key")
        message = reload(service, "cannot reload")
        assert "keeping the previous configuration" in message
        assert "OS_IMAGES" in message
        assert "LOGLEVEL" in message
        assert ("HTTPS_KEY_FILE" in message) == (scheme == "https")
        assert versions(service) == {"first", "second"}

        # Signals for other purposes, and several at once.
        files.write_images(third)
        files.write_level("info")
        files.write_certificate()
        for pid in (service.process.pid, *workers(service)):
            for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGHUP):
                os.kill(pid, number)
        until(lambda: b"reloaded: OS_IMAGES, LOGLEVEL" in service.stdout.partition(b"cannot reload")[2])
        assert versions(service) == {"third"}

        for reader in readers:
            assert hashlib.sha256(reader.read_to_the_end()).hexdigest() == expected
        assert service.total("aborted_responses_total.*") == 0
    assert SECRET not in service.output.decode()
    assert "Traceback" not in service.output.decode()


@pytest.mark.soak
def test_worker_that_restarts_after_a_reload_has_the_new_configuration(tmp_path: Path) -> None:
    files = Files(tmp_path)
    first, second = files.make_iso("first"), files.make_iso("second")
    files.write_images(first)
    files.write_level("info")
    environment = {**files.variables, "WORKERS": "2"}
    with run_service(tmp_path, [], command=COMMAND, environment=environment) as service:
        files.write_images(second)
        reload(service, "reloaded: OS_IMAGES")
        # The text that was reloaded, not the later one of the file.
        files.write_images(first)
        os.kill(workers(service)[0], signal.SIGKILL)
        until(lambda: service.total("worker_restarts_total") == 1)
        assert versions(service) == {"second"}


def test_service_manager_is_notified_of_start_reload_and_stop(tmp_path: Path) -> None:
    files = Files(tmp_path)
    files.write_images(files.make_iso("first"))
    files.write_level("info")
    queue: SimpleQueue[dict[str, str]] = SimpleQueue()
    received: list[dict[str, str]] = []

    def receive_until(field: str) -> None:
        while not received or field not in received[-1]:
            received.append(queue.get(timeout=100))

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        address = f"image-service-test-{os.getpid()}"
        manager.bind(f"\0{address}")

        def receive_all() -> None:
            """Receive at once, as systemd does: the kernel may queue no more than ten datagrams."""
            while message := manager.recv(4096):
                queue.put(dict(line.split("=", 1) for line in message.decode().splitlines()))

        receiver = Thread(target=receive_all, daemon=True)  # ends with a failed test
        receiver.start()

        environment = {
            **files.variables,
            "WORKERS": "2",
            "NOTIFY_SOCKET": f"@{address}",
            "WATCHDOG_USEC": "200000",
        }
        with run_service(tmp_path, [], command=COMMAND, environment=environment) as service:
            receive_until("READY")
            for pid in workers(service):
                assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
            receive_until("WATCHDOG")
            while received[-1].get("STATUS") != "1 of 1 base image is ready":
                received.append({})
                receive_until("STATUS")
            begun = time.monotonic_ns() // 1000
            service.process.send_signal(signal.SIGHUP)
            receive_until("RELOADING")
            assert begun <= int(received[-1]["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
            receive_until("READY")
        receive_until("STOPPING")
        manager.shutdown(socket.SHUT_RD)
        receiver.join()
