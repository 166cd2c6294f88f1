"""It boots: a guest that reads its medium straight from the URL tells which customization it got."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance.boot_iso import KERNEL_ARGUMENTS, make_boot_iso
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.service import Service, os_image, run_service

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

# Emulation, because hardware virtualization is not everywhere; a boot takes some 5 s on a fast machine.
pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(400)]

VERSION = "boot"
APPENDED = ["rd.neednet=1", "ip=dhcp", "customized.by=image-service"]
CONFIG = {"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "gecos": "Jürgen Große"}]}}

_PATIENCE_SECONDS = 300
_MACHINE = ["-accel", "tcg", "-m", "512", "-nodefaults", "-no-reboot", "-display", "none", "-serial", "stdio"]
_REPORT = re.compile(
    rb"report\n(?P<arguments>.*)\n(?P<digest>\w{64})  .*\n(?P<config>.*)\nend of report", re.DOTALL
)


@attrs.frozen
class Report:
    """What the guest found.

    Args:
        arguments: the kernel's command line.
        digest: SHA-256 of the Ignition config, hexadecimal.
        config: its first 2 KiB.
    """

    arguments: str
    digest: str
    config: bytes


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serve the ISO that boots."""
    directory = tmp_path_factory.mktemp("boot")
    iso = directory / "boot.iso"
    make_boot_iso(iso)
    with run_service(directory, [os_image(iso, VERSION)]) as running:
        yield running


@pytest.mark.parametrize("medium", ["cd", "usb"])
@pytest.mark.parametrize("firmware", ["bios", "uefi"])
def test_guest_gets_config_and_arguments(
    firmware: str, medium: str, service: Service, tmp_path: Path
) -> None:
    infra_env_id = service.register(VERSION, CONFIG, APPENDED)
    report = _boot(_firmware(firmware, tmp_path), _medium(medium, _url(service, infra_env_id)))
    assert report.arguments.endswith(" ".join([KERNEL_ARGUMENTS, *APPENDED]))
    assert report.config == service.ignition_config(infra_env_id)


def test_guest_gets_a_config_that_only_xz_makes_fit(service: Service) -> None:
    """The kernel takes less than coreos-installer does: xz only with CRC32."""
    noise = base64.b64encode(hashlib.shake_256().digest(150_000)).decode()
    files = [{"path": path, "contents": {"source": f"data:;base64,{noise}"}} for path in ("/a", "/b")]
    infra_env_id = service.register(VERSION, {**CONFIG, "storage": {"files": files}})
    report = _boot([], _medium("cd", _url(service, infra_env_id)))
    assert report.digest == hashlib.sha256(service.ignition_config(infra_env_id)).hexdigest()


def _url(service: Service, infra_env_id: str) -> str:
    return f"{service.url}/byid/{infra_env_id}/{VERSION}/x86_64/full.iso"


def _boot(firmware: Sequence[str], medium: Sequence[str]) -> Report:
    console = run_client(
        "qemu-system-x86_64", *_MACHINE, *firmware, *medium, patience_seconds=_PATIENCE_SECONDS
    )
    found = _REPORT.search(console.replace(b"\r\n", b"\n"))
    assert found, console.decode(errors="replace")
    return Report(found["arguments"].decode(), found["digest"].decode(), found["config"])


def _firmware(name: str, directory: Path) -> Sequence[str]:
    """SeaBIOS is qemu's default; OVMF wants a variable store that it can write."""
    if name == "bios":
        return []
    ovmf = Path(needs_client("/usr/share/OVMF"))
    variables = directory / "variables.fd"
    shutil.copyfile(ovmf / "OVMF_VARS_4M.fd", variables)
    flash = "if=pflash,format=raw,file="
    code = f"{flash}{ovmf / 'OVMF_CODE_4M.fd'},readonly=on"
    return ["-machine", "q35", "-drive", code, "-drive", f"{flash}{variables}"]


def _medium(name: str, url: str) -> Sequence[str]:
    drive = f"format=raw,readonly=on,file={url}"
    if name == "cd":
        return ["-drive", f"media=cdrom,{drive}"]
    stick = ["-device", "qemu-xhci", "-device", "usb-storage,drive=stick"]
    return ["-drive", f"if=none,id=stick,{drive}", *stick]
