"""The CoreOS family of live ISOs: how an image is recognized, and the names of its files and arguments.

Other families have no areas for a config; they are rows of `core/families/live`.

    coreos/igninfo.json    {"file": path, "offset"?: bytes into it, "length"?: bytes}: the Ignition area;
                           where the file is absent, the whole of images/ignition.img
    coreos/kargs.json      where the kernel arguments are: see kargs_areas.py
    coreos/miniso.dat      the recipe of the minimal ISO: see minimal_iso.py
    images/assisted_installer_custom.img
                           in derived minimal ISOs: the area of a ramdisk
    images/pxeboot/        vmlinuz (older s390x: kernel.img), initrd.img, rootfs.img
    generic.ins, images/initrd.addrsize
                           s390x only: the files and their load addresses; the initrd's address and size
"""

from __future__ import annotations

COREOS = "coreos"
"""The name of the family."""

SAMPLE_VOLUME_ID = "fedora-coreos-sample"
"""Of the sample that the service has in standalone mode; it does not boot."""
VOLUME_IDS = ("rhcos-", "fedora-coreos-", "scos-")
"""How the volume identifiers of live ISOs start that coreos-assembler makes of its own configurations."""

FEATURES_JSON = "coreos/features.json"
IGNINFO_JSON = "coreos/igninfo.json"
KARGS_JSON = "coreos/kargs.json"
MINISO_FILE = "coreos/miniso.dat"

IGNITION_FILE = "images/ignition.img"
NMSTATE_FILE = "images/nmstate.img"
RAMDISK_FILE = "images/assisted_installer_custom.img"

MARKS = (IGNINFO_JSON, KARGS_JSON, FEATURES_JSON, MINISO_FILE, IGNITION_FILE)
"""Files that no other system has: with one of them an ISO is of CoreOS, whatever its volume identifier is."""

KERNEL_FILES = ("images/pxeboot/vmlinuz", "images/pxeboot/kernel.img", "images/kernel.img")
INITRD_FILES = ("images/pxeboot/initrd.img", "images/initrd.img")
ROOTFS_FILE = "images/pxeboot/rootfs.img"
INS_FILE = "generic.ins"
INITRD_ADDRSIZE_FILE = "images/initrd.addrsize"

BOOT_CONFIG_FILES = (
    "EFI/centos/grub.cfg",
    "EFI/fedora/grub.cfg",
    "EFI/redhat/grub.cfg",
    "boot/grub/grub.cfg",  # ppc64le
    "isolinux/isolinux.cfg",
)
"""Boot configurations of ISOs without kargs.json, which names them."""

FIRMWARE_FILES = (
    "isolinux/boot.cat",
    "isolinux/isolinux.bin",
    "images/efiboot.img",
    "images/cdboot.img",  # s390x
    "ppc/bootinfo.txt",  # ppc64le
    "boot/grub/core.elf",  # ppc64le
)
"""The El Torito catalog and the boot images that it lists: the files that firmware itself reads."""

BOOT_LOADER_DIRECTORIES = ("EFI", "isolinux", "boot")
"""The files of boot loaders, beside those that firmware reads."""

LIVEISO = "coreos.liveiso="
"""Start of the kernel argument that makes a boot search the full ISO's volume for the rootfs."""

ROOTFS_URL = "coreos.live.rootfs_url="
"""Start of the kernel argument that makes a boot fetch the rootfs."""

WITHOUT_MINIMAL_ISO = frozenset({"s390x"})
"""Architectures whose boot loader loads a single initrd, so that a minimal ISO could not add any."""

FIRST_WITH_NMSTATE = "4.18.0-ec.0"
"""The OpenShift version from which on nmstatectl is no longer in the initrd."""
