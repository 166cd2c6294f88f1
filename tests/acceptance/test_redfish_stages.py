"""``image-service boot --follow`` while qemu's HTTP client reads the virtual CD by ranges."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import pytest

from tests.acceptance.boot_iso import make_boot_iso
from tests.acceptance.clients import needs_client
from tests.acceptance.guest import machine_command, medium
from tests.acceptance.mount_watcher import watching
from tests.acceptance.service import CHECKOUT, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.acceptance.test_mounts import CONFIG, VERSION, opened, running_site
from tests.acceptance.test_redfish import FIRST, PASSWORD, Bmc, emulator, one
from tests.forks import Fork
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.acceptance.service import Certificate

pytestmark = pytest.mark.acceptance


@contextmanager
def following(bmc: Bmc, url: str, admin_url: str, output: IO[bytes]) -> Iterator[Fork]:
    """Boot the machine, and follow it until the block ends."""
    command = [sys.executable, "-m", "image_service.cli", "boot", url, *one(bmc, FIRST), "--cacert", bmc.ca]
    options = ("--no-doctor", "--yes", "--follow", "--admin", admin_url)
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
    with Fork([*command, *options], cwd=CHECKOUT, env=environment, stdout=output, stderr=output) as boot:
        try:
            yield boot
        finally:
            boot.kill()


def followed(output: Path) -> list[str]:
    """Return what the command has printed about the machine, without its name."""
    printed = output.read_text()
    assert PASSWORD not in printed
    return [line.partition(": ")[2] for line in printed.splitlines()]


def test_stages_are_followed_as_they_are_read(certificate: Certificate, tmp_path: Path) -> None:
    """The machine is qemu-io, which reads what the test tells it to."""
    orders = tmp_path / "orders"
    os.mkfifo(orders)
    command = ["/bin/sh", "-c", f"exec {needs_client('qemu-io')} -r -f raw '{{url}}' <{orders}"]
    with (
        running_site(tmp_path) as site,
        emulator(tmp_path, certificate, "bmc", command) as bmc,
        (tmp_path / "output").open("wb") as output,
    ):
        infra_env = site.service.register(VERSION, CONFIG)
        url = f"{site.service.url}/byid/{infra_env}/{VERSION}/x86_64/full.iso"
        with opened(site, site.service.register(VERSION, CONFIG), "full.iso") as image:  # of the same layout
            places = {
                "firmware": image.find("images/efiboot.img"),
                "boot loader": image.find("EFI/redhat/grub.cfg"),
                "kernel": image.find("images/pxeboot/vmlinuz"),
                "initrd": image.find("images/pxeboot/initrd.img"),
                "ignition": image.find("images/ignition.img"),
            }
        with following(bmc, url, site.admin_url, output) as boot, orders.open("w") as machine:
            wait_for(lambda: "probed" in followed(tmp_path / "output"))
            for stage, place in places.items():
                for offset in range(0, place.length, 1 << 20):
                    length = min(1 << 20, place.length - offset)
                    machine.write(f"read {place.offset + offset} {length}\n")
                machine.flush()
                wait_for(lambda stage=stage: stage in followed(tmp_path / "output"))  # type: ignore[misc]
            boot.send_signal(signal.SIGINT)
            assert boot.wait(60) == 130
    model, inserted, *stages = followed(tmp_path / "output")
    assert model.endswith(", power off")
    assert inserted.endswith("; restarted to boot from it once")
    assert stages == ["probed", *places]


@pytest.mark.soak
def test_stages_of_a_boot_are_followed(certificate: Certificate, tmp_path: Path) -> None:
    """The machine is a virtual one, which boots from the URL."""
    iso = tmp_path / "boot.iso"
    make_boot_iso(iso)
    admin = f"127.0.0.1:{free_port()}"
    environment = {"ADMIN_LISTEN": admin, "MOUNT_STALL_SECONDS": "30"}
    with (
        run_service(tmp_path, [os_image(iso, VERSION)], environment=environment) as service,
        emulator(tmp_path, certificate, "bmc", machine_command(*medium("cd", "{url}"))) as bmc,
        (tmp_path / "output").open("wb") as output,
    ):
        infra_env = service.register(VERSION, CONFIG)
        url = f"{service.url}/byid/{infra_env}/{VERSION}/x86_64/full.iso"
        with (
            watching(f"http://{admin}", infra_env) as seen,
            following(bmc, url, f"http://{admin}", output) as boot,
        ):
            assert boot.wait(600) == 0
    _, _, *stages = followed(tmp_path / "output")
    assert stages[-1] == "ignition, stalled"  # this guest does not read the root file system
    shown = [stage for stage in stages if re.fullmatch("[a-z ]+", stage)]
    assert shown == [stage for stage in seen.stages if stage in shown]
