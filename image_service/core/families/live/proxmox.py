"""Proxmox VE, Backup Server and Mail Gateway: GRUB starts the automatic installer if its file is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.families.live.config_checks import check_answer_file
from image_service.core.families.live.family import (
    ConfigValidator,
    LiveFamily,
    LiveFiles,
    MediumEdit,
    Netboot,
)

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium

_PRODUCTS = (".pve-cd-id.txt", ".pbs-cd-id.txt", ".pmg-cd-id.txt", "pve-installer.squashfs")


def _recognizes(medium: LiveMedium) -> bool:
    return any(medium.has(name) for name in _PRODUCTS) or "PRODUCT='p" in medium.text(".cd-info")


def _place(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"auto-installer-mode.toml": b'mode = "iso"\n', "answer.toml": config})


PROXMOX = LiveFamily(
    "proxmox",
    "answer file",
    _recognizes,
    LiveFiles(("boot/linux26",), ("boot/initrd.img",), ("p??-*.squashfs",)),
    check_answer_file,
    _place,
    netboot=Netboot(  # its initrd mounts an ISO that it has itself
        (("boot/linux26", "boot/initrd.img"),),
        "ro ramdisk_size=16777216 rw quiet splash=silent",
        config_arguments=lambda _: " proxmox-start-auto-installer",
        iso="proxmox.iso",
    ),
    validator=ConfigValidator(
        ("proxmox-auto-install-assistant", "validate-answer"),
        r"(line \d+, column \d+)\n(?:.*\|.*\n)*(.+)",  # between them it quotes the line
    ),
)
