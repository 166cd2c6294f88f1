from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import DiskFormat
from image_service.core.formats.disk.reading_disks import read_disk
from tests.core.formats.disk.images import Write, disk_of, make_image, raw_form
from tests.core.formats.reading import reader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("size", [512, 1_000_448, 8 << 20])
def test_fixed_disk_reads_as_qemu_img_converts_it(tmp_path: Path, size: int) -> None:
    write = Write(size - 100, 100, 7)
    path = make_image(tmp_path / "disk", DiskFormat.VHD, size, "subformat=fixed,force_size=on", [write])
    disk = disk_of(path, DiskFormat.VHD)
    assert (disk.subformat, disk.virtual_size) == ("fixed", size)
    assert disk.read_at(0, 2 * size) == raw_form(path, "vpc")
    assert disk.read_at(size - 1, 513) == b"\7", "the footer is not of the disk"


def test_damaged_footer_is_refused(tmp_path: Path) -> None:
    path = make_image(tmp_path / "disk", DiskFormat.VHD, 4096, "subformat=fixed,force_size=on")
    image = path.read_bytes()
    for position in range(4096, len(image)):
        damaged = bytearray(image)
        damaged[position] ^= 1
        with pytest.raises(FormatError, match=r"footer|type"):
            read_disk(DiskFormat.VHD, reader(bytes(damaged)), len(damaged))
    with pytest.raises(FormatError, match="4096 bytes; 3584 are before it"):
        read_disk(DiskFormat.VHD, reader(image[512:]), len(image) - 512)
    with pytest.raises(FormatError, match="less than its footer"):
        read_disk(DiskFormat.VHD, reader(b""), 0)
