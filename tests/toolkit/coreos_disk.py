"""Small CoreOS-like disks, made without root: GPT, boot loaders, ``boot`` and ``root`` on ext4.

The boot partition has the layout and the ext4 features of current RHCOS. With ``boots=True`` a disk boots
under UEFI from NVMe (Debian's cloud kernel has the drivers of NVMe and ext4 built in), and its initramfs
reports on the serial console the kernel's arguments and what it found in the boot partition and in itself.

Fedora's GRUB reads entries of the Boot Loader Specification by its command ``blscfg``, which Debian's lacks.
The GRUB of these disks runs the entry as a script instead: functions named like the entry's keys keep their
values. A command takes precedence over a function of its name, so the module ``linux`` is loaded after that,
from the loader's own memory disk, where no list of commands would load it before.

``python -m tests.toolkit.coreos_disk DIRECTORY`` builds a disk of 10 GiB, with an initramfs of 40 MiB and
1 GiB of data.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import needs_client, run_client
from tests.acceptance.debian import unpacked_package
from tests.acceptance.guest import firmware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MIB = 1024 * 1024
ESP_OFFSET, ESP_SIZE = 2 * MIB, 4 * MIB
BOOT_OFFSET, BOOT_SIZE = 6 * MIB, 16 * MIB
ROOT_OFFSET, ROOT_SIZE = 22 * MIB, 8 * MIB
DISK_SIZE = ROOT_OFFSET + ROOT_SIZE + 2 * MIB
"""Where the partitions are, in bytes, if the boot partition has small files; the first is BIOS-BOOT."""

BUILD = "6.1.0-1.x86_64"
TREE = f"ostree/test-coreos-{'0123abcd' * 8}"
KERNEL, INITRAMFS = f"{TREE}/vmlinuz-{BUILD}", f"{TREE}/initramfs-{BUILD}.img"
ENTRY = "loader.1/entries/ostree-1-test-coreos.conf"
OPTIONS = (
    "$ignition_firstboot mitigations=auto,nosmt console=ttyS0,115200n8 ignition.platform.id=metal"
    f" ostree=/ostree/boot.1/test-coreos/{'0123abcd' * 8}/0"
)
BLS_ENTRY = f"""\
title Test CoreOS 42.1 (ostree:0)
version 1
options {OPTIONS}
linux /{KERNEL}
initrd /{INITRAMFS}
"""
PLATFORMS = {
    "metal": {"kernel_arguments": ["console=ttyS0,115200n8"]},
    "aws": {
        "grub_commands": ["serial --speed=115200", "terminal_input serial console"],
        "kernel_arguments": ["console=tty0", "console=ttyS0,115200n8"],
    },
    "qemu": {
        "grub_commands": ["terminal_output console"],
        "kernel_arguments": ["console=tty0", "console=ttyS0,115200n8"],
    },
    "azure": {"kernel_arguments": ["console=tty0", "console=ttyS0,115200n8"]},
}
GRUB_CONFIG = """\
# Any non-default console settings will be inserted here.
# CONSOLE-SETTINGS-START
# CONSOLE-SETTINGS-END

set ignition_firstboot=""
if [ -f "/ignition.firstboot" ]; then
    set ignition_network_kcmdline=''
    source "/ignition.firstboot"
    set ignition_firstboot="ignition.firstboot ${ignition_network_kcmdline}"
fi
blscfg
"""
SELINUX_CONTEXT = "system_u:object_r:boot_t:s0"
OS_RELEASE = """\
NAME="Test CoreOS"
ID=rhcos
VERSION_ID="42.1"
PRETTY_NAME="Test CoreOS 42.1"
"""

_PARTITIONS = """\
label: gpt
size=1MiB, type=21686148-6449-6E6F-744E-656564454649, name=BIOS-BOOT
size={esp}, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=EFI-SYSTEM
size={boot}, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=boot
size={root}, type=0FC63DAF-8483-4772-8E79-3D69D8477DE4, name=root
"""
_GRUB_ON_ESP = """\
search --no-floppy --label boot --set root
function title { true; }
function version { true; }
function options { set bls_options="$*"; }
function linux { set bls_linux="$1"; }
function initrd { set bls_initrd="$1"; }
function blscfg {
    for entry in /loader/entries/*.conf; do source "$entry"; done
    insmod linux
    linux $bls_linux $bls_options
    initrd $bls_initrd
    boot
}
source /grub2/grub.cfg
"""
_GRUB_MODULES = (
    "part_gpt fat ext2 search search_label normal configfile test true echo memdisk tar regexp"
    " relocator boot video mmap serial terminal"
)
_REPORT = """\
#!/bin/busybox sh
/bin/busybox --install /bin
mkdir -p /proc /dev /boot
mount -t proc proc /proc
mount -t devtmpfs devtmpfs /dev
dmesg -n 1  # or messages of the kernel get into the report
mount -t ext4 -o ro $(findfs LABEL=boot) /boot
echo "report"
echo "arguments: $(cat /proc/cmdline)"
echo "config: $(cat /boot/ignition/config.ign 2>/dev/null)"
for directory in /boot/coreos-firstboot-network /etc/coreos-firstboot-network; do
    for file in $directory/*; do
        test ! -f "$file" || echo "keyfile $file: $(cat "$file")"
    done
done
echo "end of report"
poweroff -f
"""
_CONSOLE = re.compile(r"report\narguments: (.*)\nconfig: (.*)\n((?:keyfile (?s:.*))?)end of report")
_BOOT_SECONDS = 300


@attrs.frozen
class DiskReport:
    """What a booted disk found.

    Args:
        arguments: the kernel's command line.
        config: the Ignition config of the boot partition; empty if there is none.
        keyfiles: content by absolute path in the initramfs, where the boot partition is ``/boot``.
    """

    arguments: str
    config: str
    keyfiles: Mapping[str, str]


def boot_files(*, boots: bool = False) -> dict[str, bytes]:
    """Return the files of the boot partition, without its symlinks."""
    return {
        ENTRY: BLS_ENTRY.encode(),
        KERNEL: _kernel() if boots else b"MZ" + bytes(range(256)) * 64,
        INITRAMFS: _initramfs()
        if boots
        else gzip.compress(write_archive([Member("init", b"#!/bin/sh\n")]), mtime=0),
        "coreos/platforms.json": json.dumps(PLATFORMS).encode(),
        "grub2/grub.cfg": GRUB_CONFIG.encode(),
        "ignition.firstboot": b"",
    }


def build_disk(  # noqa: PLR0913 - properties of a disk
    directory: Path,
    *,
    sector_bytes: int = 512,
    boots: bool = False,
    files: Mapping[str, bytes | None] | None = None,
    features: str = "metadata_csum,64bit",
    block_bytes: int = 4096,
    disk_bytes: int = DISK_SIZE,
    partition_names: Mapping[str, str] | None = None,
) -> Path:
    """Return a sparse raw disk.

    Args:
        directory: of the disk, ``coreos-SECTOR_BYTES.raw``.
        sector_bytes: 512 or 4096.
        boots: with Debian's kernel and a boot loader; else with some bytes in their place.
        files: changes to those of the boot partition; None removes one.
        features: of the boot partition, for mkfs.ext4.
        block_bytes: of the boot partition's file system.
        disk_bytes: of the whole; if it is more than the partitions need, the rest is after the last one.
        partition_names: changes to lines of the partition table, such as ``name=boot``.
    """
    disk = directory / f"coreos-{sector_bytes}.raw"
    contents = {
        name: data for name, data in {**boot_files(boots=boots), **(files or {})}.items() if data is not None
    }
    # For the files, what edits write again, and the journal.
    grown = 2 * (sum(map(len, contents.values())) // MIB) * MIB
    boot_size = BOOT_SIZE + grown
    disk.unlink(missing_ok=True)
    with disk.open("wb") as file:
        file.truncate(max(disk_bytes, DISK_SIZE + grown))
    _partition(disk, sector_bytes, boot_size, partition_names or {})
    _write_esp(disk, sector_bytes, boots=boots)
    with TemporaryDirectory() as tree:
        _write_tree(Path(tree), contents)
        (Path(tree) / "loader").symlink_to("loader.1")
        (Path(tree) / "boot").symlink_to(".")
        options = ("-O", features, "-b", str(block_bytes), "-L", "boot")
        _make_ext4(disk, Path(tree), BOOT_OFFSET, boot_size, *options)
    label = f'ea_set /{ENTRY} security.selinux "{SELINUX_CONTEXT}\\000"'
    owner = [f"set_inode_field /{name} {key} 0" for name in (ENTRY, INITRAMFS) for key in ("uid", "gid")]
    edit_boot(disk, label, *owner)
    with TemporaryDirectory() as tree:
        deployment = f"ostree/deploy/test-coreos/deploy/{'0123abcd' * 8}.0"
        _write_tree(Path(tree), {f"{deployment}/usr/lib/os-release": OS_RELEASE.encode()})
        (Path(tree) / deployment / "etc").mkdir()
        (Path(tree) / deployment / "etc/os-release").symlink_to("../usr/lib/os-release")
        _make_ext4(disk, Path(tree), ROOT_OFFSET + grown, ROOT_SIZE, "-b", "4096", "-L", "root")
    return disk


def edit_boot(disk: Path, *commands: str) -> bytes:
    """Run commands of debugfs on the boot partition of a raw disk, and return what it prints."""
    with TemporaryDirectory() as directory:
        script = Path(directory) / "commands"
        script.write_text("\n".join(commands) + "\n")
        return run_client("debugfs", "-w", "-f", script, f"{disk}?offset={BOOT_OFFSET}")


def read_boot_file(disk: Path, path: str) -> bytes:
    """Return a file of the boot partition of a raw disk, by debugfs."""
    return run_client("debugfs", "-R", f"cat /{path}", f"{disk}?offset={BOOT_OFFSET}")


def check_boot(disk: Path) -> None:
    """Fail the test unless e2fsck finds the boot partition of a raw disk clean."""
    run_client("e2fsck", "-fn", f"{disk}?offset={BOOT_OFFSET}")


def boot_disk(
    disk: Path, directory: Path, *, image_format: str = "raw", sector_bytes: int = 512
) -> DiskReport:
    """Boot a disk made with ``boots=True`` under UEFI, and return its report; the disk does not change.

    Args:
        disk: the image.
        directory: for the variables of the firmware.
        image_format: qemu's name of the image's format.
        sector_bytes: logical sector size of the virtual disk.
    """
    drive = f"if=none,id=disk,format={image_format},snapshot=on,file={disk}"
    sectors = f"logical_block_size={sector_bytes},physical_block_size={sector_bytes}"
    device = f"nvme,drive=disk,serial=disk,bootindex=0,{sectors}"
    options = (*_machine(directory), "-drive", drive, "-device", device)
    console = run_client("qemu-system-x86_64", *options, timeout_seconds=_BOOT_SECONDS)
    text = console.decode(errors="replace").replace("\r\n", "\n")
    found = _CONSOLE.search(text)
    assert found, text[-4000:]
    keyfiles = re.findall(r"keyfile ([^:\n]+): ((?s:.*?))\n(?=keyfile |\Z)", found[3])
    return DiskReport(arguments=found[1], config=found[2], keyfiles=dict(keyfiles))


def _machine(directory: Path) -> Sequence[str]:
    machine = "-accel tcg -m 512 -nodefaults -no-reboot -display none -serial stdio"
    return [*machine.split(), *firmware("uefi", directory)]


def _partition(disk: Path, sector_bytes: int, boot_size: int, names: Mapping[str, str]) -> None:
    """Write the GPT; sfdisk itself has no sector size, but fdisk runs its scripts with one."""
    with TemporaryDirectory() as directory:
        script = Path(directory) / "partitions"
        sizes = {"esp": ESP_SIZE, "boot": boot_size, "root": ROOT_SIZE}
        table = _PARTITIONS.format(**{name: f"{size // MIB}MiB" for name, size in sizes.items()})
        for before, after in names.items():
            table = table.replace(before, after)
        script.write_text(table)
        command = [needs_client("fdisk"), "--sector-size", str(sector_bytes), str(disk)]
        subprocess.run(command, input=f"I\n{script}\nw\n".encode(), check=True, capture_output=True)


def _write_esp(disk: Path, sector_bytes: int, *, boots: bool) -> None:
    image = ("-i", f"{disk}@@{ESP_OFFSET}")
    geometry = ("-T", str(ESP_SIZE // sector_bytes), "-h", "16", "-s", "63", "-v", "EFI-SYSTEM")
    # -S n: sectors of 128 << n bytes
    run_client("mformat", *image, *geometry, "-S", str((sector_bytes // 128).bit_length() - 1), "::")
    run_client("mmd", *image, "::EFI", "::EFI/BOOT")
    if boots:
        with TemporaryDirectory() as directory:
            loader = Path(directory) / "BOOTX64.EFI"
            _make_loader(loader)
            run_client("mcopy", *image, loader, "::EFI/BOOT")


def _make_loader(loader: Path) -> None:
    modules = Path(needs_client("/usr/lib/grub/x86_64-efi"))
    memory_disk = loader.with_name("memory.tar")
    files = {
        "boot/grub/grub.cfg": _GRUB_ON_ESP.encode(),
        "boot/grub/x86_64-efi/linux.mod": (modules / "linux.mod").read_bytes(),
    }
    with tarfile.open(memory_disk, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    embedded = ("-m", memory_disk, "-p", "(memdisk)/boot/grub")
    run_client("grub-mkimage", "-O", "x86_64-efi", *embedded, "-o", loader, *_GRUB_MODULES.split())


def _make_ext4(disk: Path, tree: Path, offset: int, size: int, *options: str) -> None:
    owner = ("-E", f"root_owner=0:0,offset={offset}")
    run_client("mkfs.ext4", "-q", "-F", *options, *owner, "-d", tree, disk, f"{size // 1024}k")


def _write_tree(root: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for path in root.rglob("*"):
        os.chmod(path, 0o755 if path.is_dir() else 0o644)  # noqa: PTH101 - same for all umasks


def _kernel() -> bytes:
    return next(unpacked_package("linux-image-cloud-amd64").glob("boot/vmlinuz-*")).read_bytes()


def _initramfs() -> bytes:
    busybox = (unpacked_package("busybox-static") / "bin" / "busybox").read_bytes()
    members = [Member("bin/busybox", busybox, 0o100755), Member("init", _REPORT.encode(), 0o100755)]
    return gzip.compress(write_archive(members), mtime=0)


def build_large_disk(directory: Path) -> Path:
    """Return a raw disk of 10 GiB, a tenth of which is data."""
    chance = random.Random(0)  # noqa: S311 - equal disks in each run
    disk = build_disk(directory, files={INITRAMFS: chance.randbytes(40 * MIB)}, disk_bytes=10240 * MIB)
    with disk.open("r+b") as file:
        for offset in range(1024 * MIB, 9216 * MIB, 128 * MIB):
            file.seek(offset)
            file.write(chance.randbytes(16 * MIB))
    return disk


if __name__ == "__main__":
    print(build_large_disk(Path(sys.argv[1])))  # noqa: T201 - a program's output
