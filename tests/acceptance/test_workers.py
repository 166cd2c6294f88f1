"""Several processes that serve as one."""

from __future__ import annotations

import hashlib
import json
import re
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.readers import Reader, reading
from tests.acceptance.service import SERVE, TWISTD, Certificate, Service, os_image, run_service
from tests.coreos.iso_builder import live_files, write_sparse_iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.acceptance

VERSION = "workers"
ROOTFS_BYTES = 8 * 1024 * 1024
FOR_EVER = "100000"
COMMANDS = {"twistd": (*TWISTD, "--standalone"), "image-service": (*SERVE, "--standalone")}
_PATIENCE_SECONDS = 100
_POLL_SECONDS = 0.02
_OPEN = r'base image .* is failed.*"worker": (\d)'  # to derive what it is not asked for; it is served


@attrs.frozen
class Served:
    """An image that two workers serve, and its bytes."""

    service: Service
    path: str
    content: bytes = attrs.field(repr=False)

    @property
    def supervisor(self) -> int:
        """Its process identifier."""
        return self.service.process.pid

    def workers(self) -> dict[int, int]:
        """The workers that run: number by process identifier."""
        children = Path(f"/proc/{self.supervisor}/task/{self.supervisor}/children").read_text()
        return dict(filter(None, map(_worker, map(int, children.split()))))

    def read(self, stack: ExitStack) -> Reader:
        """Begin to read the image."""
        reader = stack.enter_context(reading(self.service.url + self.path, ca=self.service.ca))
        reader.read_head()
        return reader

    def metrics(self) -> dict[str, float]:
        """What the page of metrics says: values by name and labels."""
        lines = self.service.get("/metrics").body.decode().splitlines()
        return {
            name: float(value)
            for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        }

    def metric(self, name: str) -> float:
        """One value of that page."""
        return self.metrics()[f"assisted_image_service_{name}"]

    def check_ended_well(self, status: int = 0) -> None:
        """Wait for the end, of workers too."""
        assert self.service.process.wait(_PATIENCE_SECONDS) == status, self.service.output.decode()


def _worker(pid: int) -> tuple[int, int] | None:
    try:
        *_, argument, _ = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return pid, json.loads(argument)["worker"]
    except (OSError, ValueError, KeyError):  # gone, or not yet what it is to become
        return None


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(_POLL_SECONDS)


@contextmanager
def serving(
    directory: Path,
    command: Sequence[str] = COMMANDS["image-service"],
    certificate: Certificate | None = None,
    **environment: str,
) -> Iterator[Served]:
    iso = directory / "base.iso"
    write_sparse_iso(iso, live_files(rootfs=hashlib.shake_128(b"workers").digest(ROOTFS_BYTES)), {})
    with run_service(
        directory,
        [os_image(iso, VERSION)],
        command=command,
        certificate=certificate,
        environment={"WORKERS": "2", **environment},
    ) as service:
        infra_env_id = service.register(VERSION, {"ignition": {"version": "3.2.0"}})
        path = f"/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"
        until(lambda: {"0", "1"} <= set(re.findall(_OPEN, service.stdout.decode())))
        yield Served(service, path, service.get(path).body)


@pytest.mark.parametrize("command", COMMANDS)
def test_all_workers_serve_and_say_which_they_are(command: str, tmp_path: Path) -> None:
    with serving(tmp_path, COMMANDS[command]) as served:
        assert sorted(served.workers().values()) == [0, 1]

        def have_served() -> set[str]:
            assert served.service.get(served.path).body == served.content
            return set(re.findall(r'"GET .*"worker": (\d)', served.service.stdout.decode()))

        until(lambda: have_served() == {"0", "1"})
