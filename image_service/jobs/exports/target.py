"""The target of an export: the form of the file, and its place in S3. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import attrs

from image_service.jobs.ec2.errors import invalid_value, missing_parameter
from image_service.jobs.ec2.parameters import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

OVA = "ova"

_FORMATS = {"VMDK": "vmdk", "VHD": "vhd", "RAW": "raw"}
_DEFAULT_FORMATS = {"vmware": "VMDK", "microsoft": "VHD", "citrix": "VHD"}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9!_.*'()/ -]{0,900}")


@attrs.frozen
class ExportTarget:
    """The target of an export.

    Args:
        disk_format: ``VMDK``, ``VHD`` or ``RAW``: that of the disk, also in a container.
        container: ``ova``; None: the file is the disk image alone.
    """

    disk_format: str
    container: str | None
    bucket: str
    prefix: str

    @property
    def format(self) -> str:
        """The format of the file, by the name that the toolkit has for it."""
        return self.container or _FORMATS[self.disk_format]

    def key(self, task_id: str) -> str:
        """Return the key of the object: prefix, task, and the container or else the format."""
        return f"{self.prefix}{task_id}.{self.format}"


def parse_export_target(environment: str, export: Mapping[str, Any]) -> ExportTarget:
    """Return the target that a request names.

    Args:
        environment: ``TargetEnvironment`` of CreateInstanceExportTask; it has a default format.
        export: its ``ExportToS3Task``.

    Raises:
        Ec2Error: a parameter is missing or invalid.
    """
    environment = one_of("TargetEnvironment", environment, _DEFAULT_FORMATS)
    disk_format = export.get("DiskImageFormat", _DEFAULT_FORMATS[environment])
    disk_format = one_of("ExportToS3.DiskImageFormat", disk_format, _FORMATS)
    container = export.get("ContainerFormat")
    if container is not None:
        container = one_of("ExportToS3.ContainerFormat", container, (OVA,))
        if disk_format != "VMDK":
            raise invalid_value(
                f"ExportToS3.ContainerFormat {OVA} needs DiskImageFormat VMDK, not {disk_format}"
            )
    return ExportTarget(disk_format, container, *parse_place("ExportToS3", export))


def parse_place(name: str, place: Mapping[str, Any]) -> tuple[str, str]:
    """Return bucket and prefix of an export.

    Args:
        name: of the parameter that has ``S3Bucket`` and ``S3Prefix``.

    Raises:
        Ec2Error: one of them is missing or invalid.
    """
    bucket, prefix = place.get("S3Bucket", ""), place.get("S3Prefix", "")
    if not bucket:
        raise missing_parameter(f"{name}.S3Bucket")
    if not _BUCKET.fullmatch(bucket):
        raise invalid_value(
            f"{name}.S3Bucket must be the name of a bucket: 3 to 63 lower-case letters, digits, dots and"
            " hyphens"
        )
    if not _PREFIX.fullmatch(prefix) or _has_odd_parts(prefix):
        raise invalid_value(
            f"{name}.S3Prefix must have at most 900 letters, digits, blanks and characters of !_.*'()/-,"
            " and no parts that are empty, . or .."
        )
    return bucket, prefix


def _has_odd_parts(prefix: str) -> bool:
    """Return True if a part of a key is empty, ``.`` or ``..``; the id of the task continues the last one."""
    return bool({"", ".", ".."}.intersection(prefix.split("/")[:-1]))
