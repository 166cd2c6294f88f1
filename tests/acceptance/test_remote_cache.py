"""The block cache of a service: no hole is sent, the disk use is bounded, kill -9 leaves no wrong byte."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.remote import (
    CONFIG,
    RangeReader,
    etag_of,
    get_ready,
    image_path,
    local_entry,
    random_ranges,
    remote_entry,
    run_all,
    used_bytes,
)
from tests.acceptance.service import run_service
from tests.nginx import running_nginx
from tests.remote_base import MIB, dense_base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tests.acceptance.service import Service
    from tests.nginx import Nginx

pytestmark = pytest.mark.acceptance

BUDGET_BYTES = 128 * MIB
ALLOWED = 1.05
_CONNECTIONS = 4


@attrs.frozen
class Effort:
    """How much is read.

    Args:
        megabytes: of the base.
        ranges: under eviction.
        range_bytes: of one at most.
        kills: in mid-fill.
    """

    megabytes: int
    ranges: int
    range_bytes: int
    kills: int


EFFORTS = [
    pytest.param(Effort(megabytes=256, ranges=400, range_bytes=2 * MIB, kills=2), id="small"),
    pytest.param(
        Effort(160, 1_000_000, 64 * 1024, kills=50),
        id="full",
        marks=[pytest.mark.soak, pytest.mark.timeout(3600)],
    ),
]


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[Nginx]:
    """Run an origin."""
    (tmp_path / "nginx").mkdir()
    with running_nginx(tmp_path / "nginx") as server:
        yield server


def entries_of(nginx: Nginx, megabytes: int) -> list[Mapping[str, object]]:
    """Return a remote base and the same one on the disk; no byte of its root file system is zero."""
    iso = nginx.files / "a.iso"
    if not iso.exists():
        iso.write_bytes(dense_base(megabytes))
    return [remote_entry(nginx.url("/a.iso"), "remote"), local_entry(iso, "local")]


def new_reader(service: Service, infra_env: str, content: bytes) -> RangeReader:
    """Return a reader of the remote image."""
    path = image_path(infra_env, "remote")
    return RangeReader(service, path, {etag_of(service, path): content})


@attrs.define
class DiskUse:
    """Watches how much of the disk a directory takes.

    Args:
        directory: whose files are added up.
        most: bytes so far.
    """

    directory: Path
    most: int = 0
    _stopped: threading.Event = attrs.field(factory=threading.Event)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Add up the files again and again until the block ends."""
        thread = threading.Thread(target=self._measure)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join()

    def _measure(self) -> None:
        while not self._stopped.wait(0.02):
            self.most = max(self.most, used_bytes(self.directory))


@pytest.mark.soak
@pytest.mark.parametrize("effort", EFFORTS)
def test_ranges_under_eviction_are_right_and_the_disk_use_is_bounded(
    effort: Effort, nginx: Nginx, tmp_path: Path
) -> None:
    """A hole would be sent as zeros, of which the base has none."""
    cache = tmp_path / "cache"
    environment = {
        "REMOTE_CACHE_DIR": str(cache),
        "REMOTE_CACHE_MAX_BYTES": str(BUDGET_BYTES),
        "WORKERS": "2",
    }
    with run_service(tmp_path, entries_of(nginx, effort.megabytes), environment=environment) as service:
        infra_env = service.register("local", CONFIG)
        content = get_ready(service, image_path(infra_env, "local")).body
        readers = [new_reader(service, infra_env, content) for _ in range(_CONNECTIONS)]
        share = effort.ranges // _CONNECTIONS
        watch = DiskUse(cache)
        with watch.measured():
            run_all(
                partial(read_all, reader, len(content), share, effort.range_bytes, seed)
                for seed, reader in enumerate(readers)
            )
        assert sum(reader.outcomes["right"] for reader in readers) == share * _CONNECTIONS
        assert BUDGET_BYTES / 2 < watch.most <= BUDGET_BYTES * ALLOWED
        assert service.total(r"remote_.*evict.*") > 0


def read_all(reader: RangeReader, size: int, count: int, range_bytes: int, seed: int) -> None:
    """Read random ranges until each of them came."""
    for first, length in random_ranges(size, count, seed, range_bytes):
        reader.read_at_last(first, length)
    reader.close()


@pytest.mark.parametrize("effort", EFFORTS)
def test_kill_in_mid_fill_leaves_no_wrong_byte(effort: Effort, nginx: Nginx, tmp_path: Path) -> None:
    megabytes = 64
    entries, random = entries_of(nginx, megabytes), Random(17)  # noqa: S311 - the same in each run
    (tmp_path / "service").mkdir()
    infra_env, content = "", b""
    for attempt in range(effort.kills):
        with run_service(tmp_path / "service", entries, ends_with=-signal.SIGKILL) as service:
            infra_env = infra_env or service.register("local", CONFIG)
            content = content or get_ready(service, image_path(infra_env, "local")).body
            readers = [new_reader(service, infra_env, content) for _ in range(_CONNECTIONS)]
            calls = [
                partial(read_until_killed, reader, len(content), attempt * 10 + seed)
                for seed, reader in enumerate(readers)
            ]
            run_all([*calls, partial(kill_after, service, readers, random.randint(1, 40))])
            assert sum(reader.outcomes["right"] for reader in readers) > 0
    with run_service(tmp_path / "service", entries) as service:
        reader = new_reader(service, infra_env, content)
        reader.read_everything()
        reader.close()


def kill_after(service: Service, readers: Sequence[RangeReader], count: int) -> None:
    """End the service with SIGKILL once so many ranges were read."""
    while sum(reader.outcomes["right"] for reader in readers) < count:
        time.sleep(0.001)
    service.process.kill()


def read_until_killed(reader: RangeReader, size: int, seed: int) -> None:
    """Read random ranges until the service is gone."""
    for first, length in random_ranges(size, 10_000, seed):
        reader.read(first, length)
        if reader.outcomes["aborted"]:
            break
    reader.close()
