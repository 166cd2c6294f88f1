"""Plans that read a disk of the image catalog: composes of it, and exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.jobs.catalog_image import CatalogImage, DiskLayout
from image_service.jobs.model import ComposeBase, ComposeRequest, ImageCustomization, ImageType, UploadTarget
from image_service.jobs.plans.export_plan import make_export_plan
from image_service.jobs.plans.plan import make_plan
from tests.jobs.database.composing import make_image

if TYPE_CHECKING:
    from image_service.jobs.model import ComposePlan

SECRET = ImageCustomization(b'{"secret": "s3cr3t"}')
NOTHING = ImageCustomization()
BASE_DISK = ComposeBase("419.1", "x86_64", "metal", "raw")
IMPORTED = make_image(1, format="qcow2", source="import:import-vol-1")
PARTITION = make_image(2, format="qcow2", source="import:import-vol-2", layout=DiskLayout.PARTITION)
LOCAL = (UploadTarget("local"),)


def compose_of(
    image: CatalogImage,
    image_type: ImageType,
    customization: ImageCustomization = SECRET,
    size: int | None = None,
) -> ComposePlan:
    request = ComposeRequest(image.instance_alias, "x86_64", image_type, customization, size, LOCAL, {})
    return make_plan("c0ffee", request, image, None)


def export(image: CatalogImage | ComposeBase, file_format: str) -> ComposePlan:
    return make_export_plan(image, file_format=file_format, bucket="exports", key=f"a/b.{file_format}")


@pytest.mark.parametrize(
    ("image", "image_type", "customization", "jobs"),
    [
        (IMPORTED, ImageType.GUEST_IMAGE, SECRET, ["customize"]),
        (IMPORTED, ImageType.VSPHERE, SECRET, ["customize", "convert"]),
        (IMPORTED, ImageType.VSPHERE, NOTHING, ["convert"]),
        (IMPORTED, ImageType.GUEST_IMAGE, NOTHING, ["convert"]),
        (PARTITION, ImageType.GUEST_IMAGE, SECRET, ["unpack", "customize"]),
        (PARTITION, ImageType.AWS, NOTHING, ["convert"]),
        (make_image(3, format="vmdk"), ImageType.MINIMAL_RAW, SECRET, ["unpack", "customize"]),
    ],
)
def test_disk_of_the_catalog_is_customized_only_on_request(
    image: CatalogImage, image_type: ImageType, customization: ImageCustomization, jobs: list[str]
) -> None:
    made = compose_of(image, image_type, customization)
    assert [step.name for step in made.steps] == ["find", *jobs, "register"]
    assert made.steps[0].arguments == {"image": image.id}
    first = made.steps[1]
    assert next(iter(first.inputs.values())) == f"image:{image.id}"
    assert first.arguments.get("wrap_partition", False) is (image is PARTITION)
    assert not any(step.arguments.get("wrap_partition") for step in made.steps[2:])
    assert "s3cr3t" not in str(made)


def test_customized_disk_gets_the_platform_of_the_image_type() -> None:
    (customize,) = (
        each for each in compose_of(IMPORTED, ImageType.VSPHERE).steps if each.name == "customize"
    )
    assert (customize.arguments["platform"], customize.inputs["ignition"]) == ("vmware", "ignition")


@pytest.mark.parametrize(
    ("image", "file_format", "steps"),
    [
        (IMPORTED, "vmdk", ["convert", "upload"]),
        (IMPORTED, "vhd", ["convert", "upload"]),
        (IMPORTED, "ova", ["convert", "upload"]),
        (make_image(3, format="vmdk"), "vmdk", ["upload"]),
        (make_image(3, format="raw", layout=DiskLayout.PARTITION), "raw", ["convert", "upload"]),
        (BASE_DISK, "raw", ["fetch", "upload"]),
        (BASE_DISK, "vmdk", ["fetch", "convert", "upload"]),
    ],
)
def test_image_is_converted_only_if_it_must_be(
    image: CatalogImage | ComposeBase, file_format: str, steps: list[str]
) -> None:
    made = export(image, file_format)
    assert [step.name for step in made.steps] == steps
    assert made.steps[-1].arguments["key"] == f"a/b.{file_format}"
    assert [step.after for step in made.steps] == [(), *((name,) for name in steps[:-1])]
    source = "base" if image is BASE_DISK else f"image:{image.id if isinstance(image, CatalogImage) else ''}"
    first = next(step for step in made.steps if step.is_job)
    assert first.inputs == {"image": source}
    assert made.result is None


def test_exported_vhd_is_dynamic() -> None:
    assert export(IMPORTED, "vhd").steps[0].arguments["subformat"] == "dynamic"


def test_exported_partition_becomes_a_disk() -> None:
    assert export(PARTITION, "vmdk").steps[0].arguments["wrap_partition"] is True
