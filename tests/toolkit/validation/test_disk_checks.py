"""Checks of the image and of what firmware finds, each with its verdicts on real disks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from image_service.toolkit.commands import main
from image_service.toolkit.validation.checks import CHECKS
from image_service.toolkit.validation.platforms import PLATFORMS
from tests.acceptance.clients import run_client
from tests.toolkit.coreos_disk import KERNEL, build_disk
from tests.toolkit.validation.linux_disk import changed, converted, kernel, partitioned
from tests.toolkit.validation.validating import verdicts

if TYPE_CHECKING:
    from pathlib import Path

MEBIBYTE = 1024 * 1024
LINUX = "label: dos\nstart=1MiB, size=4MiB, type=83\n"


def test_disk_that_fits_has_no_failure(ec2_disk: Path) -> None:
    found = verdicts(ec2_disk, "ec2")
    assert {name: reason for name, (verdict, reason) in found.items() if verdict == "fail"} == {}
    skipped = {name for name, (verdict, _) in found.items() if verdict == "skip"}
    assert skipped == {
        "fstab",
        "windows-ntfs",
        "windows-bcd",
        "windows-storage-driver",
        "windows-network-driver",
    }


@pytest.mark.parametrize(
    ("image_format", "options", "platforms"),
    [
        ("raw", [], {"ec2", "openstack", "baremetal"}),
        ("qcow2", [], {"openstack"}),
        ("vpc", ["subformat=fixed,force_size=on"], {"ec2", "openstack", "azure"}),
        ("vpc", ["subformat=dynamic"], {"ec2", "openstack"}),
        ("vmdk", ["subformat=streamOptimized"], {"ec2", "openstack", "vsphere"}),
        ("vmdk", ["subformat=monolithicSparse"], {"openstack"}),
        ("vhdx", [], {"ec2", "openstack"}),
    ],
)
def test_format_fits_the_platforms_that_take_it(
    image_format: str, options: list[str], platforms: set[str], tmp_path: Path
) -> None:
    disk = partitioned(tmp_path / "disk.raw", 8 * MEBIBYTE, LINUX)
    image = disk if image_format == "raw" else converted(disk, image_format, *options)
    fits = {name for name in PLATFORMS if verdicts(image, name)["image-format"][0] == "ok"}
    assert fits == platforms


def test_size_for_azure_is_a_multiple_of_a_mebibyte(tmp_path: Path) -> None:
    disk = partitioned(tmp_path / "disk.raw", 8 * MEBIBYTE + 512, LINUX)
    assert verdicts(disk, "azure")["disk-size"] == (
        "fail",
        "the disk has 8389120 bytes, which is not a multiple of 1048576",
    )
    assert verdicts(disk, "ec2")["disk-size"][0] == "ok"


def test_mbr_reaches_two_tebibytes(tmp_path: Path) -> None:
    disk = partitioned(tmp_path / "disk.raw", 2**41, LINUX)
    assert verdicts(disk, "ec2")["disk-size"][0] == "ok"
    with disk.open("r+b") as file:
        file.truncate(2**41 + 512)
    verdict, reason = verdicts(disk, "ec2")["disk-size"]
    assert verdict == "fail"
    assert "an MBR, which reaches only 2199023255552" in reason


def test_disk_above_the_limit_of_the_platform_fails(tmp_path: Path) -> None:
    disk = partitioned(tmp_path / "disk.raw", 2040 * 2**30 + MEBIBYTE, LINUX)
    assert verdicts(disk, "azure")["disk-size"][0] == "fail"
    assert verdicts(disk, "openstack")["disk-size"][0] == "ok"


def test_lost_backup_of_the_gpt_fails(ec2_disk: Path, tmp_path: Path) -> None:
    disk = changed(ec2_disk, tmp_path)
    with disk.open("r+b") as file:
        file.seek(-512, 2)
        file.write(bytes(512))
    verdict, reason = verdicts(disk, "ec2")["partition-table"]
    assert verdict == "fail"
    assert "backup" in reason


def test_disk_without_partitions_fails_and_tells_no_sector_size(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    run_client("mkfs.ext4", "-q", disk, "8M")
    found = verdicts(disk, "ec2")
    assert found["partition-table"] == ("fail", "the disk has no partition table")
    assert found["sector-size"][0] == "skip"
    assert found["architecture"][0] == "skip"
    assert found["boot-mode"][0] == "fail"


def test_sectors_of_4096_bytes_fit_bare_metal_alone(tmp_path: Path) -> None:
    disk = build_disk(tmp_path, sector_bytes=4096)
    assert {name for name in PLATFORMS if verdicts(disk, name)["sector-size"][0] == "ok"} == {"baremetal"}


def test_boot_code_needs_its_partition(ec2_disk: Path, tmp_path: Path) -> None:
    assert verdicts(ec2_disk, "ec2")["boot-mode"][1] == "there is a boot loader for BIOS; EC2 offers both"
    disk = changed(ec2_disk, tmp_path)
    with disk.open("r+b") as file:
        file.write(bytes(440))
    verdict, reason = verdicts(disk, "ec2")["boot-mode"]
    assert verdict == "fail"
    assert "its first sector has no boot code, with a BIOS boot partition" in reason


def test_architecture_of_the_kernel_must_be_the_platforms(ec2_disk: Path, tmp_path: Path) -> None:
    disk = changed(ec2_disk, tmp_path, boot={KERNEL: kernel(0xAA64)})
    assert verdicts(disk, "ec2")["architecture"] == ("ok", "the kernel is aarch64")
    assert verdicts(disk, "vsphere")["architecture"] == (
        "fail",
        "vSphere has only x86_64: the kernel is aarch64",
    )


def test_xfs_is_skipped_and_named(tmp_path: Path) -> None:
    script = "label: gpt\nstart=1MiB, size=320MiB\n"
    disk = partitioned(tmp_path / "disk.raw", 324 * MEBIBYTE, script)
    volume = tmp_path / "xfs"
    with volume.open("wb") as file:
        file.truncate(320 * MEBIBYTE)
    run_client("mkfs.xfs", "-q", volume)
    run_client("dd", f"if={volume}", f"of={disk}", "bs=1M", "seek=1", "conv=notrunc,sparse", "status=none")
    found = verdicts(disk, "openstack")
    for name in ("fstab", "agent", "kernel-console", "initrd-storage-driver", "root-file-system"):
        assert found[name][0] == "skip", name
        assert "xfs" in found[name][1], name


def test_unsafe_image_fails_and_nothing_else_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "image.qcow2"
    run_client("qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", "/etc/passwd", image, "1M")
    words = ["validate", str(image), "--for", "ec2", "--json", "--scratch", str(tmp_path)]
    assert main(words) == 6
    report = json.loads(capsys.readouterr().out)
    assert report["checks"][0]["verdict"] == "fail"
    assert report["counts"] == {"ok": 0, "fail": 1, "skip": len(CHECKS)}
    assert "root:" not in json.dumps(report)


def test_report_has_verdicts_counts_and_digest(ec2_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scratch = ["--scratch", str(ec2_disk.parent)]
    assert main(["validate", str(ec2_disk), "--for", "ec2", "--json", *scratch]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["exit"] == 0
    assert report["platform"] == "ec2"
    assert report["input"]["format"] == "raw"
    assert report["input"]["sha256"] == run_client("sha256sum", ec2_disk).decode().split()[0]
    assert report["counts"] == {"ok": 14, "fail": 0, "skip": 5}
    assert [set(check) for check in report["checks"]] == [{"name", "verdict", "reason"}] * 19
    assert main(["validate", str(ec2_disk), "--for", "azure", *scratch]) == 6
    output = capsys.readouterr()
    lines = output.out.splitlines()
    assert lines[0].startswith("fail  image-format")
    assert lines[-1].endswith(" skip")
    assert output.err.startswith(f"image-toolkit: {ec2_disk} does not fit azure: image-format, ")
    assert main(["validate", str(ec2_disk), "--for", "azure", "--json", *scratch]) == 6
    assert json.loads(capsys.readouterr().out)["error"]["reason"] in output.err


def test_declared_format_that_differs_is_unsafe(ec2_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["validate", str(ec2_disk), "--for", "ec2", "--input-format", "qcow2"]
    assert main([*words, "--scratch", str(ec2_disk.parent)]) == 6
    assert "declared to be qcow2" in capsys.readouterr().out
