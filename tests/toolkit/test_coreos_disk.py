"""The disks that the tests of the imaging toolkit use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.toolkit.coreos_disk import ENTRY, SELINUX_CONTEXT, boot_disk, build_disk, check_boot, edit_boot
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("sector_bytes", [512, 4096])
def test_boot_partition_is_clean_and_labeled(tmp_path: Path, sector_bytes: int) -> None:
    disk = build_disk(tmp_path, sector_bytes=sector_bytes)
    check_boot(disk)
    assert SELINUX_CONTEXT.encode() in edit_boot(disk, f"ea_get /{ENTRY} security.selinux")


@pytest.mark.soak
@pytest.mark.acceptance
@pytest.mark.parametrize("sector_bytes", [soaked(512), 4096])
def test_disk_boots_and_reports(tmp_path: Path, sector_bytes: int) -> None:
    disk = build_disk(tmp_path, sector_bytes=sector_bytes, boots=True)
    report = boot_disk(disk, tmp_path, sector_bytes=sector_bytes)
    assert "ignition.firstboot" in report.arguments.split()
    assert report.config == ""
    assert report.keyfiles == {}
