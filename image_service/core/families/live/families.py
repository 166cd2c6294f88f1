"""All families of live ISOs but CoreOS; the first that recognizes an ISO is its family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import Unprocessable
from image_service.core.families.live.anaconda import ANACONDA
from image_service.core.families.live.debian import DEBIAN_INSTALLER, DEBIAN_LIVE
from image_service.core.families.live.others import (
    ALPINE,
    COREOS_GENERIC,
    ESXI,
    FLATCAR,
    GENERIC,
    HARVESTER,
    KAIROS,
    NIXOS,
    TALOS,
    UNIFIED_KERNEL,
)
from image_service.core.families.live.proxmox import PROXMOX
from image_service.core.families.live.suse import AGAMA, COMBUSTION, YAST
from image_service.core.families.live.ubuntu import UBUNTU

if TYPE_CHECKING:
    from image_service.core.families.live.family import LiveFamily
    from image_service.core.families.live.medium import LiveMedium

FAMILIES = (
    *(UBUNTU, DEBIAN_LIVE, DEBIAN_INSTALLER, PROXMOX, ALPINE, KAIROS, HARVESTER, FLATCAR, TALOS, NIXOS, ESXI),
    *(COREOS_GENERIC, COMBUSTION, AGAMA, YAST, ANACONDA, UNIFIED_KERNEL, GENERIC),
)


def detect_family(medium: LiveMedium) -> LiveFamily:
    """Return the family of an ISO; `GENERIC` if no other recognizes it."""
    return next(family for family in FAMILIES if family.recognizes(medium))


def get_family(name: str) -> LiveFamily:
    """Return a family by its name.

    Raises:
        Unprocessable: there is none.
    """
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise Unprocessable(f"there is no family {name!r}; there are coreos, {known}")
