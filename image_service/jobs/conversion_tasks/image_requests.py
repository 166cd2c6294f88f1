"""Reads the parameters of ImportImage, ImportSnapshot and ExportImage. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.http.origins import public_url
from image_service.common.transfer.manifest import IMAGE_FORMATS
from image_service.jobs.conversion_tasks.filters import parse_tags
from image_service.jobs.conversion_tasks.import_requests import ARCHITECTURES, MAX_DISKS, PLATFORMS
from image_service.jobs.ec2.errors import invalid_value, missing_parameter
from image_service.jobs.ec2.parameters import one_of
from image_service.jobs.exports.target import ExportTarget, parse_place
from image_service.jobs.imports.objects import ObjectLocation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.jobs.model import Json

EXPORT_FORMATS = ("VMDK", "VHD", "RAW")
_S3_SCHEME = "s3://"
_FACTS = (
    *("BootMode", "ClientData", "Hypervisor", "LicenseSpecifications", "LicenseType", "RoleName"),
    "UsageOperation",
)
"""Parameters that only matter to a running instance, or to AWS; they are kept with the image."""


@attrs.frozen
class ObjectImport:
    """A request to import objects, checked.

    Args:
        document: the parameters that replies show.
        locations: of the disks, at least one.
        platform: ``Windows`` or ``Linux``; "": it was not named.
        architecture: RPM architecture name; "": it was not named.
        tags: values by keys.
    """

    document: Json
    locations: tuple[ObjectLocation, ...]
    description: str
    platform: str
    architecture: str
    tags: Mapping[str, str]


def parse_import_image(parameters: Mapping[str, Any]) -> ObjectImport:
    """Return the request of ImportImage; raises Ec2Error."""
    containers = parameters.get("DiskContainers", ())
    if not containers:
        raise missing_parameter("DiskContainer.1")
    if len(containers) > MAX_DISKS:
        raise invalid_value(f"there are {len(containers)} disks; an image has at most {MAX_DISKS}")
    platform, architecture = parameters.get("Platform", ""), parameters.get("Architecture", "")
    locations = tuple(
        _parse_location(f"DiskContainer.{number}.", each) for number, each in enumerate(containers, 1)
    )
    return _checked(
        parameters,
        locations,
        "import-image-task",
        platform and one_of("Platform", platform, PLATFORMS),
        architecture and ARCHITECTURES[one_of("Architecture", architecture, ARCHITECTURES)],
    )


def parse_import_snapshot(parameters: Mapping[str, Any]) -> ObjectImport:
    """Return the request of ImportSnapshot; raises Ec2Error."""
    if "DiskContainer" not in parameters:
        raise missing_parameter("DiskContainer")
    location = _parse_location("DiskContainer.", parameters["DiskContainer"])
    return _checked(parameters, (location,), "import-snapshot-task")


def parse_export_image(parameters: Mapping[str, Any]) -> ExportTarget:
    """Return the target of ExportImage; raises Ec2Error."""
    image_format = one_of("DiskImageFormat", parameters["DiskImageFormat"], EXPORT_FORMATS)
    bucket, prefix = parse_place("S3ExportLocation", parameters["S3ExportLocation"])
    return ExportTarget(image_format, None, bucket, prefix)


def _checked(
    parameters: Mapping[str, Any],
    locations: tuple[ObjectLocation, ...],
    resource_type: str,
    platform: str = "",
    architecture: str = "",
) -> ObjectImport:
    for name in ("Encrypted", "KmsKeyId"):
        if parameters.get(name):
            raise invalid_value(f"{name} must not be set: images are not encrypted here")
    kept = {
        name: value
        for name, value in parameters.items()
        if name not in {"DiskContainers", "DiskContainer", "TagSpecifications", "ClientToken"}
    }
    document = {
        **kept,
        "Disks": [location.describe() for location in locations],
        "LaunchSpecification": {name: parameters[name] for name in _FACTS if name in parameters},
    }
    return ObjectImport(
        document,
        locations,
        parameters.get("Description", ""),
        platform,
        architecture,
        parse_tags(parameters.get("TagSpecifications", ()), resource_type),
    )


def _parse_location(prefix: str, container: Mapping[str, Any]) -> ObjectLocation:
    """Return the location of a disk: an object of S3, which a URL may name too, or a URL."""
    url, place = container.get("Url", ""), container.get("UserBucket", {})
    if "SnapshotId" in container:
        raise invalid_value(f"{prefix}SnapshotId is not supported; name the image by UserBucket or Url")
    if bool(url) == bool(place):
        raise invalid_value(f"{prefix[:-1]} must have either UserBucket or Url")
    bucket, key = place.get("S3Bucket", ""), place.get("S3Key", "")
    if url.startswith(_S3_SCHEME):
        bucket, _, key = url.removeprefix(_S3_SCHEME).partition("/")
        url = ""
    for name, value in (("S3Bucket", bucket), ("S3Key", key)):
        if not url and not value:
            raise missing_parameter(f"{prefix}UserBucket.{name}")
    image_format = container.get("Format", "")
    shown = {"Url": public_url(container["Url"])} if "Url" in container else {"UserBucket": dict(place)}
    return ObjectLocation(
        f"{prefix}{'Url' if url else 'UserBucket'}",
        image_format and one_of(f"{prefix}Format", image_format, IMAGE_FORMATS),
        bucket,
        key,
        url,
        {
            **shown,
            **{name: container[name] for name in ("Description", "DeviceName") if name in container},
        },
    )
