"""Small disks with Windows' layout: NTFS with the files that tests put there, and a registry hive.

ntfscp copies files, and nothing makes directories in NTFS without a mount. So ``ntfs.img.xz`` is kept:

    head -c 8M /dev/zero > ntfs.img; mkfs.ntfs -Q -F -L SYS ntfs.img; ntfs-3g ntfs.img MOUNT
    mkdir -p MOUNT/Windows/System32/config MOUNT/Boot; umount MOUNT

with the table of capital letters ($UpCase) stored as differences, which xz packs.
"""

from __future__ import annotations

import lzma
import struct
from pathlib import Path
from typing import TYPE_CHECKING

from tests.acceptance.clients import needs_client, run_client
from tests.toolkit.validation.linux_disk import partitioned

if TYPE_CHECKING:
    from collections.abc import Mapping

MEBIBYTE = 1024 * 1024
VOLUME_OFFSET = MEBIBYTE
SYSTEM = "Windows/System32/config/SYSTEM"

_CAPITALS = struct.Struct("<65536H")
_CAPITALS_OFFSET = 0x149000
_NONE = 0xFFFFFFFF
_CLUSTER, _RECORD, _VOLUME_RECORD, _VOLUME_INFORMATION = 4096, 1024, 3, 0x70


def ntfs(path: Path, files: Mapping[str, bytes], *, dirty: bool = False) -> Path:
    """Write an NTFS volume of 8 MiB with files in its root, Windows/System32/config or Boot."""
    needs_client("hivexsh")  # without it, no check of Windows reads a volume
    image = bytearray(lzma.decompress((Path(__file__).parent / "ntfs.img.xz").read_bytes()))
    differences = _CAPITALS.unpack_from(image, _CAPITALS_OFFSET)
    capitals = [(number + each) & 0xFFFF for number, each in enumerate(differences)]
    _CAPITALS.pack_into(image, _CAPITALS_OFFSET, *capitals)
    path.write_bytes(image)
    for name, content in files.items():
        source = path.with_suffix(".file")
        source.write_bytes(content)
        run_client("ntfscp", "-q", path, source, name)
    if dirty:
        _mark_dirty(path)
    return path


def _mark_dirty(path: Path) -> None:
    """Set the flag in the volume's record, of the MFT and of its copy."""
    image = bytearray(path.read_bytes())
    clusters = struct.unpack_from("<2Q", image, 48)
    for table in clusters:
        record = table * _CLUSTER + _VOLUME_RECORD * _RECORD
        at = record + struct.unpack_from("<H", image, record + 20)[0]
        while struct.unpack_from("<I", image, at)[0] != _VOLUME_INFORMATION:
            at += struct.unpack_from("<I", image, at + 4)[0]
        image[at + struct.unpack_from("<H", image, at + 20)[0] + 10] |= 1
    path.write_bytes(image)


def disk(path: Path, volume: Path) -> Path:
    """Write a raw disk: an active NTFS partition on an MBR with boot code."""
    size = volume.stat().st_size
    script = f"label: dos\nstart=1MiB, size={size // MEBIBYTE}MiB, type=7, bootable\n"
    partitioned(path, VOLUME_OFFSET + size, script)
    with path.open("r+b") as file:
        file.write(b"\x33\xc0\x8e\xd0")
        file.seek(VOLUME_OFFSET)
        file.write(volume.read_bytes())
    return path


def hive(path: Path, services: Mapping[str, int | None], *, current: int = 1) -> bytes:
    """Return a SYSTEM hive with the start types of services; None: a service without one."""
    path.write_bytes(_minimal_hive())
    keys = [("Select", f'"Current"=dword:{current:08x}'), (f"ControlSet{current:03}", "")]
    keys.append((rf"ControlSet{current:03}\Services", ""))
    for name, start in services.items():
        value = "" if start is None else f'"Start"=dword:{start:08x}'
        keys.append((rf"ControlSet{current:03}\Services\{name}", value))
    script = path.with_suffix(".reg")
    body = "\n\n".join(f"[\\{key}]\n{value}" for key, value in keys)
    script.write_text(f"Windows Registry Editor Version 5.00\n\n{body}\n")
    run_client("hivexregedit", "--merge", path, script)
    return path.read_bytes()


def _minimal_hive() -> bytes:
    """Return a hive with a root key alone: header, one bin, its cells (key, security descriptor, free)."""
    name = b"$$$PROTO.HIV"
    security_at = 0x20 + len(_cell(bytes(0x4C + len(name))))
    numbers = (0, _NONE, 0, 0, _NONE, _NONE, 0, _NONE, security_at, _NONE, 0, 0, 0, 0, 0, len(name), 0)
    key = struct.pack("<2sHQ15I2H", b"nk", 0x2C, 0, *numbers) + name
    descriptor = struct.pack("<BBH4I", 1, 0, 0x8000, 0, 0, 0, 0)
    security = struct.pack("<2sH4I", b"sk", 0, security_at, security_at, 1, len(descriptor)) + descriptor
    cells = _cell(key) + _cell(security)
    free = 4096 - 0x20 - len(cells)
    cells += struct.pack("<i", free) + bytes(free - 4)
    head = struct.pack("<4s2IQ7I", b"regf", 1, 1, 0, 1, 3, 0, 1, 0x20, 4096, 1).ljust(508, b"\0")
    checksum = 0
    for (word,) in struct.iter_unpack("<I", head):
        checksum ^= word
    start = (head + struct.pack("<I", checksum)).ljust(4096, b"\0")
    return start + struct.pack("<4s2I2QI", b"hbin", 0, 4096, 0, 0, 0) + cells


def _cell(content: bytes) -> bytes:
    size = -(-(len(content) + 4) // 8) * 8
    return struct.pack("<i", -size) + content.ljust(size - 4, b"\0")
