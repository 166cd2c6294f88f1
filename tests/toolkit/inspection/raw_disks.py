"""Raw disks as tests read and damage them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.core.formats.disk.model import DiskFormat, VirtualDisk
from image_service.toolkit.inspection.content import DiskContent, read_content

if TYPE_CHECKING:
    from pathlib import Path


def content_of(path: Path) -> DiskContent:
    """Return the content of a raw disk."""
    with path.open("rb") as file:
        image = file.read()
    disk = VirtualDisk(
        DiskFormat.RAW,
        "",
        len(image),
        lambda offset, length: image[offset : offset + length],
        lambda: iter(()),
    )
    return read_content(disk)


def alter(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
