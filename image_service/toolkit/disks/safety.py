"""Judges whether a disk image is safe: the verdict of oslo.utils, and checks that it does not make."""

from __future__ import annotations

import io
import logging
from typing import TYPE_CHECKING, Final

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import SECTOR_BYTES, DiskFormat, VirtualDisk
from image_service.core.formats.disk.vmdk_header import with_ascii_descriptor
from image_service.toolkit.disks.detection import detect_images

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from oslo_utils.imageutils.format_inspector import FileInspector

    from image_service.core.formats.reading import ReadAt

MAX_VIRTUAL_BYTES = 1 << 44
"""16 TiB: a larger disk is refused unless the caller allows it, whatever little its file stores."""

_HEAD_BYTES = 2 * 1024 * 1024  # a VMDK descriptor ends before 1 MiB
_TAIL_BYTES = 3 * SECTOR_BYTES  # the footer of a VMDK
_FIRST_CHUNK_BYTES = 512  # oslo.utils compares a text's first chunk with its first 512 bytes

# A boot sector without a partition, and an ISO, are raw to every program.
_RAW_TO_ALL = {"raw", "gpt", "iso"}
_SUPERSEDED: Final[Mapping[str, Collection[str]]] = {
    # It refuses extended L2 entries; the reader knows them, and refuses all that it does not know.
    "qcow2": {"unknown_features"},
}
_DESCRIPTIONS: Final[Mapping[str, str]] = {
    "sesparse": "one extent of a VMDK (seSparse), whose descriptor is another file",
    "vdi": "a VirtualBox disk image (VDI)",
    "qed": "a QED image",
    "luks": "an encrypted LUKS volume",
    "parallels": "a Parallels image",
    "bochs": "a Bochs image",
    "cloop": "a cloop image",
    "dmg": "a macOS disk image (DMG)",
}
_ARCHIVES = {"zip", "7z"}

logging.getLogger("oslo_utils").addHandler(logging.NullHandler())  # its warnings are our reasons


def inspect_by_oslo(read_at: ReadAt, size: int) -> tuple[set[str], list[str]]:
    """Return the formats that oslo.utils finds, none for raw, and why it takes them for unsafe.

    It gets the head and the tail: it would read a sparse file of terabytes to its end. It reads a VMDK's
    descriptor as ASCII, and refuses the names in other encodings that hypervisors write.
    """
    # `image-toolkit list` works where oslo.utils is missing.
    from oslo_utils.imageutils.format_inspector import InspectWrapper  # noqa: PLC0415

    if size <= _HEAD_BYTES + _TAIL_BYTES:
        data = read_at(0, size)
    else:
        data = read_at(0, _HEAD_BYTES) + read_at(size - _TAIL_BYTES, _TAIL_BYTES)
    data = with_ascii_descriptor(data)
    wrapper = InspectWrapper(io.BytesIO(data))
    wrapper.read(_FIRST_CHUNK_BYTES)
    wrapper.read(len(data))
    wrapper.close()
    inspectors = [item for item in wrapper.formats or () if str(item) not in _RAW_TO_ALL]
    reasons = [reason for inspector in inspectors for reason in _faults(inspector)]
    return {str(inspector) for inspector in inspectors}, sorted(reasons)


def _faults(inspector: FileInspector) -> list[str]:
    from oslo_utils.imageutils.format_inspector import ImageFormatError, SafetyCheckFailed  # noqa: PLC0415

    if not inspector.complete:  # VHDX metadata behind the head: its own checks are none
        return []
    try:
        inspector.safety_check()
    except SafetyCheckFailed as error:
        superseded = _SUPERSEDED.get(str(inspector), ())
        return [f"{fault} ({name})" for name, fault in error.failures.items() if name not in superseded]
    except ImageFormatError as error:
        return [str(error)]
    return []


def describe_unsupported(content: str) -> str:
    """Return why a file with this content is refused."""
    if content in _DESCRIPTIONS:
        return f"it is {_DESCRIPTIONS[content]}, which is not supported"
    if content in _ARCHIVES:
        return f"it is an archive ({content}): unpack it first"
    return f"it is compressed ({content}): decompress it first"


def check_size(disk: VirtualDisk, max_virtual_bytes: int) -> None:
    """Raise FormatError if a disk is too large, or has a part of a sector, which qemu would leave out."""
    size = disk.virtual_size
    if size > max_virtual_bytes:
        raise FormatError(f"the disk claims {size} bytes; the limit is {max_virtual_bytes}")
    if disk.format is not DiskFormat.RAW and size % SECTOR_BYTES:
        raise FormatError(f"the disk has {size} bytes, which are not whole sectors of {SECTOR_BYTES}")


def check_content(disk: VirtualDisk) -> list[str]:
    """Return why the disk itself is refused: as a raw file, a program would take it for another format.

    A program that detects formats would then follow names that the guest has written.
    """
    # Raw files have whole sectors, so the last one may end behind the disk.
    sizes = {disk.virtual_size, -(-disk.virtual_size // SECTOR_BYTES) * SECTOR_BYTES}

    def read_padded(offset: int, length: int) -> bytes:
        return disk.read_at(offset, min(length, disk.virtual_size - offset)).ljust(length, b"\0")

    found = sorted(set().union(*(detect_images(read_padded, size) for size in sizes)))
    return [
        f"the disk inside would be read as a {name} image: images in images are refused" for name in found
    ]
