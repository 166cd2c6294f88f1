"""The schemas of requests: osbuild-composer's, without the parts of members that are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.jobs.model import ImageType
from image_service.jobs.plans.plan import LOCAL, S3
from image_service.server.http.openapi import reference

if TYPE_CHECKING:
    from collections.abc import Iterable

    from image_service.jobs.model import Json
    from image_service.server.http.openapi import Schemas

_MAX_UPLOADS = 16
_STRING: Json = {"type": "string"}
_LIST: Json = {"type": "array"}

# Members that osbuild-composer knows, and ours refuses by error 35 unless they are empty.
_UNSUPPORTED_CUSTOMIZATIONS = """
    cacerts containers custom_repositories directories disk dnf enabled_modules fdo files filesystem fips
    firewall groups hostname installation_device installer locale openscap packages partitioning_mode
    payload_repositories rhsm rpm services subscription timezone users
"""
_UNSUPPORTED_BLUEPRINT_CUSTOMIZATIONS = """
    cacerts directories disk dnf fdo files filesystem fips firewall group hostname installation_device
    installer locale openscap partitioning_mode repositories rhsm rpm services sshkey timezone user
"""
_UNSUPPORTED_BLUEPRINT = "containers enabled_modules groups modules packages"
# Options of upload targets that ours refuses by error 38.
_UNSUPPORTED_UPLOAD_OPTIONS = """
    basepath bucket hyper_v_generation image_name location name repository resource_group server_address
    share_with_accounts snapshot_name subscription_id tag tenant_id
"""


def _closed(properties: Json, required: Iterable[str] = (), **keywords: object) -> Json:
    """Return the schema of an object without other members."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
        **keywords,
    }


def _unsupported(names: str, error: int = 35) -> dict[str, Json]:
    return {name: {"description": f"refused by error {error}, unless it is empty"} for name in names.split()}


_CUSTOMIZED = {"ignition": reference("Ignition"), "kernel": reference("Kernel")}

REQUEST_SCHEMAS: Schemas = {
    "ComposeRequest": _closed(
        {
            "distribution": {**_STRING, "description": "a name of /distributions"},
            "image_request": reference("ImageRequest"),
            "image_requests": {
                "type": "array",
                "items": reference("ImageRequest"),
                "description": "exactly one",
            },
            "customizations": reference("Customizations"),
            "blueprint": reference("Blueprint"),
            "blueprint_id": {**_STRING, "format": "uuid", "description": "recorded only"},
            "koji": {"description": "refused by error 42"},
            "bootc": {"description": "refused by error 42"},
        },
        **{"not": {"required": ["customizations", "blueprint"]}},
    ),
    "ImageRequest": _closed(
        {
            "architecture": _STRING,
            "image_type": {**_STRING, "description": f"one of {', '.join(ImageType)}"},
            "repositories": {**_LIST, "description": "refused by error 35, unless it is empty"},
            "ostree": {"description": "refused by error 35, unless it is empty"},
            "upload_targets": {
                "type": "array",
                "maxItems": _MAX_UPLOADS,
                "items": reference("UploadTarget"),
            },
            "upload_options": {**reference("UploadOptions"), "description": f"of a further target {S3}"},
            "size": {
                "type": "integer",
                "minimum": 0,
                "default": 0,
                "description": "virtual size of a disk in bytes; 0: that of the base image",
            },
        },
        ["architecture", "image_type", "repositories"],
    ),
    "UploadTarget": {
        "type": "object",
        "required": ["type", "upload_options"],
        "properties": {
            "type": {**_STRING, "description": f"{LOCAL} or {S3}"},
            "upload_options": reference("UploadOptions"),
        },
    },
    "UploadOptions": _closed(
        {
            "region": {**_STRING, "description": f"of {S3}, which requires it"},
            "public": {
                "type": "boolean",
                "default": False,
                "description": f"of {S3}: readable by everyone",
            },
            **_unsupported(_UNSUPPORTED_UPLOAD_OPTIONS, 38),
        }
    ),
    "Customizations": _closed({**_CUSTOMIZED, **_unsupported(_UNSUPPORTED_CUSTOMIZATIONS)}),
    "Blueprint": _closed(
        {
            "name": _STRING,
            "description": _STRING,
            "version": _STRING,
            "distro": {**_STRING, "description": "equal to distribution, if both are there"},
            "customizations": reference("BlueprintCustomizations"),
            **_unsupported(_UNSUPPORTED_BLUEPRINT),
        },
        ["name"],
    ),
    "BlueprintCustomizations": _closed(
        {**_CUSTOMIZED, **_unsupported(_UNSUPPORTED_BLUEPRINT_CUSTOMIZATIONS)}
    ),
    "Ignition": _closed(
        {
            "embedded": _closed(
                {"config": {**_STRING, "description": "an Ignition config, base64"}}, ["config"]
            ),
            "firstboot": _closed(
                {"url": {**_STRING, "description": "from which the machine fetches its config"}}, ["url"]
            ),
        },
        description="embedded or firstboot, not both",
    ),
    "Kernel": _closed(
        {
            "append": {**_STRING, "description": "kernel arguments, separated by blanks"},
            **_unsupported("name"),
        }
    ),
}
