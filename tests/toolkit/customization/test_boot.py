"""Customized disks boot and show what they were given, and equal those that coreos-installer makes."""

from __future__ import annotations

import os
import stat
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.initrd import read_members
from tests.acceptance.clients import missing, needs_client, run_client
from tests.toolkit.coreos_disk import (
    INITRAMFS,
    MIB,
    PLATFORMS,
    boot_disk,
    boot_files,
    build_disk,
    edit_boot,
    read_boot_file,
)
from tests.toolkit.customization.calling import CONFIG, KEYFILE, KEYFILE_NAME, call, write_inputs
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.mark.structures import ParameterSet

pytestmark = pytest.mark.acceptance

_IN_INITRAMFS = f"etc/coreos-firstboot-network/{KEYFILE_NAME}"


_UDEVADM = """\
#!/bin/sh
partx --update {device} 2>/dev/null  # a kernel may have no partition tables
for partition in {device}p*; do
    blkid --probe --output udev "$partition" | sed s/^/E:/ \\
        >"/run/udev/data/b$(cat "/sys/class/block/${{partition##*/}}/dev")"
done
exit 0
"""


@pytest.mark.soak  # each run boots a disk with another kernel argument: validation/test_boot.py
@pytest.mark.parametrize(("sector_bytes", "image_format"), [(512, "raw"), (4096, "raw"), (512, "qcow2")])
def test_customized_disk_boots_with_config_arguments_and_keyfile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sector_bytes: int, image_format: str
) -> None:
    disk = build_disk(tmp_path, sector_bytes=sector_bytes, boots=True)
    image = tmp_path / f"image.{image_format}"
    run_client("qemu-img", "convert", "-f", "raw", "-O", image_format, disk, image)
    assert call(capsys, image, "--in-place", *write_inputs(tmp_path))["exit"] == 0
    report = boot_disk(image, tmp_path, image_format=image_format, sector_bytes=sector_bytes)
    assert report.config.encode() == CONFIG
    words = report.arguments.split()
    assert {"ignition.firstboot", "ignition.platform.id=aws", "answer=42", "console=tty0"} <= set(words)
    assert "mitigations=auto,nosmt" not in words
    keyfile = KEYFILE.decode().rstrip("\n")
    directory = f"coreos-firstboot-network/{KEYFILE_NAME}"
    assert report.keyfiles == {f"/boot/{directory}": keyfile, f"/etc/{directory}": keyfile}


@contextmanager
def loop_device(disk: Path, sector_bytes: int) -> Iterator[Path]:
    """Attach a disk to a loop device with its partitions; skip the test where that cannot be done."""
    losetup = needs_client("losetup")
    command = [losetup, "--find", "--show", "--partscan", "--sector-size", str(sector_bytes), str(disk)]
    attached = subprocess.run(command, capture_output=True, text=True, check=False)
    if attached.returncode != 0:
        missing(f"a loop device, which needs root: {attached.stderr.strip()}")
    device = Path(attached.stdout.strip())
    try:
        yield device
    finally:
        subprocess.run([losetup, "--detach", device], check=True)


def udev_stand_in(directory: Path, device: Path) -> list[str]:
    """Return words that run a program where `udevadm settle` does what udev's daemon does, if there is none.

    Without the daemon, which containers lack, coreos-installer refuses to work, and finds no labels.
    """
    if Path("/run/udev/control").exists():
        return []
    settle = directory / "bin" / "udevadm"
    settle.parent.mkdir()
    settle.write_text(_UDEVADM.format(device=device))
    settle.chmod(0o755)
    prepare = 'mount -t tmpfs tmpfs /run && mkdir -p /run/udev/data && touch /run/udev/control && exec "$@"'
    path = f"PATH={settle.parent}:{os.environ['PATH']}"
    return [needs_client("unshare"), "--mount", "env", path, "sh", "-c", prepare, "sh"]


def boot_partition(disk: Path, directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return mode and content of all files and directories of a raw disk's boot partition, by path."""
    directory.mkdir()
    edit_boot(disk, f"rdump / {directory}")
    found = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(mode) else b""
        found[str(path.relative_to(directory))] = (mode, content)
    return found


def _disks() -> Iterator[ParameterSet]:
    """Yield each platform with each size of sectors; `make test` has one size for each platform, in turn."""
    platforms = ("metal", *sorted(set(PLATFORMS) - {"metal"}), "vmware")
    for number, platform in enumerate(platforms):
        for turn, sector_bytes in enumerate((512, 4096)):
            parameters = pytest.param if turn == number % 2 else soaked
            yield parameters(sector_bytes, platform, id=f"{platform}-{sector_bytes}")


@pytest.mark.parametrize(("sector_bytes", "platform"), list(_disks()))
def test_boot_partition_equals_that_of_coreos_installer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], sector_bytes: int, platform: str
) -> None:
    installer = needs_client("coreos-installer")
    disk = build_disk(tmp_path, sector_bytes=sector_bytes)
    write_inputs(tmp_path)
    network = tmp_path / "network"
    network.mkdir()
    (tmp_path / KEYFILE_NAME).rename(network / KEYFILE_NAME)
    target, ours = tmp_path / "installed.raw", tmp_path / "ours.raw"
    with target.open("wb") as file:
        file.truncate(disk.stat().st_size + MIB)
    common = [f"--platform={platform}"]
    with loop_device(target, sector_bytes) as device:
        options = [f"--image-file={disk}", "--insecure", f"--ignition-file={tmp_path / 'config.ign'}"]
        options += ["--append-karg=answer=42", "--delete-karg=mitigations=auto,nosmt"]
        options += ["--copy-network", f"--network-dir={network}"]
        command = [*udev_stand_in(tmp_path, device), installer, "install", *options, *common, str(device)]
        installed = subprocess.run(command, capture_output=True, text=True, check=False)
        assert installed.returncode == 0, installed.stderr
        os.sync()
    words = [f"--ignition={tmp_path / 'config.ign'}", f"--network-keyfile={network / KEYFILE_NAME}"]
    words += ["--karg-append=answer=42", "--karg-delete=mitigations=auto,nosmt"]
    assert call(capsys, disk, ours, *words, *common)["exit"] == 0
    expected = boot_partition(target, tmp_path / "expected")
    found = boot_partition(ours, tmp_path / "found")
    for files, image in ((expected, target), (found, ours)):
        # coreos-installer compresses its archive by xz.
        appended = read_boot_file(image, INITRAMFS).removeprefix(boot_files()[INITRAMFS])
        assert read_members(appended)[_IN_INITRAMFS].data == KEYFILE
        files[INITRAMFS] = (files[INITRAMFS][0], b"")
    # Older versions of coreos-installer wrote them, and images of their time read only these.
    for path in ("coreos-firstboot-network", f"coreos-firstboot-network/{KEYFILE_NAME}"):
        del found[path]
    assert found == expected
