"""A guest boots from a remote base whose origin is 20 ms away, or in a registry, under OVMF."""

from __future__ import annotations

import os
import statistics
import tarfile
import time
from typing import TYPE_CHECKING

import pytest

from bench.delaying_proxy import delaying_proxy
from tests.acceptance.boot_iso import KERNEL_ARGUMENTS, make_boot_iso
from tests.acceptance.clients import run_client
from tests.acceptance.guest import boot, firmware, medium
from tests.acceptance.image_states import PATIENCE_SECONDS, images_of, until
from tests.acceptance.remote import CONFIG, image_path, local_entry, remote_entry
from tests.acceptance.service import run_service
from tests.nginx import running_nginx
from tests.ports import free_port
from tests.registry_server import running_docker_registry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from tests.acceptance.service import Service

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(1000)]

ROUND_TRIP_MS = 20
GIBIBYTES = 60
ROUNDS = 3
FACTOR = 2


@pytest.fixture(scope="module")
def boot_iso(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a bootable ISO, enlarged by a hole as a base of 60 GiB is by content that nothing reads."""
    path = tmp_path_factory.mktemp("boot") / "boot.iso"
    make_boot_iso(path)
    return path


@pytest.fixture
def entries(boot_iso: Path, tmp_path: Path) -> Iterator[list[Mapping[str, object]]]:
    """Publish the ISO by nginx, 20 ms away, enlarged to 60 GiB; return its entry and a local one."""
    (tmp_path / "nginx").mkdir()
    port = free_port()
    with running_nginx(tmp_path / "nginx") as nginx:
        remote = nginx.files / "boot.iso"
        remote.write_bytes(boot_iso.read_bytes())
        os.truncate(remote, GIBIBYTES * 2**30)
        with delaying_proxy(port, f"127.0.0.1:{nginx.port}", ROUND_TRIP_MS):
            url = f"http://127.0.0.1:{port}/boot.iso"
            yield [remote_entry(url, "remote"), local_entry(boot_iso, "local")]


def boot_seconds(service: Service, version: str, directory: Path) -> float:
    """Boot an image as a CD under OVMF, and return how long it took."""
    directory.mkdir(exist_ok=True)
    infra_env = service.register(version, CONFIG)
    url = service.url + image_path(infra_env, version)
    began = time.monotonic()
    report = boot(*firmware("uefi", directory), *medium("cd", url))
    assert report.arguments.endswith(KERNEL_ARGUMENTS)
    assert report.config == service.ignition_config(infra_env)
    return time.monotonic() - began


@pytest.mark.soak
def test_uefi_boots_from_a_remote_base(entries: list[Mapping[str, object]], tmp_path: Path) -> None:
    with run_service(tmp_path, entries) as service:
        until(service, "remote", "ready")
        boot_seconds(service, "remote", tmp_path / "guest")


@pytest.mark.soak
def test_guest_boots_from_an_image_of_a_registry(boot_iso: Path, tmp_path: Path) -> None:
    """One stays there and is verified as a whole meanwhile; of a container image the file is extracted."""
    (tmp_path / "registry").mkdir()
    with tarfile.open(tmp_path / "layer.tar", "w") as archive:
        archive.add(boot_iso, "coreos/coreos-x86_64.iso")
    with running_docker_registry(tmp_path / "registry") as registry:
        registry.push("tests/iso", "1", {"boot.iso": boot_iso.read_bytes()})
        machine_os_images = f"{registry.host}/machine-os-images:5.0"
        run_client("crane", "append", "-f", tmp_path / "layer.tar", "-t", machine_os_images)
        extracted = f"oci://{machine_os_images}#/coreos/coreos-x86_64.iso"
        entries = [
            remote_entry(f"oci://{registry.host}/tests/iso:1", "remote", verify=True),
            remote_entry(extracted, "extracted", remote=False),
        ]
        environment = {"INSECURE_REGISTRIES": registry.host}
        with run_service(tmp_path, entries, environment=environment) as service:
            for version in ("remote", "extracted"):
                until(service, version, "ready")
                boot_seconds(service, version, tmp_path / "guest")
            deadline = time.monotonic() + PATIENCE_SECONDS
            while images_of(service)["remote"]["verified"] != "digest":
                assert time.monotonic() < deadline, service.output.decode()
                time.sleep(0.1)


@pytest.mark.soak
def test_boot_from_a_remote_base_takes_at_most_twice_as_long(
    entries: list[Mapping[str, object]], tmp_path: Path
) -> None:
    """Each round has a new cache, of which the boot set alone is local when the guest starts."""
    seconds: dict[str, list[float]] = {"remote": [], "local": []}
    for number in range(ROUNDS):
        directory = tmp_path / str(number)
        directory.mkdir()
        with run_service(directory, entries) as service:
            until(service, "remote", "ready")
            for version, measured in seconds.items():
                measured.append(boot_seconds(service, version, directory / "guest"))
    medians = {version: statistics.median(measured) for version, measured in seconds.items()}
    print(f"seconds: {seconds}; remote ÷ local: {medians['remote'] / medians['local']:.2f}")  # noqa: T201 - the result
    assert medians["remote"] <= FACTOR * medians["local"], seconds
