"""Small ISO 9660 images, and live ISOs of the CoreOS layout, for tests.

    sector  content
    0-15    system area, zero
    16      primary volume descriptor
    17      volume descriptor set terminator
    18-     directories, parents first, then files in byte order of their paths

Names become those of level 1 (``coreos/igninfo.json`` is ``COREOS/IGNINFO.JSO;1``), as in real images.
Path tables are left out: no reader in use here wants them.
"""

from __future__ import annotations

import json
import struct
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SECTOR = 2048
DIRECTORY = 0x02  # file flags of a directory record
MULTI_EXTENT = 0x80

VOLUME_ID = "rhcos-9.6.20250523-0"
CREATED = datetime(2025, 5, 23, 12, 34, 56, tzinfo=UTC)
KERNEL_ARGUMENTS = f"coreos.liveiso={VOLUME_ID} ignition.firstboot ignition.platform.id=metal"
IGNITION_LENGTH = 262144
KARGS_FILES = ("EFI/redhat/grub.cfg", "isolinux/isolinux.cfg")
_KARGS_MARK = "# COREOS_KARG_EMBED_AREA\n"
_KARGS_FILL = 1024
_ZONE_QUARTERS = 8
_ZONE = timezone(timedelta(minutes=15 * _ZONE_QUARTERS))

_GRUB = """\
set timeout=1
menuentry 'RHEL CoreOS (Live)' {{
    linux /images/pxeboot/vmlinuz {area}
    initrd /images/pxeboot/initrd.img /images/ignition.img
}}
"""
_ISOLINUX = """\
default vesamenu.c32
timeout 10
label linux
  kernel /images/pxeboot/vmlinuz
  append initrd=/images/pxeboot/initrd.img,/images/ignition.img {area}
"""


def record(name: bytes, sector: int, length: int, flags: int = 0) -> bytes:
    """Return a directory record (ECMA-119 section 9.1)."""
    size = 33 + len(name) + (len(name) + 1) % 2
    head = bytes([size, 0]) + _both(sector) + _both(length) + bytes(7) + bytes([flags, 0, 0])
    return (head + b"\x01\0\0\x01" + bytes([len(name)]) + name).ljust(size, b"\0")


def directory(records: Iterable[bytes]) -> bytes:
    """Return a directory's content: no record crosses the end of a sector."""
    content = b""
    for item in records:
        room = -len(content) % SECTOR
        content += (bytes(room) if room < len(item) else b"") + item
    return _padded(content)


def descriptors(
    root: bytes, sectors: int, volume_id: str = VOLUME_ID, created: datetime | None = CREATED
) -> bytes:
    """System area, primary volume descriptor and terminator.

    Args:
        root: the root directory's record, 34 bytes.
        sectors: volume space size.
        volume_id: volume identifier.
        created: volume creation date; None leaves the field without a date.
    """
    primary = bytearray(SECTOR)
    primary[:7] = b"\x01CD001\x01"
    primary[40:72] = volume_id.encode().ljust(32)
    primary[80:88] = _both(sectors)
    primary[120:132] = b"\x01\0\0\x01" * 2 + b"\x00\x08\x08\x00"
    primary[156:190] = root
    primary[813:830] = _date(created)
    primary[881] = 1
    return bytes(16 * SECTOR) + bytes(primary) + b"\xffCD001\x01".ljust(SECTOR, b"\0")


def build_iso(
    files: Mapping[str, bytes], *, volume_id: str = VOLUME_ID, created: datetime | None = CREATED
) -> bytes:
    """Return an ISO 9660 image with ``files``, by path."""
    image = _Plan.of(files, {})
    content = bytearray(image.size)
    for offset, data in image.pieces(volume_id, created):
        content[offset : offset + len(data)] = data
    return bytes(content)


def write_sparse_iso(
    path: Path, files: Mapping[str, bytes], offsets: Mapping[str, int], *, volume_id: str = VOLUME_ID
) -> None:
    """Write an image with some files at given offsets, whole sectors, and holes between."""
    image = _Plan.of(files, offsets)
    with path.open("wb") as file:
        file.truncate(image.size)
        for offset, data in image.pieces(volume_id, CREATED):
            file.seek(offset)
            file.write(data)


def live_files(
    *, kernel_arguments: str = KERNEL_ARGUMENTS, rootfs: bytes = b"rootfs data\n"
) -> dict[str, bytes]:
    """Return the files of a pristine x86_64 live ISO, for `build_iso`; callers may change them."""
    size = len(kernel_arguments) + _KARGS_FILL
    area = f"{kernel_arguments}\n".ljust(size, "#") + _KARGS_MARK
    configs = dict(zip(KARGS_FILES, (_GRUB.format(area=area), _ISOLINUX.format(area=area)), strict=True))
    kargs = {
        "default": kernel_arguments,
        "files": [{"path": name, "offset": text.index(area)} for name, text in configs.items()],
        "size": size,
    }
    return {
        **{name: text.encode() for name, text in configs.items()},
        "coreos/features.json": _json({"installer-config": True, "live-initrd-network": True}),
        "coreos/igninfo.json": _json({"file": "images/ignition.img"}),
        "coreos/kargs.json": _json(kargs),
        "images/ignition.img": bytes(IGNITION_LENGTH),
        "images/pxeboot/initrd.img": b"initrd data\n",
        "images/pxeboot/rootfs.img": rootfs,
        "images/pxeboot/vmlinuz": b"kernel data\n",
    }


def build_live_iso(
    files: Mapping[str, bytes] | None = None,
    *,
    volume_id: str = VOLUME_ID,
    created: datetime | None = CREATED,
) -> bytes:
    """A live ISO of the CoreOS layout, about 280 KiB.

    Args:
        files: by path; None: `live_files`.
        volume_id: volume identifier.
        created: volume creation date; None: it has none.
    """
    return build_iso(live_files() if files is None else files, volume_id=volume_id, created=created)


def build_other_iso(volume_id: str = "debian") -> bytes:
    """An ISO with the boot files of a live ISO, but none that only CoreOS has."""
    files = {name: content for name, content in live_files().items() if not name.startswith("coreos/")}
    del files["images/ignition.img"]
    return build_iso(files, volume_id=volume_id)


def write_sparse_live_iso(path: Path, ignition_offset: int = 5 * 2**30) -> None:
    """Write a live ISO with the Ignition area at ``ignition_offset``, after a hole."""
    write_sparse_iso(path, live_files(), {"images/ignition.img": ignition_offset})


@attrs.frozen
class _Plan:
    """The offsets of all files and directories.

    Args:
        files: content by path.
        sectors: first sector by path, of files and directories; the root is ``""``.
        size: bytes of the image.
    """

    files: Mapping[str, bytes]
    sectors: dict[str, int]
    size: int

    @classmethod
    def of(cls, files: Mapping[str, bytes], offsets: Mapping[str, int]) -> _Plan:
        sectors = dict.fromkeys(_directories(files), 0)
        plan = cls(files, sectors | dict.fromkeys(files, 0), 0)
        end = 18
        for path in sectors:
            sectors[path] = end
            end += len(plan.directory(path)) // SECTOR
        for path in sorted(files):
            sectors[path] = offsets[path] // SECTOR if path in offsets else end
            end = max(end, sectors[path] + len(_padded(files[path])) // SECTOR)
        return cls(files, sectors, end * SECTOR)

    def pieces(self, volume_id: str, created: datetime | None) -> Iterable[tuple[int, bytes]]:
        """Yield all bytes other than zero, with their offsets."""
        root = record(b"\0", self.sectors[""], len(self.directory("")), DIRECTORY)
        yield 0, descriptors(root, self.size // SECTOR, volume_id, created)
        for path, sector in self.sectors.items():
            yield sector * SECTOR, self.files[path] if path in self.files else self.directory(path)

    def directory(self, path: str) -> bytes:
        """Return the content of the directory at ``path``."""
        length = SECTOR  # no reader uses the length of "." and ".."
        own = record(b"\0", self.sectors[path], length, DIRECTORY)
        parent = record(b"\1", self.sectors[path.rpartition("/")[0]], length, DIRECTORY)
        children = sorted(child for child in self.sectors if child and child.rpartition("/")[0] == path)
        return directory([own, parent, *map(self._child, children)])

    def _child(self, path: str) -> bytes:
        name = path.rpartition("/")[2].upper()
        if path in self.files:
            stem, _, extension = name.rpartition(".") if "." in name else (name, "", "")
            return record(f"{stem[:8]}.{extension[:3]};1".encode(), self.sectors[path], len(self.files[path]))
        return record(name[:8].encode(), self.sectors[path], len(self.directory(path)), DIRECTORY)


def _directories(files: Mapping[str, bytes]) -> list[str]:
    """Return every parent directory of the files, outermost first."""
    found = {""}
    for path in files:
        parts = path.split("/")[:-1]
        found |= {"/".join(parts[: depth + 1]) for depth in range(len(parts))}
    return sorted(found)


def _date(when: datetime | None) -> bytes:
    """Return a date of a volume descriptor in a time zone other than UTC, so that readers must convert it."""
    if when is None:
        return b"0" * 16 + b"\0"
    return f"{when.astimezone(_ZONE):%Y%m%d%H%M%S}00".encode() + bytes([_ZONE_QUARTERS])


def _both(number: int) -> bytes:
    return struct.pack("<I", number) + struct.pack(">I", number)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % SECTOR)


def _json(value: object) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode() + b"\n"
