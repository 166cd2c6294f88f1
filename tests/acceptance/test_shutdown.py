"""Shutdown: responses that are finished or aborted, and nothing left behind."""

from __future__ import annotations

import hashlib
import json
import signal
import ssl
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance import upstream
from tests.acceptance.readers import Reader, reading
from tests.acceptance.service import (
    CHECKOUT,
    INFRA_ENVS,
    SERVE,
    TWISTD,
    Certificate,
    Service,
    fetch,
    os_image,
    run_service,
)
from tests.core.formats.filesystems.iso_builder import (
    build_live_iso,
    live_files,
    write_sparse_iso,
    write_sparse_live_iso,
)
from tests.server.catalog import origin
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

pytestmark = pytest.mark.acceptance

VERSION = "going"
ROOTFS_BYTES = 8 * 1024 * 1024
DOWNLOADS = 20
FOR_EVER = "100000"
INFRA_ENV_ID = "5a3b1e00-0000-4000-8000-000000000009"
HANGING = origin.Reply(b"{", promised=2**20, hold=True)
HANGING_LOOKUP = """
import socket, time
look_up = socket.getaddrinfo
def hang(host, *arguments, **options):
    if host == "hanging.test":
        print("looking up", host, flush=True)
        time.sleep(100000)
    return look_up(host, *arguments, **options)
socket.getaddrinfo = hang
"""
COMMANDS = {"twistd": (*TWISTD, "--standalone"), "image-service": (*SERVE, "--standalone")}
_POLL_SECONDS = 0.02
_TIMEOUT_SECONDS = 100


@attrs.frozen
class Served:
    """An image and its bytes."""

    service: Service
    path: str
    content: bytes = attrs.field(repr=False)

    @property
    def url(self) -> str:
        """The URL of the image."""
        return self.service.url + self.path

    def read(self, stack: ExitStack, path: str | None = None) -> Reader:
        """Begin to read the image, or another path."""
        reader = stack.enter_context(reading(self.service.url + (path or self.path), ca=self.service.ca))
        reader.read_head()
        return reader

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send SIGTERM."""
        self.service.process.send_signal(number)

    def check_ended_well(self) -> None:
        """Wait until the process has exited with 0."""
        assert self.service.process.wait(_TIMEOUT_SECONDS) == 0, self.service.output.decode()


@contextmanager
def serving(
    directory: Path,
    command: Sequence[str] = COMMANDS["image-service"],
    certificate: Certificate | None = None,
    **environment: str,
) -> Iterator[Served]:
    iso = directory / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=hashlib.shake_128(b"going").digest(ROOTFS_BYTES)), {})
    images = [os_image(iso, VERSION)]
    with run_service(
        directory, images, command=command, certificate=certificate, environment=environment
    ) as service:
        infra_env_id = service.register(VERSION, {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        yield Served(service, path, service.get_image(path).body)


def until_refused(served: Served) -> None:
    """Wait until connections are refused."""

    def refused() -> bool:
        try:
            served.service.get("/live")
        except (ConnectionError, ssl.SSLEOFError):  # the latter of one that was accepted, and closed unasked
            return True
        return False

    until(refused)


def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


@pytest.mark.parametrize(
    ("command", "scheme"),
    [
        ("image-service", "http"),
        soaked("image-service", "https"),
        soaked("twistd", "http"),
        ("twistd", "https"),
    ],
)
def test_shutdown_finishes_downloads_in_progress(
    command: str, scheme: str, certificate: Certificate, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        given = certificate if scheme == "https" else None
        served = stack.enter_context(serving(tmp_path, COMMANDS[command], given, DRAIN_TIMEOUT=FOR_EVER))
        readers = [served.read(stack) for _ in range(DOWNLOADS)]
        idle = served.read(stack, "/live")
        idle.read_to_the_end()
        served.end()
        until_refused(served)
        assert idle.at_end()
        for reader in readers:
            assert reader.read_to_the_end() == served.content
            assert reader.at_end()
        served.check_ended_well()


def test_requests_before_listening_ends_are_answered_with_connection_close(tmp_path: Path) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, DRAIN_DELAY=FOR_EVER, DRAIN_TIMEOUT=FOR_EVER))
        reader = served.read(stack)
        assert served.service.get("/health").status == 200
        served.end()
        until(lambda: served.service.get("/health").status != 200)
        health = served.service.get("/health")
        assert (health.status, health.headers["Connection"]) == (503, "close")
        image = fetch(served.url)
        assert (image.body, image.headers["Connection"]) == (served.content, "close")
        assert fetch(served.service.url + "/live").status == 200
        assert reader.read_to_the_end() == served.content
        slow = served.read(stack)
        served.end()  # the second time: at once
        served.check_ended_well()
        with pytest.raises(ConnectionResetError):
            slow.read_to_the_end()


def test_downloads_beyond_drain_timeout_are_aborted(tmp_path: Path) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, DRAIN_TIMEOUT="0.5"))
        reader = served.read(stack)
        served.end()
        served.check_ended_well()
        with pytest.raises(ConnectionResetError):
            reader.read_to_the_end()
        assert b"the service is shutting down" in served.service.output


def test_sigint_waits_for_responses_in_progress_only(tmp_path: Path) -> None:
    with ExitStack() as stack:
        served = stack.enter_context(serving(tmp_path, DRAIN_DELAY=FOR_EVER, DRAIN_TIMEOUT=FOR_EVER))
        reader = served.read(stack)
        served.end(signal.SIGINT)
        until_refused(served)
        assert reader.read_to_the_end() == served.content
        served.check_ended_well()


def test_shutdown_cancels_downloads_and_derivations_of_base_images(tmp_path: Path) -> None:
    """A base image being hashed, one being downloaded, and an upstream request without answer."""
    huge = tmp_path / "huge.iso"
    write_sparse_live_iso(huge, 2**36)  # as a hole; to hash it takes a minute
    small = tmp_path / "small.iso"
    small.write_bytes(build_live_iso())
    with origin.running() as server, ExitStack() as stack:
        server.serve(f"{INFRA_ENVS}/{INFRA_ENV_ID}/downloads/files", HANGING)
        server.serve(f"{INFRA_ENVS}/{INFRA_ENV_ID}", HANGING)
        hanging = {**os_image(huge, "hanging"), "url": server.serve("/hanging.iso", HANGING)}
        images = [os_image(small, "small"), os_image(huge, "huge"), hanging]
        environment = {
            "ASSISTED_SERVICE_HOST": f"127.0.0.1:{server.port}",
            "DRAIN_TIMEOUT": FOR_EVER,
            "UPSTREAM_TIMEOUT": FOR_EVER,
        }
        service = stack.enter_context(
            run_service(tmp_path, images, command=SERVE, environment=environment, probe="/live")
        )
        for pattern in ("small.* is (deriving)", "huge.* is (verifying)", "hanging.* is (downloading)"):
            service.wait_for(pattern)
        asking = stack.enter_context(
            reading(f"{service.url}/byid/{INFRA_ENV_ID}/small/x86_64/full.iso", ca=None)
        )
        until(lambda: any(INFRA_ENV_ID in request.target for request in server.requests))
        service.process.terminate()
        asking.read_head()
        assert (asking.status, asking.fields()["connection"]) == (504, "close")
        assert service.process.wait(_TIMEOUT_SECONDS) == 0, service.output.decode()


def test_second_signal_exits_although_a_thread_hangs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HANGING_LOOKUP)
    images = [{**os_image(tmp_path / "x.iso", "hanging"), "url": "http://hanging.test/x.iso"}]
    environment = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT}"}
    command = COMMANDS["image-service"]
    with run_service(tmp_path, images, command=command, environment=environment, probe="/live") as service:
        service.wait_for(r"looking up (hanging\.test)")
        service.process.terminate()
        service.wait_for("(shutting down)")
        service.process.terminate()
        assert service.process.wait(_TIMEOUT_SECONDS) == 0


def test_shutdown_while_assisted_service_hangs_logs_no_failure(
    certificate: Certificate, tmp_path: Path
) -> None:
    iso = tmp_path / "base.iso"
    iso.write_bytes(build_live_iso())
    with upstream.running(certificate) as assisted:
        known = assisted.register(version=VERSION)
        environment = {**assisted.environment, "SNAPSHOT_TTL": "1"}
        with run_service(
            tmp_path, [os_image(iso, VERSION)], command=SERVE, environment=environment
        ) as service:
            path = f"/byid/{known}/{VERSION}/x86_64/full.iso"
            assert service.get_image(path).status == 200
            calls = assisted.count(known)
            assisted.tell(known, upstream.Reply(after_seconds=None))
            deadline = time.monotonic() + _TIMEOUT_SECONDS
            while assisted.count(known) == calls:  # it is validated again
                assert service.get(path, method="HEAD").status == 200
                assert time.monotonic() < deadline
            unknown = assisted.register(upstream.Reply(after_seconds=None), version=VERSION)
            assert service.get(f"/byid/{unknown}/{VERSION}/x86_64/full.iso").status == 504
    lines = [json.loads(line) for line in service.stdout.splitlines()]
    begin = [line["message"] for line in lines].index("shutting down")
    assert [line for line in lines[begin:] if line["level"] != "info"] == []
