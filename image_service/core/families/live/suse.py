"""openSUSE and SLES: the installers of YaST and of Agama, and images that Combustion configures.

linuxrc reads ``/autoinst.xml`` of the medium by itself, and starts AutoYaST with it. Agama, from Leap 16 and
SLES 16 on, is a live system, which mounts the medium at ``/run/initramfs/live``; it takes a profile of its
own, as JSON or Jsonnet, an AutoYaST profile, or a script; a profile from a second medium, too. The installer
of MicroOS and SLE Micro writes an image to the disk, in which Combustion looks for a second medium with its
label.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.core.errors import ConfigInvalid, Unprocessable
from image_service.core.families.live.config_checks import check_xml
from image_service.core.families.live.family import LiveFamily, LiveFiles, MediumEdit, Netboot, refuse
from image_service.core.formats.boot_configuration.boot_edit import BootEdit

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium

_LOADERS = ("x86_64/loader", "aarch64")
_PAIRS = tuple((f"boot/{name}/linux", f"boot/{name}/initrd") for name in _LOADERS)
_KERNELS = tuple(f"boot/{name}/linux" for name in _LOADERS)
_INITRDS = tuple(f"boot/{name}/initrd" for name in _LOADERS)
_LIVE = "/run/initramfs/live"
_INSTALLS = re.compile(r"agama|install|sles", re.IGNORECASE)


def _has_yast(medium: LiveMedium) -> bool:
    return medium.has("media.1") or medium.has("boot/x86_64/loader", "boot/x86_64/root")


def _profile_of_yast(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"autoinst.xml": config})


def _has_agama(medium: LiveMedium) -> bool:
    is_live = medium.has("LiveOS/squashfs.img") and any(
        medium.has(f"boot/{loader}/linux") for loader in _LOADERS
    )
    return is_live and bool(_INSTALLS.search(medium.volume_id + medium.text("boot/grub2/grub.cfg")))


def _profile_of_agama(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={_agama_name(config): config}, boot=BootEdit(append=(_automatic(config),)))


def _name_on_second_medium(config: bytes) -> str:
    """Return the name by which Agama finds a profile that no argument names."""
    suffix = _agama_name(config).rpartition(".")[2]
    if suffix == "sh":
        raise Unprocessable("Agama looks for profiles on a second medium, and for no script: give full.iso")
    return f"autoinst.{suffix}"


def _automatic(config: bytes) -> str:
    return f"inst.auto=file://{_LIVE}/{_agama_name(config)}"


def _agama_name(config: bytes) -> str:
    """Return the name of a profile, by whose suffix Agama knows its language."""
    if config.lstrip().startswith(b"<"):
        return "autoinst.xml"
    if config.startswith(b"#!"):
        return "agama.sh"
    with suppress(ValueError, RecursionError):
        json.loads(config)
        return "agama.json"
    return "agama.jsonnet"


def _check_profile(config: bytes) -> None:
    name = _agama_name(config)
    if name == "autoinst.xml":
        check_xml(config)
    elif name == "agama.jsonnet" and not re.search(rb"[{+:]", config):
        raise ConfigInvalid(
            "the config is not a profile of Agama or AutoYaST: JSON, Jsonnet, XML or a script"
        )


def _check_combustion(config: bytes) -> None:
    if not config.startswith(b"#!"):
        raise ConfigInvalid(
            "Combustion would not run the script: its first line must be #! and an interpreter"
        )


YAST = LiveFamily(
    "suse",
    "AutoYaST profile",
    _has_yast,
    LiveFiles(
        _KERNELS,
        _INITRDS,
        ("boot/x86_64/root", "boot/aarch64/root"),
    ),
    check_xml,
    _profile_of_yast,
    netboot=Netboot(  # install=URL of a repository is an argument of the infra-env
        _PAIRS, "ifcfg=*=dhcp", "autoinst.xml", lambda _: " autoyast=file:///autoinst.xml"
    ),
)
AGAMA = LiveFamily(
    "agama",
    "profile of Agama",
    _has_agama,
    LiveFiles(
        _KERNELS,
        _INITRDS,
        ("LiveOS/squashfs.img",),
    ),
    _check_profile,
    _profile_of_agama,
    ("OEMDRV", _name_on_second_medium),
    netboot=Netboot(
        _PAIRS,
        "ip=dhcp root=live:{iso}",
        config_arguments=lambda config: f" {_automatic(config)}",
    ),
)
COMBUSTION = LiveFamily(
    "combustion",
    "script of Combustion",
    lambda medium: "IMAGE=" in medium.text("config.isoclient"),
    LiveFiles(
        ("boot/x86_64/loader/linux", "boot/aarch64/loader/linux"),
        ("boot/x86_64/loader/initrd", "boot/aarch64/loader/initrd"),
        ("*.raw.squashfs", "*.raw.xz"),
    ),
    _check_combustion,
    refuse(
        "the installed system reads the script from a medium labelled combustion: give config.iso as a"
        " second CD"
    ),
    ("combustion", "combustion/script"),
    "writes an image from its ISO: take the files for PXE (*.install.tar) of the same release",
)
