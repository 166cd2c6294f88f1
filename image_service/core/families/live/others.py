"""Families whose config is one file, or cannot be on the ISO itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.errors import ConfigInvalid, FormatError, Unprocessable
from image_service.core.families.live.config_checks import (
    check_any_ignition,
    check_apkovl,
    check_esxi_kickstart,
    check_yaml,
)
from image_service.core.families.live.family import (
    CLOUD_INIT,
    ConfigValidator,
    LiveFamily,
    LiveFiles,
    MediumEdit,
    Netboot,
    refuse,
)
from image_service.core.formats.boot_configuration.boot_edit import BootEdit
from image_service.core.formats.boot_configuration.finding import find_configs
from image_service.core.formats.efi_program import read_efi_program

if TYPE_CHECKING:
    from image_service.core.families.live.medium import LiveMedium

IGNITION_CONFIG = "Ignition config"
"""What families call the config that an infra-env without another has."""


_APKOVL = "localhost.apkovl.tar.gz"
_CREDENTIAL = "loader/credentials/image-service.cred"


def _is_alpine(medium: LiveMedium) -> bool:
    return medium.has(".alpine-release")


def _apkovl(medium: LiveMedium, config: bytes) -> MediumEdit:
    """Its initrd unpacks the first ``*.apkovl.tar.gz`` in the root of the boot medium."""
    del medium
    return MediumEdit(files={_APKOVL: config})


def _is_kairos(medium: LiveMedium) -> bool:
    return medium.has("rootfs.squashfs") and medium.volume_id.startswith(("COS_LIVE", "KAIROS", "ELEMENTAL"))


def _cloud_config(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"config.yaml": config})


def _is_esxi(medium: LiveMedium) -> bool:
    return b"kernelopt=" in (medium.read("boot.cfg") or b"").lower()


def _kickstart_of_esxi(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(files={"KS.CFG": config}, boot=BootEdit(append=("ks=cdrom:/KS.CFG",)))


def _is_flatcar(medium: LiveMedium) -> bool:
    return medium.has("flatcar/vmlinuz-a") or medium.has("flatcar/vmlinuz")


def _ignition_of_flatcar(medium: LiveMedium, config: bytes) -> MediumEdit:
    del medium
    return MediumEdit(
        initrd={"usr/share/oem/config.ign": config}, boot=BootEdit(append=("flatcar.first_boot=1",))
    )


def _is_coreos_without_area(medium: LiveMedium) -> bool:
    """image-builder's generic ISO: the system is in ``LiveOS``, and boot entries name Ignition's platform."""
    return medium.has("LiveOS", "images/pxeboot/initrd.img") and any(
        b"ignition.platform.id=" in config.content for config in find_configs(medium).files
    )


def _ignition_of_coreos(medium: LiveMedium, config: bytes) -> MediumEdit:
    """A live CoreOS reads ``/config.ign`` of its initrds, as it does with an embed area."""
    del medium
    return MediumEdit(initrd={"config.ign": config})


def _is_talos(medium: LiveMedium) -> bool:
    """Its ISO for UEFI alone has a unified kernel, and no label of its own."""
    return (
        medium.volume_id.upper().startswith("TALOS")
        or medium.has("boot/initramfs.xz", "boot/vmlinuz")
        or any(path.casefold().startswith("efi/linux/talos") for path in medium.unified_kernels)
    )


def _second_medium(medium: LiveMedium, config: bytes) -> MediumEdit:
    """Talos reads its configuration from the config ISO, which the argument tells it to look for."""
    del config
    argument = "talos.config=metal-iso"
    if medium.unified_kernels:
        raise Unprocessable(
            f"Talos needs the argument {argument}, and the arguments of its signed unified kernel are in it:"
            " take an ISO that was made with this argument, and give config.iso as a second CD"
        )
    return MediumEdit(boot=BootEdit(append=(argument,)))


def _is_harvester(medium: LiveMedium) -> bool:
    return medium.has("harvester-release.yaml") or medium.volume_id.upper().startswith("HARVESTER")


def _is_nixos(medium: LiveMedium) -> bool:
    return medium.has("nix-store.squashfs") or medium.volume_id.startswith("nixos")


def _has_unified_kernel(medium: LiveMedium) -> bool:
    return bool(medium.unified_kernels)


def _credentials(medium: LiveMedium, config: bytes) -> MediumEdit:
    """systemd-stub reads them beside the kernel, whose arguments are a part of its signature.

    An addon is a program for UEFI whose arguments are added to those of the kernel; it has a signature of its
    own.
    """
    del medium
    path = "loader/addons/image-service.addon.efi" if _is_program(config) else _CREDENTIAL
    return MediumEdit(efi_files={path: config})


def _is_program(config: bytes) -> bool:
    return config.startswith(b"MZ")


def _check_addon(config: bytes) -> None:
    if not _is_program(config):
        return
    try:
        read_efi_program(lambda at, length: config[at : at + length], len(config))
    except FormatError as error:
        raise ConfigInvalid(f"the addon is not a program for UEFI: {error.detail}") from None


_NOT_OF_HARVESTER = refuse(
    "Harvester reads its configuration by HTTP: append harvester.install.automatic=true and"
    " harvester.install.config_url=URL"
)
_NOT_OF_NIXOS = refuse(
    "a NixOS ISO reads no configuration of its medium: append arguments, or build it into the ISO"
)
_NOT_OF_AN_UNKNOWN_FAMILY = refuse(
    "no family of this ISO is known, so there is no place for a config: give files, arguments, an initrd"
)

ALPINE = LiveFamily(
    "alpine",
    "apkovl archive (tar.gz)",
    _is_alpine,
    LiveFiles(("boot/vmlinuz-*",), ("boot/initramfs-*",), ("boot/modloop-*",)),
    check_apkovl,
    _apkovl,
    netboot=Netboot(  # alpine_repo=URL is an argument of the infra-env; the signature of modloop has its name
        (("boot/vmlinuz-*", "boot/initramfs-*"),),
        "ip=dhcp modloop={rootfs}?/{name}",
        _APKOVL,
        lambda _: f" apkovl=/{_APKOVL}",
    ),
)
KAIROS = LiveFamily(
    "kairos",
    "cloud-config",
    _is_kairos,
    LiveFiles(("boot/kernel*",), ("boot/initrd*",), ("rootfs.squashfs",)),
    check_yaml,
    _cloud_config,
    CLOUD_INIT,
    Netboot(  # as AuroraBoot boots it; config_url=URL is an argument of the infra-env
        (("boot/kernel*", "boot/initrd*"),),
        "ip=dhcp rd.neednet=1 rd.live.overlay.overlayfs rd.cos.disable root=live:{rootfs} netboot"
        " install-mode",
    ),
)
ESXI = LiveFamily(
    "esxi",
    "kickstart file",
    _is_esxi,
    LiveFiles(("b.b00",), ("*.v??",)),  # the kernel and its modules
    check_esxi_kickstart,
    _kickstart_of_esxi,
    netboot="boots over the network by mboot.efi, and by a boot.cfg with the URLs of its modules",
)
COREOS_GENERIC = LiveFamily(
    "coreos-generic",
    IGNITION_CONFIG,
    _is_coreos_without_area,
    LiveFiles(("images/pxeboot/vmlinuz",), ("images/pxeboot/initrd.img",), ("LiveOS/squashfs.img",)),
    check_any_ignition,
    _ignition_of_coreos,
    netboot="finds its root file system by the label of its medium: give its ISO as a virtual CD",
)
FLATCAR = LiveFamily(
    "flatcar",
    IGNITION_CONFIG,
    _is_flatcar,
    LiveFiles(("flatcar/vmlinuz*",), ("flatcar/cpio.gz",)),
    check_any_ignition,
    _ignition_of_flatcar,
    netboot=Netboot(
        (("flatcar/vmlinuz-a", "flatcar/cpio.gz"), ("flatcar/vmlinuz", "flatcar/cpio.gz")),
        "flatcar.first_boot=1",
        "usr/share/oem/config.ign",
    ),
)
TALOS = LiveFamily(
    "talos",
    "machine configuration",
    _is_talos,
    LiveFiles(("boot/vmlinuz",), ("boot/initramfs.xz",)),
    check_yaml,
    _second_medium,
    ("metal-iso", "config.yaml"),
    Netboot((("boot/vmlinuz", "boot/initramfs.xz"),), "talos.platform=metal talos.config=metal-iso"),
    validator=ConfigValidator(
        ("talosctl", "validate", "--mode", "metal", "--config"), r"yaml: (.+)|\* (.+)|(unknown keys found)"
    ),
)
HARVESTER = LiveFamily(
    "harvester",
    "configuration",
    _is_harvester,
    LiveFiles(("boot/kernel*",), ("boot/initrd*",), ("rootfs.squashfs",)),
    _NOT_OF_HARVESTER,
    _NOT_OF_HARVESTER,
    netboot=Netboot(
        (("boot/kernel*", "boot/initrd*"),),
        "ip=dhcp net.ifnames=1 rd.cos.disable rd.noverifyssl root=live:{rootfs}",
    ),
)
NIXOS = LiveFamily(
    "nixos",
    "configuration",
    _is_nixos,
    LiveFiles(("boot/bzImage",), ("boot/initrd*",), ("nix-store.squashfs",)),
    _NOT_OF_NIXOS,
    _NOT_OF_NIXOS,
    netboot="finds its store by the label of its medium: build netbootRamdisk of the same configuration",
)
UNIFIED_KERNEL = LiveFamily(
    "unified-kernel",
    "systemd credential or addon",
    _has_unified_kernel,
    LiveFiles(),
    _check_addon,
    _credentials,
    netboot="has kernel, initrd and arguments in one signed program: boot its ISO by UEFI's HTTP",
)
GENERIC = LiveFamily(
    "generic",
    "config",
    lambda _: True,
    LiveFiles(),
    _NOT_OF_AN_UNKNOWN_FAMILY,
    _NOT_OF_AN_UNKNOWN_FAMILY,
    netboot="has no known files for that",
)
