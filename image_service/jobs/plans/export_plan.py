"""Turns an export into the steps that put an image into a bucket of S3. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.jobs.model import ComposePlan, JobType, Step
from image_service.jobs.plans.plan import BASE, CATALOG_IMAGE, FETCH_BASE, IMAGE

if TYPE_CHECKING:
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.model import ComposeBase

_VHD = "vhd"
_VHD_SUBFORMAT = "dynamic"  # of fixed size, the object would have all bytes of the disk


def make_export_plan(
    image: CatalogImage | ComposeBase, *, file_format: str, bucket: str, key: str
) -> ComposePlan:
    """Return the steps of an export. An image that has the format already is uploaded as it is.

    Args:
        image: a stored image, or a base disk; an image of a partition becomes that of a disk.
        file_format: ``raw``, ``vmdk``, ``vhd`` or ``ova``.
    """
    steps: list[Step] = []
    source = f"{CATALOG_IMAGE}{image.stored_id}"
    if image.stored_id is None:
        source = BASE
        steps.append(Step("fetch", FETCH_BASE, attrs.asdict(image)))
    output = f"disk.{file_format}"
    if image.is_partition or image.format != file_format:
        conversion = {
            "input": IMAGE,
            "input_format": image.format,
            "format": file_format,
            "output": output,
            **({"subformat": _VHD_SUBFORMAT} if file_format == _VHD else {}),
            **({"wrap_partition": True} if image.is_partition else {}),
        }
        steps.append(Step("convert", JobType.CONVERT, conversion, {IMAGE: source}, _last(steps)))
        source = f"convert/{output}"
    upload = {
        "input": IMAGE,
        "bucket": bucket,
        "key": key,
        "region": None,
        "public": False,
        "content_type": "application/octet-stream",
    }
    steps.append(Step("upload", JobType.UPLOAD, upload, {IMAGE: source}, _last(steps)))
    return ComposePlan(tuple(steps), result=None, file_name=output)


def _last(steps: list[Step]) -> tuple[str, ...]:
    return tuple(step.name for step in steps[-1:])
