from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.toolkit.coreos_disk import BLS_ENTRY, ENTRY, INITRAMFS, KERNEL, build_disk
from tests.toolkit.validation.linux_disk import DRIVERS, initrd, kernel

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def ec2_disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CoreOS disk on which every check for EC2 that applies is ok; tests change copies."""
    files = {
        ENTRY: BLS_ENTRY.replace("platform.id=metal", "platform.id=aws").encode(),
        KERNEL: kernel(0x8664),
        INITRAMFS: initrd(DRIVERS),
    }
    disk = build_disk(tmp_path_factory.mktemp("ec2"), files=files)
    with disk.open("r+b") as file:
        file.write(b"\xeb\x63\x90")  # as GRUB's boot code begins
    return disk
