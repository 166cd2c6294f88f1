"""The container image starts under any uid with a read-only root file system, and serves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from image_service import __version__
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.initrd import read_members
from tests.acceptance.clients import missing
from tests.acceptance.service import fetch
from tests.packaging.containers import ChrootRun, Podman, PodmanRun, by_podman, finish, works
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IMAGE = "localhost/image-service:test"
# Ports that are free: the container shares the network of the machine.
VARIABLES = {"DRAIN_DELAY": "0", "STANDALONE_LISTEN": "127.0.0.1:0"}
ARGUMENTS = {
    "VERSION": __version__,
    "REVISION": "0123456789abcdef0123456789abcdef01234567",
    "SOURCE": "https://git.example.com/image-service",
    "SOURCE_DATE_EPOCH": "1700000000",
}


@pytest.fixture(scope="module")
def image(podman: Podman, sources: Path) -> Iterator[str]:
    podman.make_base()
    podman.build(sources, IMAGE, ARGUMENTS)
    yield IMAGE
    podman.remove(IMAGE)


@pytest.fixture(scope="module")
def runners(podman: Podman, image: str) -> dict[str, PodmanRun | ChrootRun]:
    """Find the ways in which this machine can run containers."""
    in_chroot = ChrootRun(podman, image)
    found: dict[str, PodmanRun | ChrootRun] = {}
    if runner := by_podman(podman, image):
        found["podman"] = runner
    if works(in_chroot):
        found["chroot"] = in_chroot
    return found or missing("neither podman nor a chroot can run a container here")


@pytest.fixture(params=["podman", "chroot"])
def runner(
    request: pytest.FixtureRequest, runners: dict[str, PodmanRun | ChrootRun]
) -> PodmanRun | ChrootRun:
    if request.param not in runners:
        pytest.skip(f"{request.param} cannot run containers on this machine; {', '.join(runners)} can")
    return runners[request.param]


def run(runner: PodmanRun | ChrootRun, script: str) -> list[str]:
    return finish(runner.command(["-c", f"set -e; {script}"], {}, entrypoint="sh")).splitlines()


def test_container_runs_as_any_uid_and_writes_only_data_dir(runner: PodmanRun | ChrootRun) -> None:
    writable = "for place in /data /opt /tmp /var/tmp /usr; do test ! -w $place || echo $place; done"
    assert run(runner, f"id -u; id -g; {writable}; touch /data/ours") == ["54321", "0", "/data"]


def test_arguments_are_those_of_the_program(runner: PodmanRun | ChrootRun) -> None:
    assert finish(runner.command(["--version"], {})) == f"image-service {__version__}"


def test_container_without_arguments_serves(runner: PodmanRun | ChrootRun) -> None:
    ended = subprocess.run(runner.command([], {}), capture_output=True, text=True, check=False)
    assert ended.returncode == os.EX_CONFIG
    assert "ASSISTED_SERVICE_HOST: is not set, but required" in ended.stdout + ended.stderr


def test_labels_are_those_of_the_build_arguments(podman: Podman, image: str) -> None:
    labels = podman.inspect(image)["Config"]["Labels"]
    found = [labels[f"org.opencontainers.image.{name}"] for name in ("version", "revision", "source")]
    assert found == [ARGUMENTS[name] for name in ("VERSION", "REVISION", "SOURCE")]


def test_sbom_describes_the_packages_that_are_installed(runners: dict[str, PodmanRun | ChrootRun]) -> None:
    runner = next(iter(runners.values()))
    sbom = "\n".join(run(runner, "cat /opt/image-service/sbom.cdx.json"))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(sbom) is None
    document = json.loads(sbom)
    code = (
        "from importlib.metadata import distributions as d; print(*(f'{i.name}=={i.version}' for i in d()))"
    )
    installed = run(runner, f'/opt/image-service/bin/python -c "{code}"')[0].split()
    subject, components = document["metadata"]["component"], document["components"]
    assert subject["name"] == "image-service"
    described = [f"{component['name']}=={component['version']}" for component in (subject, *components)]
    assert sorted(described) == sorted(installed)
    assert all(component["externalReferences"][-1]["hashes"] for component in components)
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    assert "file://" not in sbom


def test_container_contains_xorriso(runner: PodmanRun | ChrootRun) -> None:
    assert run(runner, "command -v xorriso") == ["/usr/bin/xorriso"]


def test_container_has_the_plugin_cache(runner: PodmanRun | ChrootRun) -> None:
    plugins = "/opt/image-service/lib/python3*/site-packages/twisted/plugins"
    newer = run(runner, f"cd {plugins}; test -s dropin.cache; find . -name '*.py' -newer dropin.cache")
    assert newer == []


def test_container_serves_until_sigterm(runner: PodmanRun | ChrootRun, podman: Podman) -> None:
    variables = VARIABLES | {"LISTEN_PORT": str(free_port())}
    with started(runner, ["serve", "--standalone"], variables) as process:
        url = next((event["url"] for event in logged(process) if event["message"].startswith("try it")), None)
        assert url is not None, "the service ended"
        health, image = fetch(urljoin(url, "/health")), fetch(url)
        _, *probe = podman.inspect(IMAGE)["Healthcheck"]["Test"]
        probed = finish(runner.command(probe[1:], variables, entrypoint=probe[0]))
        os.killpg(process.pid, signal.SIGTERM)
        assert "the service has stopped" in [event["message"] for event in logged(process)]
    assert (health.status, image.status, probed) == (200, 200, "ok")
    assert served_config(image.body)["ignition"]


@contextmanager
def started(
    runner: PodmanRun | ChrootRun, arguments: list[str], variables: dict[str, str]
) -> Iterator[subprocess.Popen[str]]:
    """Start a container in a process group of its own: without root, podman passes no signals on."""
    command = runner.command(arguments, variables)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def logged(process: subprocess.Popen[str]) -> Iterator[dict[str, str]]:
    """Read the service's log to its end."""
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def served_config(iso: bytes) -> dict[str, Any]:
    """Read the Ignition config from a live ISO."""
    area = read_live_iso(lambda offset, length: iso[offset : offset + length], len(iso)).ignition
    members = read_members(iso[area.offset : area.offset + area.length])
    config: dict[str, Any] = json.loads(members["config.ign"].data)
    return config
