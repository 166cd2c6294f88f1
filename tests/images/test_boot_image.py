from __future__ import annotations

from datetime import UTC, datetime

from image_service.files.base_file import BaseFile
from image_service.images.boot_image import BootImage
from image_service.images.extents import ExtentMap, FileExtent, Literal, Zeros

EXTENTS = ExtentMap((FileExtent(BaseFile(-1, 2**33, "base.iso"), 0, 2**33), Literal(b"s3cr3t"), Zeros(4)))
IMAGE = BootImage(EXTENTS, '"e"', datetime(2026, 1, 2, tzinfo=UTC), "x.iso")


def test_size_is_that_of_the_extents() -> None:
    assert IMAGE.size == 2**33 + 10


def test_images_compare_by_identity() -> None:
    """Comparing or hashing images never reads their extents."""
    twin = BootImage(EXTENTS, IMAGE.etag, IMAGE.modified, IMAGE.file_name)
    assert twin != IMAGE
    assert twin.etag == IMAGE.etag


def test_repr_does_not_show_bytes() -> None:
    assert "s3cr3t" not in repr(IMAGE)
