"""Changes to Linux disks: files of the boot partition and of the operating system, and initrds."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from image_service.core.formats.newc import Member, write_archive
from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.coreos_disk import BOOT_OFFSET, ROOT_OFFSET

if TYPE_CHECKING:
    from collections.abc import Mapping

_MODULES = "usr/lib/modules/6.1.0"
DRIVERS = {
    f"{_MODULES}/kernel/drivers/nvme/host/nvme.ko.xz": b"",
    f"{_MODULES}/modules.builtin": b"kernel/drivers/net/ethernet/amazon/ena/ena.ko\nkernel/fs/ext4/ext4.ko\n",
    "usr/bin/ignition": b"\x7fELF",
}
NO_BUILTIN = {name: data for name, data in DRIVERS.items() if "builtin" not in name}
SYSTEM = f"ostree/deploy/test-coreos/deploy/{'0123abcd' * 8}.0"
"""The directory of the operating system in the root file system."""


def initrd(files: Mapping[str, bytes]) -> bytes:
    """Return microcode and a compressed archive of files."""
    early = write_archive([Member("kernel/x86/microcode/AuthenticAMD.bin", bytes(100))])
    return early + gzip.compress(write_archive([Member(name, data) for name, data in files.items()]))


def kernel(machine: int) -> bytes:
    """Return the head of a kernel of a machine, by its number in PE."""
    return b"MZ".ljust(60, b"\0") + struct.pack("<I4sH", 64, b"PE\0\0", machine) + bytes(5000)


def changed(
    disk: Path,
    directory: Path,
    *,
    boot: Mapping[str, bytes | None] | None = None,
    system: Mapping[str, bytes] | None = None,
) -> Path:
    """Return a copy of a CoreOS disk with other files; None removes one.

    Args:
        disk: the original.
        directory: of the copy.
        boot: files of the boot partition.
        system: files of the operating system.
    """
    copy = directory / disk.name
    run_client("cp", "--sparse=always", disk, copy)
    _edit(copy, BOOT_OFFSET, boot or {})
    _edit(copy, ROOT_OFFSET, {f"{SYSTEM}/{name}": data for name, data in (system or {}).items()})
    return copy


def _edit(disk: Path, offset: int, files: Mapping[str, bytes | None]) -> None:
    with TemporaryDirectory() as directory:
        commands = []
        for number, (name, data) in enumerate(files.items()):
            parents = name.split("/")[:-1]
            commands += [f"mkdir {'/'.join(parents[: depth + 1])}" for depth in range(len(parents))]
            commands.append(f"rm {name}")
            if data is not None:
                source = Path(directory) / str(number)
                source.write_bytes(data)
                commands.append(f"write {source} {name}")
        script = Path(directory) / "commands"
        script.write_text("\n".join([*commands, ""]))
        run_client("debugfs", "-w", "-f", script, f"{disk}?offset={offset}")


def converted(disk: Path, image_format: str, *options: str) -> Path:
    """Return the image of a raw disk in another format, by qemu-img."""
    made = disk.with_suffix(f".{image_format}")
    words = [word for option in options for word in ("-o", option)]
    run_client("qemu-img", "convert", "-f", "raw", "-O", image_format, *words, disk, made)
    return made


def partitioned(path: Path, size: int, script: str) -> Path:
    """Return a sparse raw disk with partitions by sfdisk."""
    with path.open("wb") as file:
        file.truncate(size)
    lines = path.with_suffix(".sfdisk")
    lines.write_text(script)
    run_client("sh", "-c", '"$0" -q "$1" <"$2"', needs_client("sfdisk"), path, lines)
    return path
