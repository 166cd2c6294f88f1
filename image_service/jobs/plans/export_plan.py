"""Turns an export into the steps that convert an image and put it into a bucket of S3. Pure."""

from __future__ import annotations

import attrs

from image_service.jobs.catalog_image import CatalogImage, DiskLayout
from image_service.jobs.model import ComposeBase, ComposePlan, JobType, Step
from image_service.jobs.plans.plan import BASE, CATALOG_IMAGE, FETCH_BASE, IMAGE


def make_export_plan(
    image: CatalogImage | ComposeBase, *, file_format: str, bucket: str, key: str
) -> ComposePlan:
    """Return the steps of an export.

    Args:
        image: a stored image, or a base disk; an image of a partition becomes that of a disk.
        file_format: ``raw``, ``vmdk``, ``vhd`` or ``ova``.
        bucket: of the file.
        key: of the file.
    """
    output = f"disk.{file_format}"
    steps: list[Step] = []
    source = BASE
    is_partition = False
    if isinstance(image, ComposeBase):
        steps.append(Step("fetch", FETCH_BASE, attrs.asdict(image)))
    else:
        source = f"{CATALOG_IMAGE}{image.id}"
        is_partition = image.layout is DiskLayout.PARTITION
    conversion = {
        "input": IMAGE,
        "input_format": image.format,
        "format": file_format,
        "output": output,
        "size": None,
        "wrap_partition": is_partition,
    }
    convert = Step(
        "convert", JobType.CONVERT, conversion, {IMAGE: source}, tuple(step.name for step in steps)
    )
    upload = Step(
        "upload",
        JobType.UPLOAD,
        {
            "input": IMAGE,
            "bucket": bucket,
            "key": key,
            "region": None,
            "public": False,
            "content_type": "application/octet-stream",
        },
        {IMAGE: f"convert/{output}"},
        ("convert",),
    )
    return ComposePlan((*steps, convert, upload), result=None, file_name=output)
