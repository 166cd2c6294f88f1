"""JSON Schemas of the stand-in's API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import reference
from image_service.core.families.coreos.kargs import Operation
from image_service.core.images.reference import Kind
from image_service.server.standalone.infra_env import ARCHITECTURES

if TYPE_CHECKING:
    from image_service.common.openapi.document import Json, Schemas

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_TIME: Json = {"type": "string", "format": "date-time"}
_KEYFILES: Json = {"type": ["object", "null"], "additionalProperties": _TEXT}
_IMAGE_TYPE: Json = {"enum": [Kind.FULL_ISO.value, Kind.MINIMAL_ISO.value]}
_KERNEL_ARGUMENT: Json = {
    "type": "object",
    "required": ["operation", "value"],
    "properties": {
        "operation": {"enum": [operation.value for operation in Operation]},
        "value": {**_TEXT, "minLength": 1},
    },
    "additionalProperties": False,
}
_CHANGES: dict[str, Json] = {
    "name": {"type": "string", "minLength": 1, "maxLength": 128},
    "openshift_version": {"type": "string", "minLength": 1, "maxLength": 64},
    "cpu_architecture": {"enum": list(ARCHITECTURES)},
    "image_type": _IMAGE_TYPE,
    "ignition_config_override": _TEXT_OR_NULL,
    "kernel_arguments": {"type": ["array", "null"], "items": _KERNEL_ARGUMENT},
    "network_keyfiles": _KEYFILES,
    "ramdisk": {**_TEXT_OR_NULL, "contentEncoding": "base64"},
    "pull_secret": {},
}
_INFRA_ENV: dict[str, Json] = {
    "kind": {"const": "InfraEnv"},
    "id": {"type": "string", "format": "uuid"},
    "href": _TEXT,
    "name": _TEXT,
    "openshift_version": _TEXT,
    "cpu_architecture": _TEXT,
    "type": _IMAGE_TYPE,
    "ignition_config_override": _TEXT_OR_NULL,
    "network_keyfiles": {"type": "object", "additionalProperties": _TEXT},
    "ramdisk_set": {"type": "boolean"},
    "download_url": _TEXT,
    "created_at": _TIME,
    "updated_at": _TIME,
}


def _object(properties: dict[str, Json], required: tuple[str, ...]) -> Json:
    return {
        "type": "object",
        "required": list(required),
        "properties": properties,
        "additionalProperties": False,
    }


SCHEMAS: Schemas = {
    "NewInfraEnv": _object(_CHANGES, ("name", "openshift_version")),
    "InfraEnvChanges": _object(_CHANGES, ()),
    "InfraEnv": _object(
        {**_INFRA_ENV, "kernel_arguments": {"type": "string", "contentMediaType": "application/json"}},
        tuple(_INFRA_ENV),
    ),
    "InfraEnvs": {"type": "array", "items": reference("InfraEnv")},
    "IgnitionConfig": {"type": "object"},
    "ImageUrl": _object({"url": _TEXT}, ("url",)),
}
