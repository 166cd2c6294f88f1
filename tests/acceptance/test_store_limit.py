"""Thousands of credentials: the snapshot store keeps its limit, mounts survive, and base images find room."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.tenants import Site, Tenants, bearer, iso_of, serving
from tests.acceptance.upstream import Reply, running
from tests.core.formats.filesystems.iso_builder import build_live_iso
from tests.server.catalog import origin
from tests.variants import ONE_OR_TWO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.acceptance.service import Answer, Certificate

pytestmark = pytest.mark.acceptance

MIB = 1024 * 1024
STORE_BYTES = 8 * MIB
OVER_BYTES = STORE_BYTES // 10 + 8 * MIB
CREDENTIALS = 240
CREDENTIALS_KEPT = 64
CONFIG_BYTES = 150_000
"""240 of them are 34 MiB."""
CLIENTS = 8
OWNER = "owner"
WORKERS = pytest.mark.parametrize("workers", ONE_OR_TWO)
ENVIRONMENT = {
    "SNAPSHOT_STORE_BYTES": str(STORE_BYTES),
    "SNAPSHOT_TTL": "3600",
    "DATA_DIR_MAX_BYTES": str(STORE_BYTES + OVER_BYTES + 4 * MIB),
}


def large_config() -> bytes:
    """Return a config that does not compress."""
    noise = Random("config").randbytes(CONFIG_BYTES // 2).hex()  # noqa: S311 - any bytes do
    files = [{"path": "/etc/noise", "contents": {"source": f"data:,{noise}"}}]
    return json.dumps({"ignition": {"version": "3.2.0"}, "storage": {"files": files}}).encode()


@contextmanager
def sizes(directory: Path) -> Iterator[list[int]]:
    """Measure all files of a directory but the base image, again and again, until the block ends."""
    found: list[int] = []
    ended = Event()

    def measure() -> None:
        while not ended.wait(0.02):
            found.append(size(directory))

    measuring = Thread(target=measure)
    measuring.start()
    try:
        yield found
    finally:
        ended.set()
        measuring.join()


def size(directory: Path) -> int:
    total = 0
    for file in directory.rglob("*"):
        try:
            total += file.stat().st_size if file.is_file() else 0
        except FileNotFoundError:
            continue
    return total


def ask_with_credentials(
    get: Callable[[str, dict[str, str], str], Answer], infra_envs: list[str]
) -> list[int]:
    """Ask for images with as many credentials; return the statuses."""

    def ask(number: int) -> int:
        path = iso_of(infra_envs[number % len(infra_envs)])
        return get(path, bearer(f"credential {number}"), "HEAD").status

    with ThreadPoolExecutor(CLIENTS) as pool:
        return list(pool.map(ask, range(CREDENTIALS)))


@pytest.mark.soak
@WORKERS
def test_store_keeps_its_limit_and_the_mounts_in_progress(
    certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    environment = {**ENVIRONMENT, "WORKERS": str(workers)}
    with running(certificate) as upstream, origin.running() as mirror:
        mirror.serve("/late.iso", origin.Reply(build_live_iso()))
        tenants = Tenants(upstream)
        # No owner: each credential is a question of its own.
        infra_envs = [tenants.register(None, large_config()) for _ in range(CREDENTIALS // 40)]
        mounted = tenants.register(OWNER)
        with serving(tmp_path, tenants, environment) as site:
            before = site.mount(OWNER, mounted)
            with sizes(tmp_path / "data") as found, reading_on(site, mounted):
                assert set(ask_with_credentials(site.service.get_image, infra_envs)) == {200}
            assert max(found) <= STORE_BYTES + OVER_BYTES
        upstream.tell(mounted, Reply(status=503))
        late = {"openshift_version": "late", "cpu_architecture": "x86_64", "version": "late"}
        images = [{**late, "url": mirror.url("/late.iso")}]
        with serving(tmp_path, tenants, environment, images) as site:
            after = site.mount(OWNER, mounted)
            assert (after.headers["ETag"], after.body) == (before.headers["ETag"], before.body)
            site.service.wait_for("base image .*late.* is (ready|degraded)")


@contextmanager
def reading_on(site: Site, infra_env_id: str) -> Iterator[None]:
    """Read ranges of a mount until the block ends."""
    ended, statuses = Event(), set()

    def read() -> None:
        while not ended.wait(0.1):
            statuses.add(site.request(OWNER, infra_env_id).status)

    reading = Thread(target=read)
    reading.start()
    try:
        yield
    finally:
        ended.set()
        reading.join()
    assert statuses == {206}


@pytest.mark.soak
@WORKERS
def test_store_keeps_64_credentials_of_an_infra_env(
    certificate: Certificate, tmp_path: Path, workers: int
) -> None:
    environment = {**ENVIRONMENT, "WORKERS": str(workers)}
    with running(certificate) as upstream:
        tenants = Tenants(upstream)
        infra_env_id = tenants.register(None)
        with serving(tmp_path, tenants, environment) as site:
            assert set(ask_with_credentials(site.service.get_image, [infra_env_id])) == {200}
        upstream.tell(infra_env_id, Reply(status=503))
        with serving(tmp_path, tenants, environment) as site:
            kept = ask_with_credentials(site.service.get, [infra_env_id]).count(200)
            assert 0 < kept <= CREDENTIALS_KEPT
