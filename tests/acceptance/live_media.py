"""Bootable ISOs of four layouts, whose guests tell what they found on the serial console.

GRUB in all its places as grub-mkrescue makes it; an EFI system partition behind the ISO's own partition, as
Talos and Ubuntu have it, with systemd-boot or with a unified kernel; and Debian's installer with its own
menus, GRUB and shim. In all but the last, the guest is Debian's kernel with a script: it shows its arguments,
a file of the initrd, credentials, and the files of each partition that holds an ISO.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.acceptance.boot_iso import EMULATED, VIRTIO_MODULES, make_initrd, read_kernel
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.debian import unpacked_package
from tests.acceptance.guest import run_machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARGUMENTS = f"console=ttyS0 {EMULATED}"
SEEN_FILE = "seen.txt"
"""Of the initrd and of the medium: what the guest shows."""
MEDIUM_FILES = (SEEN_FILE, "nocloud/user-data", "config.yaml")

_DISK = [
    "-drive",
    "if=none,id=second,format=raw,readonly=on,file={}",
    "-device",
    "virtio-blk-pci,drive=second",
]
_MODULES = (*VIRTIO_MODULES, "drivers/block/virtio_blk", "drivers/cdrom/cdrom", "fs/isofs/isofs")
_INIT = f"""\
#!/bin/busybox sh
/bin/busybox --install /bin
mkdir /proc /dev /mnt
mount -t proc proc /proc
mount -t devtmpfs dev /dev
dmesg -n 1  # or messages of the kernel get into the report
for attempt in 1 2 3; do  # whatever order they need
    for module in /modules/*.ko; do insmod $module 2>/dev/null; done
done
show() {{ test ! -e "$2" || echo "$1=$(cat "$2")"; }}
echo "report"
show arguments /proc/cmdline
for file in {SEEN_FILE} preseed.cfg; do show "initrd $file" /$file; done
for file in /.extra/global_credentials/*; do show "credential ${{file##*/}}" $file; done
for device in vda vda1 vda2 vda3 vda4; do
    mount -t iso9660 -o ro /dev/$device /mnt 2>/dev/null || continue
    for file in {" ".join(MEDIUM_FILES)}; do show "$device $file" /mnt/$file; done
    umount /mnt
done
echo "end of report"
poweroff -f
""".encode()
_REPORT = re.compile(r"report\n(.*)\nend of report", re.DOTALL)

_GRUB_CONFIG = f"""\
set timeout=0
menuentry "live" {{
    linux /boot/vmlinuz {ARGUMENTS}
    initrd /boot/initrd.gz
}}
"""
_ENTRY = f"title live\nlinux /vmlinuz\ninitrd /initrd.gz\noptions {ARGUMENTS}\n"
_ESP_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
_ESP_MEBIBYTES = 40
_BOOT_PROGRAM = "EFI/BOOT/BOOTX64.EFI"
# Where systemd's tools put the sections of a unified kernel.
_SECTIONS = {".osrel": 0x20000, ".cmdline": 0x30000, ".linux": 0x2000000, ".initrd": 0x3000000}

_INSTALLER = "usr/lib/debian-installer/images/12/amd64/text/debian-installer"
_BIOS_BOOT = "-b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
_UEFI_BOOT = "-eltorito-alt-boot -e boot/grub/efi.img -no-emul-boot -isohybrid-gpt-basdat"
_ISOLINUX = "/usr/lib/ISOLINUX"


def boot_live(options: Sequence[str], image: str) -> Mapping[str, str]:
    """Return what the guest shows, by what it is.

    Args:
        options: firmware and boot medium of the machine.
        image: file or URL of the boot medium, which the kernel reads as another disk: it lacks the drivers.
    """
    disk = [option.format(image) for option in _DISK]
    console = run_machine(*options, *disk).decode(errors="replace")
    found = _REPORT.search(console)
    assert found, console
    return dict(line.split("=", 1) for line in found[1].splitlines())


def make_rescue_iso(target: Path) -> None:
    """Write an ISO of grub-mkrescue for BIOS and UEFI: GPT, HFS+, no partition that holds the ISO."""
    for platform in ("i386-pc", "x86_64-efi"):
        needs_client(f"/usr/lib/grub/{platform}")
    files = {"boot/grub/grub.cfg": _GRUB_CONFIG.encode(), **_linux("boot/")}
    with TemporaryDirectory() as directory:
        _write(Path(directory), files)
        run_client("grub-mkrescue", "-o", target, directory, "--", "-volid", "RESCUE")


def make_systemd_boot_iso(target: Path, *, is_gpt: bool) -> None:
    """Write an ISO for UEFI, with systemd-boot and its kernel in an EFI system partition behind the ISO.

    Args:
        target: the image.
        is_gpt: whether the partitions are in a GPT; else they are in an MBR.
    """
    files = {
        _BOOT_PROGRAM: _systemd("systemd-bootx64.efi"),
        "loader/loader.conf": b"timeout 0\n",
        "loader/entries/live.conf": _ENTRY.encode(),
        **_linux(""),
    }
    _master_with_partition(target, files, is_gpt=is_gpt)


def make_unified_kernel_iso(target: Path) -> None:
    """Write an ISO for UEFI with a unified kernel, which systemd-boot finds, in an EFI system partition."""
    files = {
        _BOOT_PROGRAM: _systemd("systemd-bootx64.efi"),
        "loader/loader.conf": b"timeout 0\n",
        "EFI/Linux/live.efi": _unified_kernel(),
    }
    _master_with_partition(target, files, is_gpt=True)


def make_debian_installer_iso(target: Path) -> None:
    """Write Debian's installer with its own menus, which wait for ever, for BIOS, UEFI and Secure Boot."""
    packed = unpacked_package("debian-installer-12-netboot-amd64") / _INSTALLER
    shim = unpacked_package("shim-signed") / "usr/lib/shim/shimx64.efi.signed"
    grub = unpacked_package("grub-efi-amd64-signed") / "usr/lib/grub/x86_64-efi-signed/gcdx64.efi.signed"
    programs = {_BOOT_PROGRAM: shim.read_bytes(), "EFI/BOOT/grubx64.efi": grub.read_bytes()}
    installer = {f"debian-installer/{path}": content for path, content in _read(packed).items()}
    screens, menus = "debian-installer/amd64/boot-screens", "debian-installer/amd64/grub/"
    files = {
        ".disk/info": b"Debian GNU/Linux 12 netboot",
        "isolinux.bin": (Path(needs_client(_ISOLINUX)) / "isolinux.bin").read_bytes(),
        "ldlinux.c32": installer[f"{screens}/ldlinux.c32"],
        "isolinux.cfg": installer[f"{screens}/syslinux.cfg"],
        "boot/grub/efi.img": _fat(programs, 8),
        **{path.replace(menus, "boot/grub/"): content for path, content in installer.items()},
    }
    hybrid = ("-isohybrid-mbr", f"{_ISOLINUX}/isohdpfx.bin", "-partition_offset", "16")
    _master(target, files, *_BIOS_BOOT.split(), *hybrid, *_UEFI_BOOT.split())


def _linux(prefix: str) -> Mapping[str, bytes]:
    return {f"{prefix}vmlinuz": read_kernel(), f"{prefix}initrd.gz": make_initrd(_INIT, _MODULES)}


def _systemd(name: str) -> bytes:
    return (unpacked_package("systemd-boot-efi") / "usr/lib/systemd/boot/efi" / name).read_bytes()


def _unified_kernel() -> bytes:
    linux = _linux("")
    contents = {
        ".osrel": b'ID=test\nVERSION_ID=1\nPRETTY_NAME="test"\n',
        ".cmdline": ARGUMENTS.encode(),
        ".linux": linux["vmlinuz"],
        ".initrd": linux["initrd.gz"],
    }
    with TemporaryDirectory() as directory:
        image = Path(directory) / "kernel.efi"
        image.write_bytes(_systemd("linuxx64.efi.stub"))
        options = []
        for name, address in _SECTIONS.items():
            (Path(directory) / name).write_bytes(contents[name])
            options += [
                f"--add-section={name}={directory}/{name}",
                f"--change-section-vma={name}={address:#x}",
            ]
        run_client("objcopy", *options, image)
        return image.read_bytes()


def _master_with_partition(target: Path, files: Mapping[str, bytes], *, is_gpt: bool) -> None:
    with TemporaryDirectory() as directory:
        partition = Path(directory) / "esp.img"
        partition.write_bytes(_fat(files, _ESP_MEBIBYTES))
        appended = ("-append_partition", "2", _ESP_TYPE if is_gpt else "0xef", str(partition))
        table = ("-appended_part_as_gpt",) if is_gpt else ()
        boot = ("-e", "--interval:appended_partition_2:all::", "-no-emul-boot", "-partition_offset", "16")
        _master(target, {"readme.txt": b"a live system\n"}, *appended, *table, *boot)


def _master(target: Path, files: Mapping[str, bytes], *options: str) -> None:
    with TemporaryDirectory() as directory:
        _write(Path(directory), files)
        run_client("xorriso", "-as", "mkisofs", "-r", "-J", "-V", "LIVE", *options, "-o", target, directory)


def _fat(files: Mapping[str, bytes], mebibytes: int) -> bytes:
    """Return a FAT file system, whose directories have no room to spare."""
    with TemporaryDirectory() as directory:
        image, tree = Path(directory) / "fat.img", Path(directory) / "tree"
        _write(tree, files)
        run_client("mformat", "-C", "-i", image, "-T", str(mebibytes * 2048), "-h", "64", "-s", "32", "::")
        run_client("mcopy", "-s", "-i", image, *sorted(tree.iterdir()), "::")
        return image.read_bytes()


def _write(directory: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)


def _read(directory: Path) -> Mapping[str, bytes]:
    return {
        str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()
    }
