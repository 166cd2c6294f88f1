"""The container image starts under any uid with a read-only root file system, and serves."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import attrs
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from image_service import __version__
from image_service.core.families.coreos.live_iso import read_live_iso
from image_service.core.formats.initrd import read_members
from tests import forks
from tests.acceptance.clients import missing
from tests.acceptance.readers import reading
from tests.acceptance.service import fetch, os_image
from tests.jobs.running_role import DISTRIBUTION, wait_until
from tests.packaging.containers import ANY_USER, ChrootRun, Podman, PodmanRun, by_podman, finish, works
from tests.ports import free_port
from tests.remote_base import dense_base

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.container

IMAGE = "localhost/image-service:test"
LOADTEST = (sys.executable, "-m", "image_service.cli", "loadtest")
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
def runner(podman: Podman, image: str) -> PodmanRun | ChrootRun:
    """Find the way in which this machine can run containers."""
    if found := by_podman(podman, image):
        return found
    in_chroot = ChrootRun(podman, image)
    return in_chroot if works(in_chroot) else missing("neither podman nor a chroot can run a container here")


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


def test_sbom_describes_the_packages_that_are_installed(runner: PodmanRun | ChrootRun) -> None:
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


@attrs.frozen
class Container:
    """A container that serves images of the large base image.

    Args:
        runner: that started it.
        process: of ``podman run``.
        directory: has its log.
        url: of an image.
    """

    runner: PodmanRun
    process: subprocess.Popen[bytes]
    directory: Path
    url: str

    @property
    def log(self) -> str:
        """Its log."""
        return (self.directory / "log").read_text()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal to its main process; return the exit status."""
        self.runner.podman.run(*self.runner.options, "kill", f"--signal={number.name}", NAME)
        return self.process.wait()


NAME = "image-service-container-test"
LARGE_MEGABYTES = 300  # more than the memory of a container
MEMORY = 256 * 2**20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("large")
    directory.chmod(0o755)
    (directory / "large.iso").write_bytes(dense_base(LARGE_MEGABYTES))
    return directory


@pytest.fixture
def serving(
    runner: PodmanRun | ChrootRun, large: Path, tmp_path: Path
) -> Iterator[Callable[..., AbstractContextManager[Container]]]:
    """Return a function that runs a container with one volume for its data; all are of one test."""
    if not isinstance(runner, PodmanRun):
        pytest.skip("podman cannot run containers here: only a mount namespace can; see `runner`")
    volumes = (f"--volume={NAME}:/data", f"--volume={large}:/srv/images:ro")

    @contextmanager
    def running(*options: str, **variables: str) -> Iterator[Container]:
        confined = attrs.evolve(runner, confined=(f"--name={NAME}", *volumes, *options))
        entry = os_image(Path("/srv/images/large.iso"), "4.17")
        ports = {"LISTEN_PORT": str(free_port()), "STANDALONE_LISTEN": f"127.0.0.1:{free_port()}"}
        given = {"DRAIN_DELAY": "0", "OS_IMAGES": json.dumps([entry]), **ports, **variables}
        command = confined.command(["serve", "--standalone"], given)
        log = tmp_path / "log"
        with log.open("wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as process:
            try:
                wait_until(lambda: b"try it" in log.read_bytes() or process.poll() is not None, log.read_text)
                offered = re.search(r"http://[^\s\"]+/full\.iso", log.read_text())
                yield Container(confined, process, tmp_path, offered[0] if offered else "")
            finally:
                runner.podman.run(*runner.options, "rm", "--force", "--time=0", "--ignore", NAME)

    yield running
    runner.podman.run("volume", "rm", "--force", NAME)


Serving = Callable[..., AbstractContextManager[Container]]


def test_container_serves_a_load_in_256_mib(serving: Serving, tmp_path: Path) -> None:
    api = f"127.0.0.1:{free_port()}"
    limits = (f"--memory={MEMORY}", f"--memory-swap={MEMORY}")
    with serving(*limits, STANDALONE_LISTEN=api) as container:
        files = ("memory.max", "memory/memory.limit_in_bytes")
        read = f"cd /sys/fs/cgroup; for file in {' '.join(files)}; do test ! -e $file || cat $file; done"
        podman, options = container.runner.podman, container.runner.options
        assert podman.run(*options, "exec", NAME, "sh", "-c", read) == str(MEMORY)
        url = re.sub("/byid/[^/]+/", "/byid/{infra_env}/", container.url)
        for profile in ("mount", "download"):
            wanted = (f"--profile={profile}", "--clients=32", "--duration=1s", "--slo=errors<0.1%")
            served = (url, "--infra-envs=20", f"--api=http://{api}", f"--report={tmp_path / profile}")
            tested = forks.run([*LOADTEST, *served, *wanted])
            assert tested.returncode == 0, tested.stdout + tested.stderr
        assert container.end() == 0, container.log


def test_container_finishes_a_download_when_it_is_stopped(serving: Serving) -> None:
    with serving(DRAIN_TIMEOUT="100000") as container, reading(container.url) as reader:
        whole = hashlib.sha256(fetch(container.url).body)
        reader.read_head()
        podman, options = container.runner.podman, container.runner.options
        with subprocess.Popen(
            podman.command(*options, "stop", "--time=1000", NAME), stdout=subprocess.DEVNULL
        ) as stop:
            wait_until(lambda: "shutting down" in container.log, lambda: container.log)
            assert hashlib.sha256(reader.read_to_the_end()).digest() == whole.digest()
            assert stop.wait() == 0
        assert container.process.wait() == 0, container.log


@pytest.mark.parametrize(
    ("number", "user"),
    [(signal.SIGKILL, ANY_USER), (signal.SIGTERM, "1001:0")],
    ids=["killed", "other uid"],
)
def test_next_container_serves_the_same_image_from_the_volume(
    serving: Serving, number: signal.Signals, user: str
) -> None:
    port = str(free_port())
    with serving(LISTEN_PORT=port) as first:
        before = fetch(first.url, "HEAD")
        assert first.end(number) == (128 + number if number is signal.SIGKILL else 0)
    with serving(f"--user={user}", LISTEN_PORT=port) as second:
        after = fetch(first.url, headers={"If-Match": before.headers["ETag"], "Range": "bytes=0-99"})
        assert (before.status, after.status) == (200, 206), second.log
        assert second.end() == 0


def test_container_of_another_group_names_the_owner_of_the_volume(serving: Serving) -> None:
    with serving() as first:
        assert first.end() == 0
    with serving("--user=1001:1001") as second:
        assert second.process.wait() == os.EX_CONFIG
        assert "/data belongs to uid 0 and gid 0" in second.log


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_jobs_image_composes_as_a_uid_without_a_name(podman: Podman, jobs_image: str) -> None:
    found = by_podman(podman, jobs_image) or missing("podman cannot run a container here")
    options = (f"--name={NAME}", "--passwd=false", "--user=1234567:0", f"--volume={NAME}:/data")
    runner = attrs.evolve(found, confined=options)
    inside = (*runner.options, "exec", NAME)

    def log() -> str:
        return subprocess.run(
            podman.command("logs", NAME), check=False, capture_output=True, text=True
        ).stdout

    command = runner.command(["jobs"], {"JOBS_LISTEN": "unix:{DATA_DIR}/jobs.sock"})
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: "the job engine answers" in log(), log)
            assert "1234567" not in podman.run(*inside, "cat", "/etc/passwd")
            wanted = ("--distribution", DISTRIBUTION, "--type", "guest-image", "--output", "/data/disk.qcow2")
            podman.run(*inside, "image-service", "compose", "start", *wanted)
            assert podman.run(*inside, "head", "--bytes=3", "/data/disk.qcow2") == "QFI"
            podman.run(*runner.options, "stop", "--time=60", NAME)
            assert process.wait() == 0
        finally:
            podman.run("rm", "--force", "--time=0", "--ignore", NAME)
            podman.run("volume", "rm", "--force", NAME)


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
