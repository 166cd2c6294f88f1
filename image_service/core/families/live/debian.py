"""Debian: its installer, and live systems that live-build makes.

The installer reads ``/preseed.cfg`` of its initrd before it asks the first question, from every medium. The
cloud-init of a live system reads the NoCloud source whose directory the kernel argument ``ds`` names; the
medium is mounted at ``/run/live/medium``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.families.live.config_checks import check_preseed, check_user_data
from image_service.core.families.live.family import (
    CLOUD_INIT,
    ConfigValidator,
    LiveFamily,
    LiveFiles,
    MediumEdit,
    Netboot,
)
from image_service.core.formats.boot_configuration.boot_edit import BootEdit

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium

_MENU_SECONDS = 5
_UNATTENDED = ("auto=true", "priority=critical")
_NOCLOUD = "ds=nocloud;s=/run/live/medium/nocloud/"
_INSTALLERS = ("install.amd", "install.386", "install.a64", "install", "debian-installer")


def _is_installer(medium: LiveMedium) -> bool:
    is_debian = "Debian" in medium.text(".disk/info") and "live" not in medium.list()
    return (is_debian and any(medium.has(name) for name in _INSTALLERS)) or (
        medium.has("linux", "initrd.gz")
        and "debian-installer" in medium.text("boot/grub/grub.cfg").casefold()
    )


def _preseed(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(
        initrd={"preseed.cfg": config}, boot=BootEdit(append=_UNATTENDED, timeout_seconds=_MENU_SECONDS)
    )


def _user_data(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    files = {"nocloud/user-data": config, "nocloud/meta-data": b"instance-id: image-service\n"}
    return MediumEdit(files=files, boot=BootEdit(append=(_NOCLOUD,), timeout_seconds=_MENU_SECONDS))


DEBIAN_INSTALLER = LiveFamily(
    "debian-installer",
    "preseed file",
    _is_installer,
    LiveFiles(
        (*(f"{name}/vmlinuz" for name in _INSTALLERS), "linux"),
        (*(f"{name}/initrd.gz" for name in (*_INSTALLERS, "install.amd/gtk")), "initrd.gz"),
    ),
    check_preseed,
    _preseed,
    netboot=Netboot(
        (*((f"{name}/vmlinuz", f"{name}/initrd.gz") for name in _INSTALLERS), ("linux", "initrd.gz")),
        " ".join(_UNATTENDED),
        "preseed.cfg",
    ),
)
DEBIAN_LIVE = LiveFamily(
    "debian-live",
    "user-data of cloud-init",
    lambda medium: medium.has("live/filesystem.squashfs"),
    LiveFiles(("live/vmlinuz*",), ("live/initrd*",), ("live/*.squashfs",)),
    check_user_data,
    _user_data,
    CLOUD_INIT,
    Netboot(  # live-boot mounts an ISO that it fetches where it mounts a medium
        (("live/vmlinuz", "live/initrd.img"), ("live/vmlinuz*", "live/initrd*")),
        "boot=live components fetch={iso}",
        config_arguments=lambda _: f" {_NOCLOUD}",
    ),
    validator=ConfigValidator(("cloud-init", "schema", "--config-file"), r"schema errors: (.+)"),
)
