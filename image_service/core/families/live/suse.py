"""openSUSE and SLES: linuxrc reads ``/autoinst.xml`` of the medium by itself, and starts AutoYaST with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.families.live.config_checks import check_xml
from image_service.core.families.live.family import LiveFamily, LiveFiles, MediumEdit

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium


_LOADERS = ("x86_64/loader", "aarch64")


def _recognizes(medium: LiveMedium) -> bool:
    return medium.has("media.1") or medium.has("boot/x86_64/loader", "boot/x86_64/root")


def _place(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"autoinst.xml": config})


SUSE = LiveFamily(
    "suse",
    "AutoYaST profile",
    _recognizes,
    LiveFiles(
        tuple(f"boot/{name}/linux" for name in _LOADERS),
        tuple(f"boot/{name}/initrd" for name in _LOADERS),
        ("boot/x86_64/root", "boot/aarch64/root"),
    ),
    check_xml,
    _place,
)
