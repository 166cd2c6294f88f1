"""The forms into which a disk image is converted: options of qemu-img, limits, bytes that each needs."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Final

import attrs

from image_service.core.errors import Unprocessable
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OVA = "ova"
_GIB = 1 << 30
_MIB = 1 << 20
_PAGE_BYTES = 4096  # what file systems allocate at least
_CLUSTER_BYTES = 65536  # of qcow2; a grain of VMDK is as large


@attrs.frozen
class Target:
    """A form of disk image.

    Args:
        name: of the format, as a user writes it.
        format: of the image, or of the disk image in an OVA.
        driver: QEMU's name of the format.
        subformat: as `VirtualDisk.subformat`; "": the format has only one.
        options: of qemu-img's ``-o``.
        unit_bytes: the least that is allocated for data.
        map_bytes_per_mib: of tables, for each MiB of the virtual size, at most.
        largest_bytes: the largest virtual size; None: the file system alone limits it.
        is_ordered: True if the order of writes decides where data is stored: the same disk gets the same
            layout only if it is written in order.
        is_compressed: True: `-c` of qemu-img, which streamOptimized VMDK does not need.
    """

    name: str
    format: DiskFormat
    driver: str
    subformat: str = ""
    options: tuple[str, ...] = ()
    unit_bytes: int = _PAGE_BYTES
    map_bytes_per_mib: int = 0
    largest_bytes: int | None = None
    is_ordered: bool = True
    is_compressed: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.subformat}".rstrip()

    def check_size(self, virtual_size: int) -> None:
        """Raise Unprocessable if a disk of that size, in bytes, has no such form."""
        if not virtual_size or virtual_size % SECTOR_BYTES:
            raise Unprocessable(
                f"the disk has {virtual_size} bytes, but a disk consists of sectors of {SECTOR_BYTES} bytes;"
                " a part of it may be missing"
            )
        if self.largest_bytes and virtual_size > self.largest_bytes:
            raise Unprocessable(
                f"the disk has {virtual_size} bytes, but {self} has {self.largest_bytes} at most"
                f" ({self.largest_bytes // _GIB} GiB)"
            )

    def needed_bytes(self, virtual_size: int, extents: Iterable[tuple[int, int]]) -> int:
        """Return how many bytes of a file system a disk in this form takes at most.

        Data counts as it is, because the savings are known only after compression. An OVA needs as much again
        for its VMDK.

        Args:
            extents: offset and length of bytes that may be other than zero, ascending.
        """
        data, end = 0, 0
        for offset, length in extents:
            start = max(end, offset - offset % self.unit_bytes)
            end = max(end, -(-(offset + length) // self.unit_bytes) * self.unit_bytes)
            data += end - start
        return data + data // 64 + self.map_bytes_per_mib * (virtual_size // _MIB) + 4 * _MIB


_VMDK = Target(
    "vmdk",
    DiskFormat.VMDK,
    "vmdk",
    "streamOptimized",
    # vSphere imports disks of the adapter type lsilogic, whatever controller they then get.
    ("subformat=streamOptimized", "adapter_type=lsilogic", "hwversion=15"),
    unit_bytes=_CLUSTER_BYTES,
    map_bytes_per_mib=256,
    largest_bytes=62 * 1024 * _GIB,  # what VMware documents
)
_FIXED_VHD = Target(
    "vhd",
    DiskFormat.VHD,
    "vpc",
    "fixed",
    # Without force_size the disk grows to the next whole cylinder.
    ("subformat=fixed", "force_size=on"),
    largest_bytes=2040 * _GIB,
    is_ordered=False,
)
_VHDX = Target(
    "vhdx",
    DiskFormat.VHDX,
    "vhdx",
    "dynamic",
    ("subformat=dynamic",),
    map_bytes_per_mib=16,
    largest_bytes=64 * 1024 * _GIB,
)
TARGETS = (
    Target("raw", DiskFormat.RAW, "raw", is_ordered=False),
    Target("qcow2", DiskFormat.QCOW2, "qcow2", unit_bytes=_CLUSTER_BYTES, map_bytes_per_mib=256),
    _VMDK,
    attrs.evolve(
        _VMDK,
        subformat="monolithicSparse",
        options=("subformat=monolithicSparse", "adapter_type=lsilogic", "hwversion=15"),
    ),
    _FIXED_VHD,
    attrs.evolve(
        _FIXED_VHD,
        subformat="dynamic",
        options=("subformat=dynamic", "force_size=on"),
        map_bytes_per_mib=2048,
        is_ordered=True,
    ),
    _VHDX,
    attrs.evolve(_VHDX, subformat="fixed", options=("subformat=fixed",)),
    attrs.evolve(_VMDK, name=OVA),
)
"""All of them; of a format with several subformats, the default is first."""
TARGET_NAMES = tuple(dict.fromkeys(target.name for target in TARGETS))


_SUFFIXES: Final[Mapping[str, tuple[str, ...]]] = {
    ".raw": ("raw",),
    ".img": ("raw", "qcow2"),  # some distributions name qcow2 images so
    ".dd": ("raw",),
    ".iso": ("raw",),
    ".qcow2": ("qcow2",),
    ".qcow": ("qcow2",),
    ".vmdk": ("vmdk",),
    ".vhd": ("vhd",),
    ".vpc": ("vhd",),
    ".vhdx": ("vhdx",),
    ".ova": ("ova",),
    **dict.fromkeys(
        (".vdi", ".qed", ".hdd", ".dmg", ".ovf", ".gz", ".xz", ".zst", ".bz2", ".lz4", ".zip"), ()
    ),
}
"""The formats of files with a suffix; the first is meant where none is named. None: not written here."""


def find_format(file: str, wanted: str | None) -> str:
    """Return the format of a new file: the wanted one, that of its suffix, or qcow2.

    Args:
        file: its name.
        wanted: None: none is named.

    Raises:
        Unprocessable: programs would take a file with this suffix for another format.
    """
    suffix = PurePath(file).suffix
    formats = _SUFFIXES.get(suffix.lower(), (wanted or "qcow2",))
    if not formats:
        raise Unprocessable(f"{file}: no format that convert writes has the suffix {suffix}")
    if wanted is not None and wanted not in formats:
        raise Unprocessable(f"{file}: the suffix {suffix} is that of {formats[0]}, and --format is {wanted}")
    return wanted or formats[0]


def find_target(name: str, subformat: str | None = None, *, compress: bool = False) -> Target:
    """Return the form of a format's name.

    Args:
        subformat: None: the default.
        compress: True: with compressed clusters.

    Raises:
        Unprocessable: the format has no such subformat, or cannot be compressed.
    """
    forms = {target.subformat: target for target in TARGETS if target.name == name}
    target = forms.get(subformat) if subformat else next(iter(forms.values()))
    if target is None:
        raise Unprocessable(
            f"{name} has no subformat {subformat}, only: {', '.join(filter(None, forms)) or 'none'}"
        )
    if compress and target.format is not DiskFormat.QCOW2:
        raise Unprocessable(f"{target} cannot be compressed on demand, only qcow2")
    return attrs.evolve(target, is_compressed=compress)
