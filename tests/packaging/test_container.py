"""The container image starts under any user with a read-only root file system, and serves."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest

from image_service.coreos.initrd import read_members
from image_service.coreos.live_iso import read_live_iso
from tests.acceptance.clients import missing
from tests.acceptance.service import fetch
from tests.packaging.conftest import CHECKOUT
from tests.packaging.containers import ChrootRun, Podman, PodmanRun, chroot_run, podman_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)

IMAGE = "localhost/image-service:test"
# Any ports that are free: the container shares the network of the machine.
VARIABLES = {"LISTEN_PORT": "0", "STANDALONE_LISTEN": "127.0.0.1:0"}


@pytest.fixture(scope="module")
def podman() -> Podman:
    storage = CHECKOUT / ".cache" / "containers"
    storage.mkdir(parents=True, exist_ok=True)
    return Podman(storage)


@pytest.fixture(scope="module")
def image(podman: Podman, sources: Path) -> Iterator[str]:
    for name in ("Dockerfile", ".dockerignore"):
        (sources / name).write_text((CHECKOUT / name).read_text())
    podman.make_base()
    podman.build(sources, IMAGE)
    yield IMAGE
    podman.run("image", "umount", "--all", "--force")
    podman.run("image", "rm", "--force", IMAGE)
    podman.run("image", "prune", "--force")


@pytest.fixture(params=[podman_run, chroot_run])
def runner(request: pytest.FixtureRequest, podman: Podman, image: str) -> PodmanRun | ChrootRun:
    found: PodmanRun | ChrootRun | None = request.param(podman, image)
    if found is None:
        if not (podman_run(podman, image) or chroot_run(podman, image)):
            missing("neither podman nor a chroot can run a container here")
        pytest.skip(f"{request.param.__name__} does not work on this machine; the other way does")
    return found


def run(runner: PodmanRun | ChrootRun, script: str) -> str:
    command = runner.command(["sh", "-c", f"set -e; {script}"], {})
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_runs_as_any_user_and_writes_only_data(runner: PodmanRun | ChrootRun) -> None:
    writable = "for place in /data /opt /tmp /var/tmp /usr; do test ! -w $place || echo $place; done"
    assert run(runner, f"id -u; id -g; {writable}; touch /data/ours") == "123456\n0\n/data\n"


def test_plugins_are_cached(runner: PodmanRun | ChrootRun) -> None:
    plugins = "/opt/image-service/lib/python3*/site-packages/twisted/plugins"
    stale = run(runner, f"cd {plugins}; test -s dropin.cache; find . -name '*.py' -newer dropin.cache")
    assert stale == ""


def test_serves_until_it_is_told_to_end(runner: PodmanRun | ChrootRun, podman: Podman) -> None:
    command = runner.command([*podman.inspect(IMAGE)["Entrypoint"], "--standalone"], VARIABLES)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = announced_url(process)
            health, image = fetch(urljoin(url, "/health")), fetch(url)
            process.terminate()
            output, errors = process.communicate()
        finally:
            process.kill()
    assert (health.status, image.status, process.returncode) == (200, 200, 0), output + errors
    assert served_config(image.body)["ignition"]


def announced_url(process: subprocess.Popen[str]) -> str:
    """Read what the service logs until it tells where the sample is."""
    assert process.stdout is not None
    for line in process.stdout:
        event = json.loads(line)
        if event["message"].startswith("try it"):
            url: str = event["url"]
            return url
    pytest.fail(f"the service ended: {process.communicate()[1]}", pytrace=False)


def served_config(iso: bytes) -> dict[str, Any]:
    """Read the Ignition config out of a live ISO."""
    area = read_live_iso(lambda offset, length: iso[offset : offset + length], len(iso)).ignition
    members = read_members(iso[area.offset : area.offset + area.length])
    config: dict[str, Any] = json.loads(members["config.ign"].data)
    return config
