"""Fedora, RHEL and their kin: Anaconda reads the kickstart file that ``inst.ks`` names, here on the medium.

``hd:LABEL=…`` finds the medium as a CD and as a stick.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.core.families.live.config_checks import check_kickstart
from image_service.core.families.live.family import (
    ConfigValidator,
    LiveFamily,
    LiveFiles,
    MediumEdit,
    Netboot,
)
from image_service.core.formats.boot_configuration.boot_edit import BootEdit

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium

_KICKSTART = "ks.cfg"
_SPECIAL = re.compile(r"[^\w.+-]", re.ASCII)


def _recognizes(medium: LiveMedium) -> bool:
    return medium.has(".treeinfo") or medium.has("images/install.img") or medium.has(".discinfo")


def _place(medium: LiveMedium, config: bytes) -> MediumEdit:
    label = _SPECIAL.sub(lambda found: f"\\x{ord(found[0]):02x}", medium.volume_id)
    arguments = (f"inst.ks=hd:LABEL={label}:/{_KICKSTART}",)
    return MediumEdit(files={_KICKSTART: config}, boot=BootEdit(append=arguments))


ANACONDA = LiveFamily(
    "anaconda",
    "kickstart file",
    _recognizes,
    LiveFiles(
        ("images/pxeboot/vmlinuz", "isolinux/vmlinuz"),
        ("images/pxeboot/initrd.img", "isolinux/initrd.img"),
        ("images/install.img", "LiveOS/squashfs.img"),
    ),
    check_kickstart,
    _place,
    ("OEMDRV", _KICKSTART),
    Netboot(  # the packages are those that the kickstart file names
        tuple((f"{name}/vmlinuz", f"{name}/initrd.img") for name in ("images/pxeboot", "isolinux")),
        "ip=dhcp root=live:{rootfs}",
        _KICKSTART,
        lambda _: f" inst.ks=file:/{_KICKSTART}",
    ),
    validator=ConfigValidator(("ksvalidator",), r"(line \d+) of the kickstart file:\s+(.+)"),
)
