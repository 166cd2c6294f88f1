"""Ubuntu: subiquity reads ``/autoinstall.yaml`` of the medium, and asks nothing with ``autoinstall``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.families.live.config_checks import check_autoinstall
from image_service.core.families.live.family import CLOUD_INIT, LiveFamily, LiveFiles, MediumEdit, Netboot
from image_service.core.formats.boot_configuration.boot_edit import BootEdit

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium


def _recognizes(medium: LiveMedium) -> bool:
    return medium.has("casper") and "Ubuntu" in medium.text(".disk/info") + medium.volume_id


def _place(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"autoinstall.yaml": config}, boot=BootEdit(append=("autoinstall",)))


UBUNTU = LiveFamily(
    "ubuntu",
    "autoinstall configuration",
    _recognizes,
    LiveFiles(("casper/*vmlinuz*",), ("casper/*initrd*",), ("casper/*.squashfs",)),
    check_autoinstall,
    _place,
    CLOUD_INIT,
    Netboot(  # casper fetches what ends in .iso; cloud-init would fetch it, too, to look for a config in it
        (("casper/vmlinuz", "casper/initrd*"), ("casper/*vmlinuz*", "casper/*initrd*")),
        "ip=dhcp netboot=url url={iso} cloud-config-url=/dev/null",
        config_arguments=lambda _: " autoinstall",
    ),
)
