"""kill -9 at each step: the next process finds nothing wrong, and resumes."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.acceptance.clients import missing, needs_client
from tests.core.formats.filesystems.iso_builder import build_live_iso, live_files
from tests.registry_origin import RegistryOrigin, layer_of
from tests.server.catalog import fetching
from tests.server.catalog.origin import Origin, Resource
from tests.variants import soaked

ROOT = Path(__file__).parents[3]


def iso(number: int, megabytes: float) -> bytes:
    noise = hashlib.shake_256(bytes([number])).digest(int(megabytes * 2**20))
    return build_live_iso({**live_files(), "images/pxeboot/initrd.img": noise})


def serve(origin: Origin, content: bytes, drip: int = 0) -> str:
    return origin.serve(f"/{hashlib.sha256(content).hexdigest()}", Resource(content, drip=drip))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the environment of the processes."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(ROOT)


def start(*arguments: str | Path, before: tuple[str, ...] = ()) -> list[str]:
    command = [*before, sys.executable, "-m", "tests.server.catalog.fetching", *map(str, arguments)]
    done = subprocess.run(command, stdout=-1, stderr=-1, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize("stride", [soaked(1), 6])
def test_kill_at_each_step_loses_nothing(origin: Origin, tmp_path: Path, stride: int) -> None:
    url = serve(origin, iso(0, 0.1))
    outputs = start(f"steps={stride}", tmp_path / "data", url)
    assert set(outputs) == {fetching.digest_of(url)}
    assert len(outputs) > 50 // stride  # one for each kill, and one at the end


@pytest.mark.soak
def test_kill_at_each_step_of_an_extraction_loses_nothing(origin: Origin, tmp_path: Path) -> None:
    content, registry = iso(0, 0.1), RegistryOrigin(origin)
    name = f"coreos/{hashlib.sha256(content).hexdigest()}"
    registry.manifest([layer_of({name: content, "z": b"after it"}), layer_of({"etc/x": b""})])
    url = registry.url(path=f"/{name}")
    outputs = start("steps=1", tmp_path / "data", url)
    assert set(outputs) == {fetching.digest_of(url)}
    assert len(outputs) > 50


@pytest.mark.parametrize("times", [soaked(30), 12])
def test_repeated_kills_are_resumed(origin: Origin, tmp_path: Path, times: int) -> None:
    urls = [serve(origin, iso(number, 1), drip=8192) for number in (1, 2)]
    outputs = start(f"random-steps={times}", tmp_path / "data", *urls)
    assert set(outputs) == {fetching.digest_of(url) for url in urls}
    resumed = [request for request in origin.requests if request.headers["Range"]]
    assert len(resumed) > times // 6
    assert len(origin.requests) <= 2 * (times + 2)


def test_kills_on_a_full_disk_lose_nothing(origin: Origin, tmp_path: Path) -> None:
    urls = [serve(origin, iso(number, 2), drip=8192) for number in (1, 2)]
    outputs = start("full-disk", tmp_path, *urls, before=private_mounts())
    digests = {fetching.digest_of(url) for url in urls}
    assert set(outputs[-2:]) == digests
    reasons = {line for line in outputs if line not in digests}
    assert reasons
    assert all("not enough disk space" in line or line == "No space left on device" for line in reasons)


def test_two_processes_on_one_directory_download_each_image_once(origin: Origin, tmp_path: Path) -> None:
    urls = [serve(origin, iso(number, 1), drip=4096) for number in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        outputs = list(pool.map(lambda order: start("fetch", tmp_path, *urls[::order]), (1, -1)))
    assert [set(lines) for lines in outputs] == [{fetching.digest_of(url) for url in urls}] * 2
    assert len(origin.requests) == 2


def private_mounts() -> tuple[str, ...]:
    """Return a command prefix for a mount namespace; skip the test if that is not permitted."""
    unshare = needs_client("unshare")
    command = (unshare, "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))
    if subprocess.run([*command, "true"], check=False, stderr=-1).returncode:
        missing("unshare: mount namespaces are not permitted on this machine")
    return command
