"""Reads the parameters of ImportVolume and ImportInstance. Pure."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.http.origins import public_url
from image_service.common.transfer.manifest import GIB, MANIFEST_FORMATS
from image_service.core.errors import FormatError, UnsafeImage
from image_service.core.formats.disk.model import SECTOR_BYTES
from image_service.jobs.catalog_image import DiskLayout
from image_service.jobs.ec2.errors import invalid_value, missing_parameter
from image_service.jobs.ec2.parameters import one_of
from image_service.jobs.ec2.xml_text import is_representable
from image_service.jobs.task_model import ImportSource

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.common.http.origins import AllowedOrigins
    from image_service.jobs.model import Json

MAX_DISKS = 16
"""Of an instance."""

_MAX_VOLUME_GIB = 16384  # as EC2's largest volumes
PLATFORMS = ("Windows", "Linux")
ARCHITECTURES = {"i386": "i386", "x86_64": "x86_64", "arm64": "aarch64"}
_ADDITIONAL = ("kernel", "ramdisk", "virtualization", "layout")
_VIRTUALIZATIONS = ("hvm", "paravirt")


@attrs.frozen
class RequestedDisk:
    """A disk of an import.

    Args:
        format: ``VMDK``, ``VHD``, ``RAW`` or ``QCOW2``.
        bytes: of the image: its file's, of VMDK and QCOW2 those of its disk.
        volume_gib: size of its volume.
    """

    format: str
    bytes: int
    volume_gib: int
    description: str

    @property
    def volume_bytes(self) -> int:
        """The maximum of its virtual size."""
        return self.volume_gib * GIB


@attrs.frozen
class ImportRequest:
    """A request to import, checked.

    Args:
        document: the parameters without secrets.
        disks: at least one.
        source: URLs of the manifests, one for each disk.
        platform: ``Windows`` or ``Linux``; "": it was not named.
        architecture: RPM architecture name; "": it was not named.
        kernel_images: ids of images that `AdditionalInfo` names.
        tags: of the task, values by keys.
    """

    document: Json
    disks: tuple[RequestedDisk, ...]
    source: ImportSource
    description: str
    platform: str = ""
    architecture: str = ""
    layout: DiskLayout = DiskLayout.DISK
    kernel_images: tuple[str, ...] = ()
    tags: Mapping[str, str] = attrs.field(factory=dict)


def parse_import_volume(parameters: Mapping[str, Any], origins: AllowedOrigins) -> ImportRequest:
    """Return the request of ImportVolume.

    Args:
        parameters: as EC2's model names them.

    Raises:
        Ec2Error: a parameter is missing or invalid.
    """
    disk = _parse_disk("", parameters, origins)
    return ImportRequest(
        document=_without_query(parameters),
        disks=(disk,),
        source=ImportSource((parameters["Image"]["ImportManifestUrl"],)),
        description=parameters.get("Description", ""),
    )


def parse_import_instance(parameters: Mapping[str, Any], origins: AllowedOrigins) -> ImportRequest:
    """Return the request of ImportInstance; arguments and errors are those of `parse_import_volume`."""
    images: Sequence[Mapping[str, Any]] = parameters.get("DiskImages", ())
    if not images:
        raise missing_parameter("DiskImage.1.Image")
    if len(images) > MAX_DISKS:
        raise invalid_value(f"there are {len(images)} disks; an instance has at most {MAX_DISKS}")
    disks = tuple(
        _parse_disk(f"DiskImage.{number}.", image, origins) for number, image in enumerate(images, 1)
    )
    specification = parameters.get("LaunchSpecification", {})
    additional = _parse_additional_info(specification.get("AdditionalInfo", ""))
    return ImportRequest(
        document={
            **parameters,
            "DiskImages": [_without_query(image) for image in images],
            "LaunchSpecification": _without_user_data(specification),
        },
        disks=disks,
        source=ImportSource(tuple(image["Image"]["ImportManifestUrl"] for image in images)),
        description=parameters.get("Description", ""),
        platform=one_of("Platform", parameters.get("Platform", ""), PLATFORMS),
        architecture=_parse_architecture(specification),
        layout=DiskLayout(additional.get("layout", DiskLayout.DISK)),
        kernel_images=tuple(additional[name] for name in ("kernel", "ramdisk") if name in additional),
    )


def _parse_disk(prefix: str, parameters: Mapping[str, Any], origins: AllowedOrigins) -> RequestedDisk:
    image, volume = parameters.get("Image", {}), parameters.get("Volume", {})
    for group, name, value in (
        ("Image", "Format", image),
        ("Image", "Bytes", image),
        ("Image", "ImportManifestUrl", image),
        ("Volume", "Size", volume),
    ):
        if name not in value:
            raise missing_parameter(f"{prefix}{group}.{name}")
    disk = RequestedDisk(
        one_of(f"{prefix}Image.Format", image["Format"], MANIFEST_FORMATS),
        image["Bytes"],
        volume["Size"],
        parameters.get("Description", ""),
    )
    if not 1 <= disk.volume_gib <= _MAX_VOLUME_GIB:
        raise invalid_value(f"{prefix}Volume.Size must be from 1 to {_MAX_VOLUME_GIB} GiB")
    # The file of a VHD has headers, tables and a footer, too; of VMDK and QCOW2 the disk alone counts.
    limit = 2 * disk.volume_bytes if disk.format == "VHD" else disk.volume_bytes
    if not SECTOR_BYTES <= disk.bytes <= limit:
        raise invalid_value(
            f"{prefix}Image.Bytes must be at least {SECTOR_BYTES}, and fit {prefix}Volume.Size, which is"
            f" {disk.volume_gib} GiB"
        )
    try:
        origins.check(image["ImportManifestUrl"], f"{prefix}Image.ImportManifestUrl")
    except (FormatError, UnsafeImage) as error:
        raise invalid_value(error.detail) from None
    return disk


def _parse_architecture(specification: Mapping[str, Any]) -> str:
    name = specification.get("Architecture", "")
    if not name:
        return ""
    return ARCHITECTURES[one_of("LaunchSpecification.Architecture", name, ARCHITECTURES)]


def _parse_additional_info(text: str) -> Mapping[str, str]:
    """Return the members of ``LaunchSpecification.AdditionalInfo``; "": there are none."""
    place = "LaunchSpecification.AdditionalInfo"
    if not text:
        return {}
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise invalid_value(f"{place} must be a JSON object with members of {', '.join(_ADDITIONAL)}")
    if unknown := sorted(set(document).difference(_ADDITIONAL)):
        raise invalid_value(
            f"{place} has the unknown member {unknown[0]!a:.100}; members are {', '.join(_ADDITIONAL)}"
        )
    for name, value in document.items():
        if not isinstance(value, str) or not is_representable(value):
            raise invalid_value(f"{place}.{name} must be a string without control characters")
    for name, values in (("virtualization", _VIRTUALIZATIONS), ("layout", tuple(DiskLayout))):
        if name in document:
            document[name] = one_of(f"{place}.{name}", document[name], values)
    return document


def _without_query(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters without the query of the manifest's URL, which is its signature."""
    image = parameters["Image"]
    return {**parameters, "Image": {**image, "ImportManifestUrl": public_url(image["ImportManifestUrl"])}}


def _without_user_data(specification: Mapping[str, Any]) -> dict[str, Any]:
    """Return a launch specification with the digest of its user data alone, which may be secret."""
    cleaned = dict(specification)
    user_data = cleaned.pop("UserData", {})
    if "Data" in user_data:
        cleaned["UserDataSha256"] = hashlib.sha256(user_data["Data"].encode()).hexdigest()
    return cleaned
