"""A live ISO of the CoreOS layout that boots from CD and USB, under BIOS and UEFI, and tells what it got.

Debian's kernel, and an initrd of busybox and one script that writes a report to the serial console. Boot
loaders, boot configuration and embed areas are those of a real live ISO: isolinux, and GRUB in
``images/efiboot.img``, whose stub configuration leads to the one on the ISO.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from image_service.coreos.newc import Member, write_archive
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.debian import unpacked_package
from tests.acceptance.media import master
from tests.coreos.iso_builder import live_files

if TYPE_CHECKING:
    from collections.abc import Mapping

VOLUME_ID = "fedora-coreos-boot"
KERNEL_ARGUMENTS = f"coreos.liveiso={VOLUME_ID} ignition.firstboot ignition.platform.id=metal console=ttyS0"

_ISOLINUX = "/usr/lib/ISOLINUX"
_ISOLINUX_MODULES = "/usr/lib/syslinux/modules/bios"
_MENU = "ldlinux vesamenu libcom32 libutil"
_BIOS_BOOT = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
_UEFI_BOOT = "-eltorito-alt-boot -e images/efiboot.img -no-emul-boot -isohybrid-gpt-basdat"
_GRUB_MODULES = "part_gpt part_msdos fat iso9660 search search_label normal configfile linux"
_GRUB_STUB = f"""\
search --label "{VOLUME_ID}" --set root --no-floppy
configfile ($root)/EFI/redhat/grub.cfg
"""
_INIT = b"""\
#!/bin/busybox sh
/bin/busybox mkdir /proc
/bin/busybox mount -t proc proc /proc
/bin/busybox dmesg -n 1  # or messages of the kernel get into the report
echo "report"
/bin/busybox cat /proc/cmdline
/bin/busybox sha256sum /config.ign
/bin/busybox head -c 2048 /config.ign
echo
echo "end of report"
/bin/busybox poweroff -f
"""


def make_boot_iso(target: Path) -> None:
    """Write the ISO, about 20 MiB."""
    options = [*_BIOS_BOOT.split(), "-isohybrid-mbr", f"{_ISOLINUX}/isohdpfx.bin", *_UEFI_BOOT.split()]
    master(target, _files(), VOLUME_ID, *options)


def _files() -> Mapping[str, bytes]:
    kernel = next(unpacked_package("linux-image-cloud-amd64").glob("boot/vmlinuz-*"))
    return {
        **live_files(kernel_arguments=KERNEL_ARGUMENTS),
        **_isolinux(),
        "images/efiboot.img": _efi_boot_image(),
        "images/pxeboot/initrd.img": _initrd(),
        "images/pxeboot/vmlinuz": kernel.read_bytes(),
    }


def _isolinux() -> Mapping[str, bytes]:
    modules = [Path(needs_client(_ISOLINUX_MODULES)) / f"{name}.c32" for name in _MENU.split()]
    loaders = [Path(needs_client(_ISOLINUX)) / "isolinux.bin", *modules]
    return {f"isolinux/{loader.name}": loader.read_bytes() for loader in loaders}


def _initrd() -> bytes:
    busybox = (unpacked_package("busybox-static") / "bin" / "busybox").read_bytes()
    members = [Member("bin/busybox", busybox, 0o100755), Member("init", _INIT, 0o100755)]
    return gzip.compress(write_archive(members), mtime=0)


def _efi_boot_image() -> bytes:
    """An EFI system partition with GRUB as the removable medium's boot loader."""
    needs_client("/usr/lib/grub/x86_64-efi")
    with TemporaryDirectory() as directory:
        stub, loader, image = (Path(directory) / name for name in ("stub.cfg", "BOOTX64.EFI", "efiboot.img"))
        stub.write_text(_GRUB_STUB)
        target = ("-O", "x86_64-efi", "-p", "/EFI/BOOT", "-c", stub, "-o", loader)
        run_client("grub-mkimage", *target, *_GRUB_MODULES.split())
        run_client("mformat", "-C", "-f", "2880", "-i", image, "::")
        run_client("mmd", "-i", image, "::EFI", "::EFI/BOOT")
        run_client("mcopy", "-i", image, loader, "::EFI/BOOT")
        return image.read_bytes()
