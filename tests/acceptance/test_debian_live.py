"""Guests boot a Debian live ISO of live-build from the service; their cloud-init reads the user-data."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.boot_iso import EMULATED
from tests.acceptance.clients import missing, needs_client
from tests.acceptance.guest import firmware, medium, run_machine
from tests.acceptance.mount_watcher import list_mounts
from tests.acceptance.test_live_boot import served
from tests.ports import free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.soak, pytest.mark.timeout(7200)]

ISO = Path(__file__).parents[2] / ".cache" / "live-build" / "live-image-amd64.hybrid.iso"
"""Built once per checkout: it takes minutes."""
BOOTED_PERCENT = 10  # of the root file system: the page warns of a machine that is quiet below it
BOOT_SECONDS = 3000  # an emulated guest starts a whole system
PACKAGES = "live-boot live-config live-config-systemd systemd-sysv cloud-init zstd"
CONFIGURATION = [
    *("--distribution", "bookworm", "--archive-areas", "main", "--debootstrap-options", "--variant=minbase"),
    *("--binary-images", "iso-hybrid", "--uefi-secure-boot", "enable", "--linux-flavours", "amd64"),
    *("--bootappend-live", f"boot=live components console=ttyS0 {EMULATED}"),
    *("--apt-options", "--yes -o Dpkg::Options::=--force-unsafe-io"),  # thousands of files, each synchronized
    *("--chroot-squashfs-compression-type", "zstd", "--chroot-squashfs-compression-level", "1"),
    *("--checksums", "sha256", "--debian-installer", "none"),
]
WITHOUT = (
    "apt-indices apt-recommends apt-source-archives cache firmware-binary firmware-chroot security updates"
    " win32-loader zsync"
)
SEEN = "cloud-init has read its user-data"
USER_DATA = f"""\
#cloud-config
hostname: edited
runcmd:
- |
  {{
  cd /run/live/medium
  grep -v filesystem.squashfs sha256sum.txt | sha256sum --check --quiet && echo "the checksums are right"
  echo "{SEEN} on $(hostname)"; cat /proc/cmdline; dmesg | grep secureboot:
  }} >/dev/ttyS0
- poweroff -f
"""


@pytest.fixture(scope="module")
def iso() -> Path:
    if ISO.exists():
        return ISO
    if os.geteuid() != 0:
        pytest.skip("lb builds as root only")
    directory = ISO.parent
    lists = directory / "config" / "package-lists"
    lists.mkdir(parents=True, exist_ok=True)
    (lists / "live.list.chroot").write_text(PACKAGES)
    run_live_build(directory, "clean", "--purge")  # of a build that was interrupted
    without = [word for name in WITHOUT.split() for word in (f"--{name}", "false")]
    run_live_build(directory, "config", "noauto", "--memtest", "none", *CONFIGURATION, *without)
    run_live_build(directory, "build")
    return ISO


def run_live_build(directory: Path, *arguments: str) -> None:
    command = [needs_client("lb"), *arguments]
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode != 0:
        missing(f"a live ISO, which live-build cannot build: {done.stderr[-2000:].decode(errors='replace')}")


@pytest.mark.parametrize("medium_name", ["cd", "usb"])
@pytest.mark.parametrize("firmware_name", ["bios", "uefi", "secure boot"])
def test_cloud_init_reads_the_user_data_of_the_medium(
    firmware_name: str, medium_name: str, iso: Path, tmp_path: Path
) -> None:
    options, listen = firmware(firmware_name, tmp_path), f"127.0.0.1:{free_port()}"
    with served(iso, tmp_path, "", USER_DATA, ["edited.by=image-service"], ADMIN_LISTEN=listen) as url:
        options = [*options, *medium(medium_name, url), "-m", "1536"]
        console = run_machine(*options, timeout_seconds=BOOT_SECONDS).decode(errors="replace")
        (mount,) = list_mounts(f"http://{listen}")
    print(f"rootfs: {mount['rootfs_percent']} %")  # noqa: T201 - docs/mounts.md has it
    assert mount["stage"] == "root file system"
    assert mount["rootfs_percent"] > BOOTED_PERCENT
    assert f"{SEEN} on edited\n" in console
    assert "the checksums are right" in console
    assert "ds=nocloud;s=/run/live/medium/nocloud/ edited.by=image-service" in console
    assert ("secureboot: Secure boot enabled" in console) == (firmware_name == "secure boot")
