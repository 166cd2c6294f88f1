"""Bootable ISOs of four layouts, whose guests tell what they found on the serial console.

GRUB in all its places as grub-mkrescue makes it, for Talos with Talos' names; an EFI system partition behind
the ISO's own partition, as Talos and Ubuntu have it, with systemd-boot or with a unified kernel; and Debian's
installer with its own menus, GRUB and shim. In all but the last, the guest is Debian's kernel with a script:
it shows its arguments, a file of the initrd, credentials, and the files of each partition that holds an ISO.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.acceptance.boot_iso import EMULATED, VIRTIO_MODULES, make_initrd, read_kernel
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.debian import unpacked_package
from tests.acceptance.guest import run_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

ARGUMENTS = f"console=ttyS0 {EMULATED}"
SEEN_FILE = "seen.txt"
"""Of the initrd and of the medium: what the guest shows."""
MEDIUM_FILES = (SEEN_FILE, "nocloud/user-data", "config.yaml")
TALOS_LABEL = "metal-iso"
"""By which Talos finds the medium with its configuration."""

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
echo "secure boot=$(dmesg | grep -c "secureboot: Secure boot enabled")"
for file in {SEEN_FILE} preseed.cfg; do show "initrd $file" /$file; done
for file in /.extra/global_credentials/*; do show "credential ${{file##*/}}" $file; done
show_files() {{
    mount -t iso9660 -o ro "$2" /mnt 2>/dev/null || return
    for file in {" ".join(MEDIUM_FILES)}; do show "$1 $file" /mnt/$file; done
    umount /mnt
}}
for device in vda vda1 vda2 vda3 vda4; do show_files $device /dev/$device; done
show_files {TALOS_LABEL} "$(findfs LABEL={TALOS_LABEL} 2>/dev/null)"
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
_TALOS_GRUB_CONFIG = f"""\
set default=0
set timeout=3
insmod all_video
terminal_input console
terminal_output console
menuentry "Talos ISO" {{
	set gfxmode=auto
	set gfxpayload=text
	linux /boot/vmlinuz {ARGUMENTS}
	initrd /boot/initramfs.xz
}}
"""
_ENTRY = f"title live\nlinux /vmlinuz\ninitrd /initrd.gz\noptions {ARGUMENTS}\n"
_TALOS_OPTIONS = ("-partition_cyl_align", "all", "-iso_mbr_part_type", "0x83", "-iso-level", "3")
_ESP_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
_ESP_MEBIBYTES = 40
_BOOT_PROGRAM = "EFI/BOOT/BOOTX64.EFI"
# Where systemd's tools put the sections of a unified kernel, from the begin of the program on.
_SECTIONS = {".osrel": 0x20000, ".cmdline": 0x30000, ".linux": 0x2000000, ".initrd": 0x3000000}
_RELEASE_WITH_ADDONS = "trixie"  # systemd-stub reads addons from its version 254 on

_INSTALLER = "usr/lib/debian-installer/images/12/amd64/text/debian-installer"
_BIOS_BOOT = "-b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
_UEFI_BOOT = "-eltorito-alt-boot -e boot/grub/efi.img -no-emul-boot -isohybrid-gpt-basdat"
_ISOLINUX = "/usr/lib/ISOLINUX"


def boot_live(options: Sequence[str], *images: str) -> Mapping[str, str]:
    """Return what the guest shows, by what it is.

    Args:
        options: firmware and boot medium of the machine.
        images: file or URL of the boot medium, which the kernel reads as another disk: it lacks the drivers;
            and of further media.
    """
    disks = []
    for number, image in enumerate(images):
        disks += ["-drive", f"if=none,id=disk{number},format=raw,readonly=on,file={image}"]
        disks += ["-device", f"virtio-blk-pci,drive=disk{number}"]
    console = run_machine(*options, *disks).decode(errors="replace")
    found = _REPORT.search(console)
    assert found, console
    return dict(line.split("=", 1) for line in found[1].splitlines())


def make_rescue_iso(target: Path) -> None:
    """Write an ISO of grub-mkrescue for BIOS and UEFI: GPT, HFS+, no partition that holds the ISO."""
    _master_with_grub(target, {"boot/grub/grub.cfg": _GRUB_CONFIG.encode(), **_linux("boot/")}, "RESCUE")


def make_talos_iso(target: Path) -> None:
    """Write an ISO as Talos has it for BIOS and UEFI without Secure Boot."""
    linux = {"boot/vmlinuz": read_kernel(), "boot/initramfs.xz": make_initrd(_INIT, _MODULES)}
    _master_with_grub(target, {"boot/grub/grub.cfg": _TALOS_GRUB_CONFIG.encode(), **linux}, "ISOIMAGE")


def make_systemd_boot_iso(target: Path, *, is_gpt: bool) -> None:
    """Write an ISO for UEFI, with systemd-boot and its kernel in an EFI system partition behind the ISO.

    Args:
        target: the image.
        is_gpt: whether the partitions are in a GPT; else they are in an MBR, as Talos has them.
    """
    files = {
        _BOOT_PROGRAM: _systemd("systemd-bootx64.efi"),
        "loader/loader.conf": b"timeout 0\n",
        "loader/entries/live.conf": _ENTRY.encode(),
        **_linux(""),
    }
    _master_with_partition(target, files, is_gpt=is_gpt)


def make_unified_kernel_iso(target: Path, sign: Callable[[bytes], bytes] | None = None) -> None:
    """Write an ISO for UEFI with a unified kernel, which systemd-boot finds, in an EFI system partition.

    Args:
        target: the image.
        sign: signs the programs, of a systemd that reads addons; None: that of this machine, not signed.
    """
    release = _RELEASE_WITH_ADDONS if sign else ""
    programs = {
        _BOOT_PROGRAM: _systemd("systemd-bootx64.efi", release),
        "EFI/Linux/live.efi": _unified_kernel(release),
    }
    signed = {path: sign(program) if sign else program for path, program in programs.items()}
    _master_with_partition(target, {"loader/loader.conf": b"timeout 0\n", **signed}, is_gpt=True)


def make_addon(arguments: str) -> bytes:
    """Return a program that adds arguments to those of a unified kernel."""
    return _add_sections(
        _systemd("addonx64.efi.stub", _RELEASE_WITH_ADDONS), {".cmdline": arguments.encode()}
    )


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


def _systemd(name: str, release: str = "") -> bytes:
    package = unpacked_package("systemd-boot-efi", release)
    return (package / "usr/lib/systemd/boot/efi" / name).read_bytes()


def _unified_kernel(release: str) -> bytes:
    linux = _linux("")
    contents = {
        ".osrel": b'ID=test\nVERSION_ID=1\nPRETTY_NAME="test"\n',
        ".cmdline": ARGUMENTS.encode(),
        ".linux": linux["vmlinuz"],
        ".initrd": linux["initrd.gz"],
    }
    return _add_sections(_systemd("linuxx64.efi.stub", release), contents)


def _add_sections(program: bytes, contents: Mapping[str, bytes]) -> bytes:
    (header,) = struct.unpack_from("<I", program, 0x3C)
    (begin,) = struct.unpack_from("<Q", program, header + 48)  # ImageBase, to which addresses are relative
    with TemporaryDirectory() as directory:
        image = Path(directory) / "program.efi"
        image.write_bytes(program)
        options = []
        for name, content in contents.items():
            (Path(directory) / name).write_bytes(content)
            options += [
                f"--add-section={name}={directory}/{name}",
                f"--change-section-vma={name}={begin + _SECTIONS[name]:#x}",
            ]
        run_client("objcopy", *options, image)
        return image.read_bytes()


def _master_with_grub(target: Path, files: Mapping[str, bytes], volume_id: str) -> None:
    for platform in ("i386-pc", "x86_64-efi"):
        needs_client(f"/usr/lib/grub/{platform}")
    with TemporaryDirectory() as directory:
        _write(Path(directory), files)
        run_client("grub-mkrescue", "-o", target, directory, "--", "-volid", volume_id)


def _master_with_partition(target: Path, files: Mapping[str, bytes], *, is_gpt: bool) -> None:
    with TemporaryDirectory() as directory:
        partition = Path(directory) / "esp.img"
        partition.write_bytes(_fat(files, _ESP_MEBIBYTES))
        appended = ("-append_partition", "2", _ESP_TYPE if is_gpt else "0xef", str(partition))
        table = ("-appended_part_as_gpt",) if is_gpt else _TALOS_OPTIONS
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
