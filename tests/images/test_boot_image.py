from __future__ import annotations

from datetime import UTC, datetime

from image_service.files.base_file import BaseFile
from image_service.images.boot_image import BootImage
from image_service.images.extents import ExtentMap, FileExtent, Literal, Zeros

EXTENTS = ExtentMap((FileExtent(BaseFile(-1, 2**33, "base.iso"), 0, 2**33), Literal(b"s3cr3t"), Zeros(4)))
IMAGE = BootImage(EXTENTS, '"e"', datetime(2026, 1, 2, tzinfo=UTC), "x.iso")


def test_the_size_is_that_of_the_extents() -> None:
    assert IMAGE.size == 2**33 + 10


def test_an_image_is_not_told_by_its_bytes_but_by_its_etag() -> None:
    """Comparing images, or keeping them in a set, never looks into their extents."""
    twin = BootImage(EXTENTS, IMAGE.etag, IMAGE.modified, IMAGE.file_name)
    assert twin != IMAGE
    assert twin.etag == IMAGE.etag


def test_its_bytes_are_never_shown() -> None:
    assert "s3cr3t" not in repr(IMAGE)
