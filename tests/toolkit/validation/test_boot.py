"""Boots in qemu: the pattern, the time-out, and disks that do not boot."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from image_service.common.programs.dependencies import Dependency
from image_service.toolkit.commands import main
from image_service.toolkit.validation.boot import DEFAULT_PATTERN, BootTrial
from image_service.toolkit.workspace.dependencies import QEMU_SYSTEM
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.coreos_disk import ESP_OFFSET, build_disk
from tests.toolkit.validation.linux_disk import changed, converted
from tests.toolkit.validation.validating import validation

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def booting_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk that boots under UEFI from NVMe."""
    needs_client("qemu-system-x86_64")
    return build_disk(tmp_path_factory.mktemp("boots"), boots=True)


@pytest.mark.acceptance
@pytest.mark.boot
def test_customized_disk_boots_and_the_image_stays(booting_disk: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    assert main(["customize", str(booting_disk), str(disk), "--karg-append=answer=42", "--no-digest"]) == 0
    image = converted(disk, "vmdk", "subformat=streamOptimized")
    before = sha256(image.read_bytes()).digest()
    found = validation(image, "ec2", BootTrial(re.compile("arguments: .*ostree=.* answer=42"), 280))
    assert (found.checks[-1].name, found.checks[-1].verdict.value) == ("boot", "ok"), found.console
    assert "(UEFI, nvme" in found.checks[-1].reason
    assert any("Run /init" in line or "report" in line for line in found.console)
    assert sha256(image.read_bytes()).digest() == before
    assert list((image.parent / "scratch").iterdir()) == []


def test_disk_with_a_damaged_boot_loader_is_not_booted(ec2_disk: Path, tmp_path: Path) -> None:
    disk = changed(ec2_disk, tmp_path)
    loader = tmp_path / "loader"
    loader.write_bytes(b"MZ" + bytes(20_000))
    run_client("mcopy", "-i", f"{disk}@@{ESP_OFFSET}", loader, "::EFI/BOOT/BOOTX64.EFI")
    with disk.open("r+b") as file:  # the chain of the file's clusters is lost
        file.seek(ESP_OFFSET + 512 * int.from_bytes(read_at(disk, ESP_OFFSET + 14, 2), "little") + 6)
        file.write(b"\xff" * 400)
    found = validation(disk, "ec2", BootTrial(re.compile("login: "), 4))
    assert (found.checks[-1].name, found.checks[-1].verdict.value) == ("boot", "fail")
    assert "within" not in found.checks[-1].reason, "it was booted"


def read_at(disk: Path, offset: int, length: int) -> bytes:
    """Return bytes of a disk."""
    with disk.open("rb") as file:
        file.seek(offset)
        return file.read(length)


@pytest.mark.acceptance
def test_pattern_that_never_comes_fails(booting_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--boot", "--boot-pattern", "no such text", "--boot-seconds", "2", "--no-digest", "--json"]
    scratch = ["--scratch", str(booting_disk.parent)]
    assert main(["validate", str(booting_disk), "--for", "baremetal", *words, *scratch]) == 6
    report = json.loads(capsys.readouterr().out)
    assert report["checks"][-1]["verdict"] == "fail"
    assert "did not show 'no such text' within 2 s" in report["checks"][-1]["reason"]


@pytest.mark.acceptance
@pytest.mark.parametrize("platform", ["openstack", "vsphere", "azure"])
def test_disk_without_boot_loader_fails_on_each_device(platform: str, tmp_path: Path) -> None:
    needs_client("qemu-system-x86_64")
    image = build_disk(tmp_path)
    found = validation(image, platform, BootTrial(re.compile("login: "), 2, firmware="bios"))
    assert found.checks[-1].verdict.value == "fail"
    assert found.checks[-1].reason.startswith("the console did not show 'login: ' within 2 s")


def test_missing_qemu_is_exit_3_only_with_boot(
    ec2_disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = Dependency.find
    monkeypatch.setattr(Dependency, "find", lambda self: None if self is QEMU_SYSTEM else find(self))
    words = ["validate", str(ec2_disk), "--for", "ec2", "--no-digest", "--scratch", str(ec2_disk.parent)]
    assert main(words) == 0
    assert main([*words, "--boot"]) == 3
    assert "qemu-system-x86 " not in capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "fedora login: ",
        "[  OK  ] Reached target \x1b[0;1;39mMulti-User System\x1b[0m.",
        "Ignition: ran on 2026/11/23",
        "ignition[911]: Ignition finished successfully",
    ],
)
def test_default_pattern_matches_started_systems(line: str) -> None:
    assert re.search(DEFAULT_PATTERN, line)


def test_invalid_pattern_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", "x", "--for", "ec2", "--boot-pattern", "("]) == 2
    assert "is not a regular expression" in capsys.readouterr().err
