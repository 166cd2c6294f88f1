"""A guest boots its medium directly from the URL and reports the customization that it found."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tests.acceptance import boot_once
from tests.acceptance.boot_iso import KERNEL_ARGUMENTS, VOLUME_ID, make_boot_iso
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.cutting_proxy import cutting
from tests.acceptance.guest import HOST, NETWORK, Report, boot, firmware, medium, started
from tests.acceptance.mount_watcher import SeenMount, list_mounts, watching
from tests.acceptance.ramdisk import make_ramdisk
from tests.acceptance.service import Service, fetch, os_image, run_service
from tests.acceptance.tenants import wait_for
from tests.ports import free_port
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.acceptance, pytest.mark.boot]

SPLICED, DERIVED = "spliced", "derived"
"""One ISO for two versions of OpenShift: the later one needs nmstatectl beside a ramdisk."""
APPENDED = ["rd.neednet=1", "ip=dhcp", "customized.by=image-service"]
CONFIG = {"ignition": {"version": "3.4.0"}, "passwd": {"users": [{"name": "core", "gecos": "Jürgen Große"}]}}
CONFIGS = {
    "cd": CONFIG,
    # Larger than its area: the kernel has to decode it.
    "usb": CONFIG | {"text": base64.b64encode(random.Random(1).randbytes(220_000)).decode()},  # noqa: S311
}
STAGES = ["probed", "firmware", "boot loader", "kernel", "initrd", "ignition"]
CUTS = 4
EMPTY_SHA256 = hashlib.sha256().hexdigest()
RAMDISK_TEXT = "static network of eth0"


@attrs.frozen
class Host:
    """The service and its base ISO."""

    service: Service
    admin_url: str
    iso: Path

    def make_link(self, path: str) -> str:
        """Return a guest's URL of a pinned short link to a path."""
        document = {"url": self.guest_url + path, "pinned": True}
        fields = {"Content-Type": "application/json"}
        made = fetch(
            f"{self.admin_url}/api/v1/links", "POST", headers=fields, body=json.dumps(document).encode()
        )
        return made.json()["url"]

    def url(self, infra_env_id: str, version: str, file: str) -> str:
        """Return an image's URL for this machine."""
        return f"{self.service.url}/byid/{infra_env_id}/{version}/x86_64/{file}"

    @property
    def guest_url(self) -> str:
        """Return the service's URL for a guest."""
        return self.service.url.replace("127.0.0.1", HOST)

    def rootfs_digest(self, version: str) -> str:
        """Return the SHA-256 that the guest must find at the rootfs URL."""
        answer = self.service.get(f"/boot-artifacts/{version}/x86_64/rootfs.img")
        return hashlib.sha256(answer.body).hexdigest()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Serve the bootable ISO to this machine and to guests."""
    directory = tmp_path_factory.mktemp("boot")
    iso = directory / "boot.iso"
    make_boot_iso(iso)
    images = [
        os_image(iso, SPLICED) | {"openshift_version": "4.17"},
        os_image(iso, DERIVED) | {"openshift_version": "4.18"},
    ]
    listen = f"127.0.0.1:{free_port()}"
    with run_service(directory, images, reached_by=HOST, environment={"ADMIN_LISTEN": listen}) as running:
        running.wait_for("(the minimal ISO of the base image derived .x86_64.) is ready")
        yield Host(running, f"http://{listen}", iso)


@pytest.mark.parametrize(
    ("firmware_name", "medium_name"),
    [("bios", "cd"), soaked("bios", "usb"), soaked("uefi", "cd"), soaked("uefi", "usb")],
)
def test_guest_of_full_iso_reads_config_and_kernel_arguments(
    firmware_name: str, medium_name: str, host: Host, tmp_path: Path
) -> None:
    infra_env_id = host.service.register(SPLICED, CONFIGS[medium_name], APPENDED)
    url = host.url(infra_env_id, SPLICED, "full.iso")
    with watching(host.admin_url, infra_env_id) as seen:
        report = boot(*firmware(firmware_name, tmp_path), *medium(medium_name, url))
    _check_stages(seen)
    assert report.arguments.endswith(" ".join([KERNEL_ARGUMENTS, *APPENDED]))
    config = host.service.ignition_config(infra_env_id)
    assert report.config_digest == hashlib.sha256(config).hexdigest()
    assert config.startswith(report.config)
    assert (report.ramdisk, report.nmstatectl, report.rootfs_digest) == ("", "", "")


@pytest.mark.parametrize(
    ("version", "firmware_name", "medium_name"),
    [
        soaked(SPLICED, "bios", "cd"),
        soaked(SPLICED, "bios", "usb"),
        (SPLICED, "uefi", "cd"),
        soaked(SPLICED, "uefi", "usb"),
        soaked(DERIVED, "bios", "cd"),
        soaked(DERIVED, "bios", "usb"),
        soaked(DERIVED, "uefi", "cd"),
        soaked(DERIVED, "uefi", "usb"),
    ],
)
def test_guest_of_minimal_iso_reads_config_arguments_and_rootfs(
    version: str, firmware_name: str, medium_name: str, host: Host, tmp_path: Path
) -> None:
    """From a disk copy, as on a USB stick; CDs directly from the URL."""
    ramdisk = make_ramdisk(RAMDISK_TEXT)
    infra_env_id = host.service.register(version, CONFIG, APPENDED, ramdisk=ramdisk)
    url = host.url(infra_env_id, version, "minimal.iso")
    file = url if medium_name == "cd" else str(_copy(host, url, tmp_path))
    with watching(host.admin_url, infra_env_id) as seen:
        report = boot(*firmware(firmware_name, tmp_path), *NETWORK, *medium(medium_name, file))
    if medium_name == "cd":
        _check_stages(seen)
    _check_minimal(host, version, infra_env_id, report)


def _check_stages(seen: SeenMount) -> None:
    """Check that the stages come in order; those of small files may be over before they are seen."""
    assert seen.latest["client"] == "qemu"
    assert seen.stages == [stage for stage in STAGES if stage in seen.stages]
    assert {"probed", "boot loader", "kernel", "ignition"} <= set(seen.stages), seen.stages


def _check_minimal(host: Host, version: str, infra_env_id: str, report: Report) -> None:
    arguments = report.arguments.split()
    assert f"coreos.liveiso={VOLUME_ID}" not in arguments
    assert arguments[-len(APPENDED) :] == APPENDED
    assert report.config == host.service.ignition_config(infra_env_id)
    assert report.ramdisk == f"{RAMDISK_TEXT} by network/host0"
    assert report.nmstatectl == ("nmstatectl runs" if version == DERIVED else "")
    assert report.rootfs_digest == host.rootfs_digest(version)


def _copy(host: Host, url: str, directory: Path) -> Path:
    """Write the image to a disk that is larger than it, as ``curl -o`` and ``dd`` do."""
    disk = directory / "disk"
    disk.write_bytes(host.service.get(url.removeprefix(host.service.url)).body)
    os.truncate(disk, disk.stat().st_size + 64 * 1024 * 1024)
    return disk


def test_mount_of_a_killed_guest_is_stalled(host: Host, tmp_path: Path) -> None:
    variables = {"ADMIN_LISTEN": f"127.0.0.1:{free_port()}", "MOUNT_STALL_SECONDS": "2"}
    admin_url = f"http://{variables['ADMIN_LISTEN']}"
    with run_service(tmp_path, [os_image(host.iso, SPLICED)], environment=variables) as service:
        infra_env_id = service.register(SPLICED, CONFIG)
        url = f"{service.url}/byid/{infra_env_id}/{SPLICED}/x86_64/full.iso"
        with started(*medium("cd", url)):
            wait_for(lambda: any(each["stage"] != "probed" for each in list_mounts(admin_url)))
        wait_for(lambda: [each["stalled"] for each in list_mounts(admin_url)] == [True])
        killed = f"mount of {infra_env_id} full-iso {SPLICED} by 127.0.0.1"
        service.wait_for(rf"({killed} \(qemu\) stalled: [a-z ]+, \d+ bytes in)")


@pytest.mark.soak
def test_guest_reads_a_config_that_fits_only_with_xz(host: Host) -> None:
    """The kernel accepts less than coreos-installer: only xz with CRC32."""
    noise = base64.b64encode(hashlib.shake_256().digest(150_000)).decode()
    files = [{"path": path, "contents": {"source": f"data:;base64,{noise}"}} for path in ("/a", "/b")]
    infra_env_id = host.service.register(SPLICED, {**CONFIG, "storage": {"files": files}})
    report = boot(*medium("cd", host.url(infra_env_id, SPLICED, "full.iso")))
    config = host.service.ignition_config(infra_env_id)
    assert report.config_digest == hashlib.sha256(config).hexdigest()


@pytest.mark.parametrize(
    ("firmware_name", "medium_name"),
    [soaked("bios", "cd"), ("bios", "usb"), soaked("uefi", "cd"), ("uefi", "usb")],
)
@pytest.mark.parametrize("file", ["full.iso", soaked("minimal.iso")])
def test_guest_reads_a_config_and_arguments_that_do_not_fit_their_areas(
    firmware_name: str, medium_name: str, file: str, host: Host, tmp_path: Path
) -> None:
    """They are behind the end of the ISO: a stick's partition must have grown to reach them."""
    noise = base64.b64encode(hashlib.shake_256().digest(12 << 20)).decode()
    stored = [{"path": "/noise", "contents": {"source": f"data:;base64,{noise}"}}]
    arguments = [*APPENDED, "long=" + "x" * 1300]
    infra_env_id = host.service.register(SPLICED, {**CONFIG, "storage": {"files": stored}}, arguments)
    # A slow machine is told to come back while such an image is made for the first time; QEMU does not.
    image = host.service.get_image(f"/byid/{infra_env_id}/{SPLICED}/x86_64/{file}", method="HEAD")
    base_size = host.iso.stat().st_size if file == "full.iso" else 0
    assert int(image.headers["Content-Length"]) > base_size + (16 << 20)
    url = host.url(infra_env_id, SPLICED, file)
    report = boot(*firmware(firmware_name, tmp_path), *NETWORK, *medium(medium_name, url), "-m", "1024")
    config = host.service.ignition_config(infra_env_id)
    assert len(config) > 16 << 20
    assert report.config_digest == hashlib.sha256(config).hexdigest()
    assert report.arguments.endswith(" ".join(arguments))


@pytest.mark.parametrize("is_link", [pytest.param(False, marks=pytest.mark.soak), True])
def test_ipxe_boots_by_its_script(host: Host, tmp_path: Path, *, is_link: bool) -> None:
    ramdisk = make_ramdisk(RAMDISK_TEXT)
    infra_env_id = host.service.register(DERIVED, CONFIG, APPENDED, ramdisk=ramdisk)
    path = f"/images/{infra_env_id}/ipxe?version={DERIVED}&arch=x86_64"
    script = tmp_path / "boot.ipxe"
    url = host.make_link(path) if is_link else f"{host.guest_url}{path}"
    script.write_text(f"#!ipxe\ndhcp\nchain {url}\n")
    report = boot(*NETWORK, "-kernel", needs_client("/usr/lib/ipxe/ipxe.lkrn"), "-initrd", str(script))
    assert f"coreos.liveiso={VOLUME_ID}" not in report.arguments
    assert report.arguments.endswith(" ".join(APPENDED))
    assert report.config == host.service.ignition_config(infra_env_id)
    assert report.ramdisk == f"{RAMDISK_TEXT} by network/host0"
    assert report.nmstatectl == "nmstatectl runs"
    assert report.rootfs_digest == host.rootfs_digest(DERIVED)


@pytest.mark.parametrize("is_link", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_uefi_boots_over_http(host: Host, tmp_path: Path, *, is_link: bool) -> None:
    """Independently of the path's suffix: the media type identifies an ISO."""
    infra_env_id = host.service.register(SPLICED, CONFIG, APPENDED)
    url = f"{host.guest_url}/images/{infra_env_id}?version={SPLICED}&type=full-iso"
    if is_link:
        url = host.make_link(f"/byid/{infra_env_id}/{SPLICED}/x86_64/minimal.iso")
    variables = tmp_path / "boot-uri.fd"
    empty = Path(needs_client("/usr/share/OVMF")) / "OVMF_VARS_4M.fd"
    run_client("virt-fw-vars", "--input", empty, "--output", variables, "--set-boot-uri", url)
    report = boot(*firmware("uefi", tmp_path, variables), *NETWORK, "-m", "1024")
    assert report.arguments.endswith(" ".join(APPENDED))
    assert report.config == host.service.ignition_config(infra_env_id)


@pytest.mark.soak
def test_uefi_boots_over_http_although_the_download_is_cut(host: Host, tmp_path: Path) -> None:
    """OVMF 2026.08 resumes after a silence, and sends five requests at most."""
    named = os.environ.get("OVMF")
    if not named:
        pytest.skip("optional client: OVMF does not name the directory of an OVMF that resumes downloads")
    infra_env_id = host.service.register(SPLICED, CONFIG, APPENDED)
    path = f"/byid/{infra_env_id}/{SPLICED}/x86_64/full.iso"
    content = host.service.get(path).body
    with cutting(host.service.url, [len(content) // 7 + number for number in range(CUTS)]) as proxy:
        variables = tmp_path / "boot-uri.fd"
        url = f"http://{HOST}:{proxy.port}{path}"
        empty = Path(named) / "OVMF_VARS_4M.fd"
        run_client("virt-fw-vars", "--input", empty, "--output", variables, "--set-boot-uri", url)
        options = firmware("uefi", tmp_path, variables, ovmf=Path(named))
        report = boot(*options, *NETWORK, "-device", "virtio-rng-pci", "-m", "1024")
    assert report.config == host.service.ignition_config(infra_env_id)
    assert proxy.statuses == [200, *[206] * CUTS]
    assert bytes(proxy.content) == content
    assert all("if-match" in fields for fields in proxy.requests[1:])


@pytest.mark.soak
def test_ipxe_for_uefi_boots_by_the_script_of_a_link(host: Host, tmp_path: Path) -> None:
    infra_env_id = host.service.register(SPLICED, CONFIG, APPENDED)
    url = host.make_link(f"/images/{infra_env_id}/ipxe?version={SPLICED}&arch=x86_64")
    disk = tmp_path / "disk"
    disk.touch()
    os.truncate(disk, 16 * 1024 * 1024)
    run_client("mformat", "-i", disk, "::")
    run_client("mmd", "-i", disk, "::/EFI", "::/EFI/BOOT")
    run_client("mcopy", "-i", disk, needs_client("/usr/lib/ipxe/ipxe.efi"), "::/EFI/BOOT/BOOTX64.EFI")
    dhcp = ["-netdev", f"user,id=net,bootfile={url}", *NETWORK[2:]]
    report = boot(*firmware("uefi", tmp_path), *dhcp, *medium("usb", str(disk)), "-m", "1024")
    assert report.arguments.endswith(" ".join(APPENDED))
    assert report.config == host.service.ignition_config(infra_env_id)


@pytest.mark.soak
@pytest.mark.parametrize("image", ["full-iso", "minimal-iso", "ipxe"])
def test_make_boot_shows_what_the_machine_found(
    image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "mine.ign"
    config.write_text(json.dumps(CONFIG | {"mine": "is this config"}))
    assert boot_once.main([image, "--ignition", str(config)]) == 0
    shown, found = capsys.readouterr().out.split("booting …")
    assert boot_once.ARGUMENT in found
    assert "is this config" in found
    assert boot_once.ARGUMENT not in shown
    rootfs = found.splitlines()[-1].rpartition(" ")[2]
    assert rootfs == "none" if image == "full-iso" else rootfs not in {"none", EMPTY_SHA256}
