"""Turns a request and its base image into the steps that make the image, and finds their artifacts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import NotFound
from image_service.jobs.catalog_image import CatalogImage
from image_service.jobs.model import ComposePlan, ImageCustomization, ImageType, JobType, Step

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from image_service.jobs.model import Artifact, ComposeBase, ComposeRequest, Job

FETCH_BASE = "fetch-base"
CHECK_IMAGE = "check-image"
FIND_IMAGE = "find-image"
REGISTER_IMAGE = "register-image"
"""The actions of steps that this service carries out.

``register-image`` has the argument ``images``: a list of objects with members of `CatalogImage`, and with the
source of its ``artifact``, as in `Step.inputs`.
"""

BASE = "base"
IGNITION = "ignition"
KERNEL_ARGUMENTS = "kernel-arguments"
IMAGE = "image"
"""The sources of inputs that are not artifacts; see `Step.inputs`. Jobs know them by the same names."""
CATALOG_IMAGE = "image:"
"""With the id of an image: the source of an input from the image catalog."""

S3 = "aws.s3"
OCI = "oci"
CONTAINER = "container"
"""Of osbuild-composer: in a registry, too, as a container disk."""
LOCAL = "local"
"""The types of upload targets."""

FILE_NAMES = {
    ImageType.LIVE_INSTALLER: "live-installer.iso",
    ImageType.NETWORK_INSTALLER: "network-installer.iso",
    ImageType.PXE_TAR_XZ: "pxe.tar.xz",
    ImageType.GUEST_IMAGE: "disk.qcow2",
    ImageType.VSPHERE: "disk.vmdk",
    ImageType.VSPHERE_OVA: "image.ova",
    ImageType.AZURE: "disk.vhd",
    ImageType.AWS: "image.raw",
    ImageType.MINIMAL_RAW: "disk.raw",
    ImageType.OPENSTACK: "disk.qcow2",
}
"""The names of finished images; that of a disk ends in its format."""

_CUSTOMIZABLE = {"raw", "qcow2"}


@attrs.frozen
class UploadPlace:
    """The destination of uploads to S3.

    Args:
        prefix: of the keys, without slashes at its ends; "": there is none.
    """

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> UploadPlace:
        """Return the place that an ``s3://BUCKET/PREFIX`` names."""
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        return cls(bucket, prefix.strip("/"))

    def key(self, *parts: str) -> str:
        """Return a key below the prefix."""
        return "/".join(filter(None, (self.prefix, *parts)))


def make_plan(
    compose_id: str,
    request: ComposeRequest,
    base: ComposeBase | CatalogImage,
    place: UploadPlace | None,
    registry: str | None = None,
) -> ComposePlan:
    """Return the steps of a compose.

    Args:
        compose_id: names the objects that are uploaded.
        request: as checked; it has targets of S3 only if there is a `place`, and others by a `registry`.
        base: of which the image is made; a disk if it is of the catalog.
        place: for targets of S3.
        registry: ``oci://HOST/REPOSITORY``, below which images go.
    """
    file_name = FILE_NAMES[request.image_type]
    is_disk = request.image_type.is_disk
    if isinstance(base, CatalogImage):
        steps = list(_catalog_disk_steps(request, base))
    else:
        steps = list(_base_disk_steps(request, base) if is_disk else _composed_steps(base))
    made = steps[-1].name
    result = f"{made}/{file_name}" if is_disk else None
    steps += _upload_steps(compose_id, request, (place, registry), result or IMAGE, made)
    if is_disk:
        image = {
            "id": compose_id,
            "name": f"{request.distribution} {request.image_type}",
            "architecture": request.architecture,
            "format": _format_of(file_name),
            "artifact": result,
            "source": f"compose:{compose_id}",
        }
        steps.append(Step("register", REGISTER_IMAGE, {"images": [image]}, after=(steps[-1].name,)))
    return ComposePlan(tuple(steps), result, file_name)


def find_artifact(jobs: Iterable[Job], source: str) -> Artifact:
    """Return the artifact that ``STEP/NAME`` names; NotFound: it was not made, or is discarded."""
    step, _, name = source.partition("/")
    for job in jobs:
        for artifact in job.artifacts:
            if (job.step, artifact.name) == (step, name):
                return artifact
    raise NotFound(f"step {step} has no artifact {name}")


def _composed_steps(base: ComposeBase) -> Iterator[Step]:
    """Yield the step that proves that the image can be composed while it is read."""
    yield Step("compose", CHECK_IMAGE, attrs.asdict(base))


def _base_disk_steps(request: ComposeRequest, base: ComposeBase) -> Iterator[Step]:
    """Yield the steps that make a disk image of a base; the last one's artifact has the name of the image."""
    yield Step("fetch", FETCH_BASE, attrs.asdict(base))
    platform = request.image_type.platform
    disk = _Disk(BASE, base.format, "fetch")
    yield from _customization_steps(request, disk, None if platform == base.platform else platform)


def _catalog_disk_steps(request: ComposeRequest, image: CatalogImage) -> Iterator[Step]:
    """Yield the steps that make a disk image of one in the catalog.

    Without a customization the disk is only converted: only CoreOS can be customized, and has a platform.
    """
    yield Step("find", FIND_IMAGE, {"image": image.id})
    disk = _Disk(f"{CATALOG_IMAGE}{image.id}", image.format, "find", is_partition=image.is_partition)
    if request.customization == ImageCustomization():
        yield _conversion("convert", disk, FILE_NAMES[request.image_type], request.size)
    else:
        yield from _customization_steps(request, disk, request.image_type.platform)


def _customization_steps(request: ComposeRequest, disk: _Disk, platform: str | None) -> Iterator[Step]:
    """Yield the steps that customize a disk, and give it the form of the image.

    Args:
        platform: to set; None: that of the disk stays.
    """
    file_name = FILE_NAMES[request.image_type]
    if disk.format not in _CUSTOMIZABLE or disk.is_partition:
        is_raw = _format_of(file_name) == "raw"
        unpack = _conversion("unpack", disk, "unpacked.raw" if is_raw else "unpacked.qcow2")
        yield unpack
        disk = _Disk.made_by(unpack)
    is_converted = disk.format != _format_of(file_name) or request.size is not None
    output = f"customized.{disk.format}" if is_converted else file_name
    customize = _customization(request, disk, platform, output)
    yield customize
    if is_converted:
        yield _conversion("convert", _Disk.made_by(customize), file_name, request.size)


@attrs.frozen
class _Disk:
    """A disk image that a step reads.

    Args:
        source: as in `Step.inputs`.
        is_partition: it has no partition table.
    """

    source: str
    format: str
    step: str
    is_partition: bool = False

    @classmethod
    def made_by(cls, step: Step) -> _Disk:
        output = str(step.arguments["output"])
        return cls(f"{step.name}/{output}", _format_of(output), step.name)


def _customization(request: ComposeRequest, disk: _Disk, platform: str | None, output: str) -> Step:
    arguments = {
        "input": BASE,
        "input_format": disk.format,
        "output": output,
        "platform": platform,
    }
    inputs = {BASE: disk.source}
    if request.customization.ignition is not None:
        inputs[IGNITION] = IGNITION
    if request.customization.arguments:
        inputs[KERNEL_ARGUMENTS] = KERNEL_ARGUMENTS
    return Step("customize", JobType.CUSTOMIZE, arguments, inputs, (disk.step,))


def _conversion(name: str, disk: _Disk, output: str, size: int | None = None) -> Step:
    arguments = {
        "input": IMAGE,
        "input_format": disk.format,
        "format": _format_of(output),
        "output": output,
        "size": size,
        **({"wrap_partition": True} if disk.is_partition else {}),
    }
    return Step(name, JobType.CONVERT, arguments, {IMAGE: disk.source}, (disk.step,))


def _upload_steps(
    compose_id: str,
    request: ComposeRequest,
    places: tuple[UploadPlace | None, str | None],
    source: str,
    after: str,
) -> Iterator[Step]:
    """Yield a step for each target but the local one, one after the other."""
    place, registry = places
    for number, target in enumerate((each for each in request.uploads if each.type != LOCAL), 1):
        suffix = "" if number == 1 else f"-{number}"
        file_name = FILE_NAMES[request.image_type]
        arguments: dict[str, object] = {"input": IMAGE}
        if target.type == S3 and place is not None:
            arguments |= {
                "bucket": place.bucket,
                "key": place.key(compose_id + suffix, file_name),
                "region": target.region,
                "public": target.public,
                "content_type": "application/octet-stream",
            }
        elif registry is not None:
            arguments |= {
                "reference": f"{registry}/{target.name}:{compose_id}{suffix}",
                "name": file_name,
                "format": _format_of(file_name),
                "form": target.form or "artifact",
                "architecture": request.architecture,
            }
        name = f"upload{suffix}"
        yield Step(name, JobType.UPLOAD, arguments, {IMAGE: source}, (after,))
        after = name


def _format_of(file_name: str) -> str:
    return file_name.rpartition(".")[2]
