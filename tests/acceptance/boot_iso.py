"""A live ISO of the CoreOS layout that boots from CD and USB, under BIOS and UEFI, and tells what it got.

Debian's kernel, and an initrd of busybox and one script that writes a report to the serial console: what the
kernel was told, what it unpacked, and what there is at the URL of the root file system. Boot loaders, boot
configuration and embed areas are those of a real live ISO: isolinux, and GRUB in ``images/efiboot.img``,
whose stub configuration leads to the one on the ISO.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.debian import unpacked_package
from tests.acceptance.media import master_live
from tests.core.formats.filesystems.iso_builder import live_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

VOLUME_ID = "fedora-coreos-boot"
# On a busy machine the emulated timer is late: the kernel would take it for broken, and panic. Any other
# panic ends the machine at once.
EMULATED = "no_timer_check panic=-1"
KERNEL_ARGUMENTS = (
    f"coreos.liveiso={VOLUME_ID} ignition.firstboot ignition.platform.id=metal console=ttyS0 {EMULATED}"
)

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
VIRTIO_MODULES = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci",
)
_MODULES = ("net/core/failover", "drivers/net/net_failover", *VIRTIO_MODULES, "drivers/net/virtio_net")
NMSTATECTL = b"#!/bin/busybox sh\necho nmstatectl runs\n"
RAMDISK_REPORT = "/usr/local/bin/ramdisk-report"
"""Run by the guest if a ramdisk brings it."""
_INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install /bin
mkdir /proc /sys
mount -t proc proc /proc
mount -t sysfs sysfs /sys
dmesg -n 1  # or messages of the kernel get into the report
say() {{ echo "$1: $2"; }}
for word in $(cat /proc/cmdline); do
    case $word in coreos.live.rootfs_url=*) rootfs_url=${{word#*=}} ;; esac
done
fetch() {{
    for attempt in 1 2 3; do  # whatever order they need
        for module in /modules/*.ko; do insmod $module 2>/dev/null; done
    done
    ip link set eth0 up
    ip addr add 10.0.2.15/24 dev eth0
    ip route add default via 10.0.2.2
    wget -q -O - "$1"
}}
echo "report"
say arguments "$(cat /proc/cmdline)"
say config "$(sha256sum /config.ign)"
say ramdisk "$(test ! -x {RAMDISK_REPORT} || {RAMDISK_REPORT})"
say nmstatectl "$(test ! -x /usr/bin/nmstatectl || /usr/bin/nmstatectl)"
say rootfs "$(test -z "$rootfs_url" || fetch "$rootfs_url" | sha256sum)"
say begin "$(head -c 2048 /config.ign)"
echo "end of report"
poweroff -f
""".encode()


def make_boot_iso(target: Path) -> None:
    """Write the ISO, about 20 MiB, with its minimal ISO in it."""
    options = [*_BIOS_BOOT.split(), "-isohybrid-mbr", f"{_ISOLINUX}/isohdpfx.bin", *_UEFI_BOOT.split()]
    master_live(target, _files(), VOLUME_ID, *options)


def read_kernel() -> bytes:
    """Return a kernel without drivers for SATA and USB."""
    return next(unpacked_package("linux-image-cloud-amd64").glob("boot/vmlinuz-*")).read_bytes()


def make_initrd(init: bytes, modules: Iterable[str]) -> bytes:
    """Return an initrd of busybox, a script and those of the modules that are not built into the kernel."""
    busybox = (unpacked_package("busybox-static") / "bin" / "busybox").read_bytes()
    members = [Member("bin/busybox", busybox, 0o100755), Member("init", init, 0o100755), *_modules(modules)]
    return gzip.compress(write_archive(members), mtime=0)


def _files() -> Mapping[str, bytes]:
    return {
        **live_files(kernel_arguments=KERNEL_ARGUMENTS, rootfs=_rootfs()),
        **_isolinux(),
        "images/efiboot.img": _efi_boot_image(),
        "images/pxeboot/initrd.img": make_initrd(_INIT, _MODULES),
        "images/pxeboot/vmlinuz": read_kernel(),
    }


def _isolinux() -> Mapping[str, bytes]:
    modules = [Path(needs_client(_ISOLINUX_MODULES)) / f"{name}.c32" for name in _MENU.split()]
    loaders = [Path(needs_client(_ISOLINUX)) / "isolinux.bin", *modules]
    return {f"isolinux/{loader.name}": loader.read_bytes() for loader in loaders}


def _modules(names: Iterable[str]) -> Iterator[Member]:
    (tree,) = unpacked_package("linux-image-cloud-amd64").glob("lib/modules/*/kernel")
    for name in names:
        module = tree / f"{name}.ko"
        if module.exists():
            yield Member(f"modules/{module.name}", module.read_bytes())


def _rootfs() -> bytes:
    """Return a squashfs in a cpio archive, with nmstatectl at the path of an OSTree deployment."""
    with TemporaryDirectory() as directory:
        tree, image = Path(directory) / "tree", Path(directory) / "root.squashfs"
        tool = tree / f"ostree/deploy/fedora-coreos/deploy/{'0123abcd' * 8}.0/usr/bin/nmstatectl"
        tool.parent.mkdir(parents=True)
        tool.write_bytes(NMSTATECTL)
        tool.chmod(0o755)
        run_client("mksquashfs", tree, image, "-comp", "zstd", "-noappend", "-quiet", "-no-progress")
        return write_archive([Member("root.squashfs", image.read_bytes(), 0o100644)])


def _efi_boot_image() -> bytes:
    """Return an EFI system partition with GRUB as boot loader of a removable medium."""
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
