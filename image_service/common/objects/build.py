"""Opens the store that the settings name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from image_service.common.objects.directory import DirectoryStore
from image_service.common.objects.s3 import S3Store
from image_service.common.objects.s3_client import BucketLocation

if TYPE_CHECKING:
    from image_service.common.objects.s3_client import S3Options
    from image_service.common.objects.store import ObjectStorage


def open_store(url: str, s3: S3Options, reserve_bytes: int = 0) -> ObjectStorage:
    """Return a store; nothing is opened or connected before it is used.

    Args:
        url: ``s3://BUCKET/PREFIX``, or the path of a directory, which is made.
        reserve_bytes: that stay free in the file system of a directory.
    """
    if not url.startswith("s3://"):
        return DirectoryStore(Path(url), reserve_bytes)
    place = BucketLocation.of(url)
    return S3Store(BucketLocation(place.bucket, f"{place.key.rstrip('/')}/" if place.key else ""), s3)
