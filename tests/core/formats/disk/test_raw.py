from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import FormatError
from image_service.core.formats.disk.model import MAX_DISK_BYTES, DiskFormat
from image_service.core.formats.disk.reading_disks import read_disk
from tests.core.formats.reading import reader


@given(st.binary(max_size=40), st.integers(0, 50), st.integers(0, 50))
def test_raw_image_of_any_size_is_the_disk(image: bytes, offset: int, length: int) -> None:
    disk = read_disk(DiskFormat.RAW, reader(image), len(image))
    assert disk.virtual_size == len(image)
    assert disk.read_at(offset, length) == image[offset : offset + length]
    assert sum(length for _, length in disk.data_extents()) == len(image)


def test_raw_image_above_the_limit_is_refused() -> None:
    with pytest.raises(FormatError, match=f"{MAX_DISK_BYTES + 1} bytes; {MAX_DISK_BYTES} are supported"):
        read_disk(DiskFormat.RAW, reader(b""), MAX_DISK_BYTES + 1)
