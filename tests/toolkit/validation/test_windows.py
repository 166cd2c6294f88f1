"""Checks of Windows, on NTFS and registry hives that real programs wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.common.programs.dependencies import Dependency
from image_service.toolkit.workspace.dependencies import HIVEXSH
from tests.toolkit.validation.validating import verdicts
from tests.toolkit.validation.windows_disk import SYSTEM, disk, hive, ntfs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SERVICES = {"viostor": 0, "NetKVM": 3, "StorVSC": 0, "netvsc": 3, "xenvbd": 0, "ENA": 3, "pvscsi": 4}


def windows(directory: Path, services: Mapping[str, int | None], *, current: int = 1) -> Path:
    """Return a disk with Windows."""
    system = hive(directory / "SYSTEM", services, current=current)
    return disk(directory / "disk.raw", ntfs(directory / "ntfs", {SYSTEM: system, "Boot/bcd": b"regf"}))


@pytest.mark.parametrize(
    ("platform", "storage", "network"),
    [
        ("openstack", ("ok", "viostor starts at boot"), ("ok", "netkvm starts on demand")),
        ("azure", ("ok", "storvsc starts at boot"), ("ok", "netvsc starts on demand")),
        ("ec2", ("ok", "xenvbd starts at boot"), ("ok", "ena starts on demand")),
        (
            "vsphere",
            ("fail", "pvscsi or lsi_sas or stornvme must start at boot: pvscsi starts never"),
            ("fail", "vmxnet3ndis6 or e1iexpress or e1g60 must not be disabled: none of them is installed"),
        ),
    ],
)
def test_start_types_are_judged_by_platform(
    platform: str, storage: tuple[str, str], network: tuple[str, str], tmp_path: Path
) -> None:
    found = verdicts(windows(tmp_path, SERVICES), platform)
    assert found["windows-storage-driver"] == storage
    assert found["windows-network-driver"] == network
    assert found["windows-ntfs"] == ("ok", "NTFS on partition 1 is clean")
    assert found["windows-bcd"] == ("ok", "partition 1 has Boot/BCD")
    assert found["boot-mode"][0] == "ok"
    assert list(tmp_path.glob("scratch/*")) == []


def test_control_set_that_windows_starts_is_read(tmp_path: Path) -> None:
    found = verdicts(windows(tmp_path, {"viostor": 0, "netkvm": 4}, current=2), "openstack")
    assert found["windows-storage-driver"] == ("ok", "viostor starts at boot")
    assert found["windows-network-driver"] == ("fail", "netkvm must not be disabled: netkvm starts never")


def test_service_without_start_type_does_not_start(tmp_path: Path) -> None:
    found = verdicts(windows(tmp_path, {"viostor": None}), "openstack")
    assert found["windows-storage-driver"] == (
        "fail",
        "viostor or vioscsi must start at boot: viostor starts in no known way",
    )


def test_damaged_hive_fails(tmp_path: Path) -> None:
    volume = ntfs(tmp_path / "ntfs", {SYSTEM: b"regf" + bytes(9000)})
    verdict, reason = verdicts(disk(tmp_path / "disk.raw", volume), "openstack")["windows-storage-driver"]
    assert verdict == "fail"
    assert reason.startswith("the SYSTEM hive cannot be read: hivexsh")


def test_dirty_and_hibernated_volumes_fail(tmp_path: Path) -> None:
    files = {"hiberfil.sys": b"hibr" + bytes(100_000)}
    volume = ntfs(tmp_path / "ntfs", files, dirty=True)
    found = verdicts(disk(tmp_path / "disk.raw", volume), "openstack")
    assert found["windows-ntfs"] == (
        "fail",
        (
            "partition 1 was not unmounted by Windows;"
            " partition 1 has a saved session (hibernation or fast startup)"
        ),
    )


def test_volume_without_windows_is_skipped(tmp_path: Path) -> None:
    found = verdicts(disk(tmp_path / "disk.raw", ntfs(tmp_path / "ntfs", {})), "openstack")
    assert found["windows-storage-driver"] == ("skip", "no NTFS volume has Windows' SYSTEM hive")
    assert found["windows-bcd"] == ("skip", "no NTFS volume has Windows")


def test_missing_boot_store_fails(tmp_path: Path) -> None:
    volume = ntfs(tmp_path / "ntfs", {SYSTEM: hive(tmp_path / "SYSTEM", {})})
    verdict, reason = verdicts(disk(tmp_path / "disk.raw", volume), "openstack")["windows-bcd"]
    assert verdict == "fail"
    assert "EFI/Microsoft/Boot/BCD" in reason


def test_damaged_ntfs_fails(tmp_path: Path) -> None:
    volume = ntfs(tmp_path / "ntfs", {})
    with volume.open("r+b") as file:
        file.seek(4 * 4096)
        file.write(b"\xff" * 65536)
    verdict, reason = verdicts(disk(tmp_path / "disk.raw", volume), "openstack")["windows-ntfs"]
    assert verdict == "fail"
    assert reason.startswith("partition 1 is damaged: ntfs")


def test_missing_programs_are_named_with_their_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = windows(tmp_path, {})
    find = Dependency.find
    monkeypatch.setattr(Dependency, "find", lambda self: None if self is HIVEXSH else find(self))
    found = verdicts(image, "openstack")
    assert found["windows-ntfs"] == (
        "skip",
        "not installed: hivexsh (Debian libhivex-bin, Fedora hivex)",
    )
