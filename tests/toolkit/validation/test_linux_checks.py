"""Checks of Linux, each with its verdicts on real disks."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from image_service.core.formats.disk.partition_types import ROOT_ARCHITECTURES
from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import run_client
from tests.toolkit.coreos_disk import BLS_ENTRY, ENTRY, INITRAMFS
from tests.toolkit.validation.linux_disk import DRIVERS, NO_BUILTIN, changed, initrd
from tests.toolkit.validation.validating import verdicts

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = "root=LABEL=root console=ttyS0 ro"
"""Kernel arguments that are not CoreOS's."""


def entry(options: str) -> dict[str, bytes | None]:
    """Return the boot entry with other kernel arguments."""
    lines = [f"options {options}" if line.startswith("options") else line for line in BLS_ENTRY.splitlines()]
    return {ENTRY: "\n".join([*lines, ""]).encode()}


@pytest.mark.parametrize(
    ("root", "verdict", "reason"),
    [
        ("LABEL=root", "ok", "root=LABEL=root is on the disk"),
        ("PARTLABEL=root", "ok", "is on the disk"),
        ("UUID=11111111-2222-3333-4444-555555555555", "fail", "is not on the disk"),
        ("/dev/vda4", "fail", "names a device"),
        ("/dev/mapper/vg-root", "skip", "neither a device nor a UUID or label"),
        ("LABEL=ROOT", "fail", "root=LABEL=ROOT is not on the disk"),
        ("/dev/disk/by-label/root", "ok", "is on the disk"),
        ("/dev/disk/by-id/ata-x-part4", "fail", "names a device"),
        ("803", "fail", "names a device"),
    ],
)
def test_root_is_found_by_label_or_uuid(
    root: str, verdict: str, reason: str, ec2_disk: Path, tmp_path: Path
) -> None:
    found = verdicts(changed(ec2_disk, tmp_path, boot=entry(f"root={root}")), "ec2")["root-file-system"]
    assert found[0] == verdict
    assert reason in found[1]


@pytest.mark.parametrize(
    ("fstab", "verdict", "reason"),
    [
        (b"# comment\nLABEL=root / ext4 defaults 0 1\n", "ok", "no line of /etc/fstab (1) names a device"),
        (b"/dev/sda1 /data ext4 defaults 0 1\n", "fail", "/dev/sda1"),
        (b"/dev/nvme0n1p2 none swap\n/dev/vdb /x xfs\n", "fail", "/dev/nvme0n1p2, /dev/vdb"),
        (b" # UUID=1 /\n/dev/disk/by-path/pci-1-part1 /a ext4 ro\n", "fail", "by-path/pci-1-part1"),
        (b"/dev/xvdb /mnt auto defaults,nofail,comment=cloudconfig 0 2\n", "ok", "(1) names a device"),
        (b"/dev/cdrom /mnt auto ro\n/dev/sr0 /m auto user,noauto\n", "skip", "/dev/cdrom"),
        (b"UUID=12345678-0000-0000-0000-000000000000 /data ext4 defaults\n", "fail", "not on the disk"),
        (b"LABEL=ROOT / ext4\ntmpfs /tmp tmpfs\n", "fail", "not on the disk: LABEL=ROOT"),
        (b"LABEL=r\\157ot / ext4\n", "ok", "(1) names a device"),
        (b"/dev/disk/by-label/r\\157ot / ext4\n", "ok", "(1) names a device"),
        (b"LABEL=my\\040d\\303\\244ta / ext4\n", "fail", "not on the disk: LABEL=my d\u00e4ta"),
        (b"PARTLABEL=root / ext4\ntmpfs /tmp tmpfs\nh:/x /x nfs\n", "ok", "(3) names a device"),
    ],
)
def test_fstab_must_not_name_devices(
    fstab: bytes, verdict: str, reason: str, ec2_disk: Path, tmp_path: Path
) -> None:
    found = verdicts(changed(ec2_disk, tmp_path, system={"etc/fstab": fstab}), "ec2")["fstab"]
    assert found[0] == verdict
    assert reason in found[1]


@pytest.mark.parametrize(
    ("platform", "files", "expected"),
    [
        ("ec2", DRIVERS, ("ok", "ok")),
        ("azure", DRIVERS, ("fail", "fail")),
        ("openstack", DRIVERS, ("fail", "fail")),
        ("ec2", NO_BUILTIN, ("ok", "skip")),
        ("vsphere", NO_BUILTIN, ("skip", "skip")),
    ],
)
def test_drivers_are_modules_or_built_in(
    platform: str, files: dict[str, bytes], expected: tuple[str, str], ec2_disk: Path, tmp_path: Path
) -> None:
    found = verdicts(changed(ec2_disk, tmp_path, boot={INITRAMFS: initrd(files)}), platform)
    assert (found["initrd-storage-driver"][0], found["initrd-network-driver"][0]) == expected


def test_network_driver_is_needed_in_coreos_initrds_alone(ec2_disk: Path, tmp_path: Path) -> None:
    found = verdicts(changed(ec2_disk, tmp_path, boot=entry(PLAIN)), "azure")
    assert found["initrd-network-driver"][0] == "skip"
    assert found["initrd-storage-driver"][0] == "fail"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"garbage", "no supported compression"),
        (gzip.compress(b"070701" + b"f" * 104, mtime=0), "has a name of 4294967295 bytes"),
        (gzip.compress(write_archive([Member("a", b"b" * 99)])[:150], mtime=0), "ends within"),
    ],
)
def test_hostile_initrd_fails(content: bytes, reason: str, ec2_disk: Path, tmp_path: Path) -> None:
    found = verdicts(changed(ec2_disk, tmp_path, boot={INITRAMFS: content}), "ec2")["initrd-storage-driver"]
    assert found[0] == "fail"
    assert reason in found[1]


def test_drivers_are_in_any_of_the_initrds(ec2_disk: Path, tmp_path: Path) -> None:
    microcode = write_archive([Member("kernel/x86/microcode/GenuineIntel.bin", bytes(100))])
    lines = BLS_ENTRY.replace("initrd ", "initrd /ucode.img\ninitrd ").encode()
    disk = changed(ec2_disk, tmp_path, boot={ENTRY: lines, "ucode.img": microcode})
    assert verdicts(disk, "ec2")["initrd-storage-driver"][0] == "ok"
    more = changed(disk, tmp_path / "..", boot={INITRAMFS: initrd({}), "ucode.img": initrd(DRIVERS)})
    assert verdicts(more, "ec2")["initrd-storage-driver"][0] == "ok"
    gone = changed(ec2_disk, tmp_path, boot={ENTRY: lines})
    assert verdicts(gone, "ec2")["initrd-storage-driver"] == (
        "fail",
        "no file /ucode.img: there is no ucode.img",
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("$unset console=ttyS0", ("skip", "ok")),
        ("root=LABEL=root $unset", ("skip", "skip")),
        ("$unset root=LABEL=root console=tty0", ("ok", "skip")),
    ],
)
def test_verdict_that_depends_on_an_unknown_variable_is_skip(
    options: str, expected: tuple[str, str], ec2_disk: Path, tmp_path: Path
) -> None:
    disk = changed(ec2_disk, tmp_path, boot={**entry(options), "grub2/grub.cfg": None})
    found = verdicts(disk, "ec2")
    assert (found["root-file-system"][0], found["kernel-console"][0]) == expected


def test_root_is_found_by_the_type_of_its_partition(ec2_disk: Path, tmp_path: Path) -> None:
    disk = changed(ec2_disk, tmp_path, boot=entry("ro console=ttyS0"))
    assert verdicts(disk, "ec2")["root-file-system"][0] == "skip"
    for architecture, verdict in (("aarch64", "skip"), ("x86_64", "ok")):
        kind = next(guid for guid, each in ROOT_ARCHITECTURES.items() if each == architecture)
        run_client("sfdisk", "-q", "--part-type", disk, "4", kind)
        assert verdicts(disk, "ec2")["root-file-system"][0] == verdict


def test_name_with_a_path_is_no_driver(ec2_disk: Path, tmp_path: Path) -> None:
    archive = write_archive([Member("AAAlib/modules/6.1.0/nvme.ko", b"")])
    hostile = gzip.compress(archive.replace(b"AAA", b"../"))
    disk = changed(ec2_disk, tmp_path, boot={INITRAMFS: hostile})
    assert verdicts(disk, "ec2")["initrd-storage-driver"][0] == "skip"


@pytest.mark.parametrize(
    ("platform", "consoles", "verdict"),
    [
        ("ec2", "console=tty0 console=ttyS0,115200n8", "ok"),
        ("ec2", "console=tty0", "fail"),
        ("azure", "", "fail"),
        ("openstack", "console=ttyAMA0", "ok"),
        ("vsphere", "", "ok"),
        ("vsphere", "console=ttyS0", "fail"),
        ("baremetal", "console=ttyS1", "ok"),
    ],
)
def test_console_fits_the_platform(
    platform: str, consoles: str, verdict: str, ec2_disk: Path, tmp_path: Path
) -> None:
    disk = changed(ec2_disk, tmp_path, boot=entry(f"root=LABEL=root {consoles}"))
    assert verdicts(disk, platform)["kernel-console"][0] == verdict


def test_agent_of_the_platform_is_looked_for(ec2_disk: Path, tmp_path: Path) -> None:
    plain = changed(ec2_disk, tmp_path, boot=entry(PLAIN))
    assert verdicts(plain, "openstack")["agent"] == (
        "fail",
        "the operating system has no agent for OpenStack: cloud-init or Afterburn",
    )
    disk = changed(plain, tmp_path / "..", system={"usr/bin/cloud-init": b"#!"})
    assert verdicts(disk, "openstack")["agent"] == ("ok", "cloud-init is installed")
    assert "agent" not in verdicts(disk, "baremetal")


def test_coreos_needs_ignition_in_its_initrd(ec2_disk: Path, tmp_path: Path) -> None:
    files = {name: data for name, data in DRIVERS.items() if "ignition" not in name}
    disk = changed(ec2_disk, tmp_path, boot={INITRAMFS: initrd(files)})
    assert verdicts(ec2_disk, "ec2")["agent"][0] == "ok"
    assert verdicts(disk, "ec2")["agent"][0] == "fail"


def test_ignition_must_name_the_platform_and_be_due(ec2_disk: Path, tmp_path: Path) -> None:
    assert verdicts(ec2_disk, "vsphere")["ignition-platform"] == (
        "fail",
        "ignition.platform.id is aws; vSphere needs vmware",
    )
    disk = changed(ec2_disk, tmp_path, boot={"ignition.firstboot": None})
    assert verdicts(disk, "ec2")["ignition-first-boot"][0] == "fail"
    plain = changed(ec2_disk, tmp_path, boot=entry(PLAIN))
    for name in ("ignition-platform", "ignition-first-boot"):
        assert verdicts(plain, "ec2")[name][0] == "skip"


def test_entry_of_grub_is_read_where_there_is_none_of_the_specification(
    ec2_disk: Path, tmp_path: Path
) -> None:
    lines = ("menuentry 'Debian' {", "linux /vmlinuz root=/dev/sda1 console=ttyS0", "initrd /initrd.img", "}")
    config = "\n  ".join(lines).encode()
    disk = changed(
        ec2_disk,
        tmp_path,
        boot={ENTRY: None, "grub2/grub.cfg": config, "initrd.img": initrd(DRIVERS)},
    )
    found = verdicts(disk, "ec2")
    assert found["root-file-system"][0] == "fail"
    assert found["initrd-storage-driver"][0] == "ok"
