"""The schemas of the composer API's replies: osbuild-composer's, with additions of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import reference

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.jobs.model import Json

_STRING: Json = {"type": "string"}
_INTEGER: Json = {"type": "integer"}
_TIME: Json = {"type": "string", "format": "date-time"}
_OBJECT: Json = {"type": "object"}


def _list_of(name: str) -> Json:
    return {"type": "array", "items": reference(name)}


def _object(properties: Json, *optional: str) -> Json:
    """Return the schema of an object with these members, of which only `optional` may be absent."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": properties}


def _named(properties: Json, *optional: str) -> Json:
    """Return the schema of an object with these members, and with id, kind and href."""
    return {"allOf": [reference("ObjectReference"), _object(properties, *optional)]}


def _page_of(name: str) -> Json:
    return _object(
        {
            "kind": _STRING,
            "page": {**_INTEGER, "description": "from 0"},
            "size": {**_INTEGER, "description": "items on this page"},
            "total": {**_INTEGER, "description": "items in all"},
            "items": _list_of(name),
        }
    )


REPLY_SCHEMAS: Schemas = {
    "ObjectReference": _object({"id": _STRING, "kind": _STRING, "href": _STRING}),
    "Error": _named({"code": _STRING, "operation_id": _STRING, "reason": _STRING, "details": _STRING}),
    "ErrorList": _page_of("Error"),
    "ComposeId": reference("ObjectReference"),
    "ComposeDeleteStatus": reference("ObjectReference"),
    "ComposeCancelStatus": reference("ObjectReference"),
    "ComposeStatus": _named(
        {
            "status": {"enum": ["success", "failure", "pending"]},
            "image_status": reference("ImageStatus"),
            "image_statuses": _list_of("ImageStatus"),
            "distribution": _STRING,
            "architecture": _STRING,
            "image_type": _STRING,
            "created_at": _TIME,
            "finished_at": _TIME,
        },
        "finished_at",
    ),
    "ImageStatus": _object(
        {
            "status": {"enum": ["success", "failure", "pending", "building", "uploading", "registering"]},
            "progress": reference("Progress"),
            "upload_status": reference("UploadStatus"),
            "upload_statuses": _list_of("UploadStatus"),
            "error": _object({"id": _INTEGER, "reason": _STRING, "details": {}}),
        },
        "progress",
        "error",
    ),
    "Progress": _object(
        {
            "done": {**_INTEGER, "description": "jobs that have ended"},
            "total": {**_INTEGER, "description": "jobs in all"},
            "subprogress": _object({"done": _INTEGER, "total": _INTEGER}),
        },
        "subprogress",
    ),
    "UploadStatus": _object(
        {
            "status": {"enum": ["success", "failure", "pending", "running"]},
            "type": {"enum": ["local", "aws.s3"]},
            "options": {
                "type": "object",
                "properties": {
                    "url": {**_STRING, "description": "of aws.s3; empty before it is there"},
                    "artifact_path": {**_STRING, "description": "of local: the path of the download"},
                },
            },
        }
    ),
    "ComposeList": {"oneOf": [_list_of("ComposeStatus"), reference("ComposePage")]},
    "ComposePage": _page_of("ComposeStatus"),
    "ComposeMetadata": _named(
        {
            "request": {**reference("ComposeRequest"), "description": "secret values are empty"},
            "packages": {"type": "array", "description": "empty; of a success only"},
        },
        "packages",
    ),
    "ComposeLogs": _named({"image_builds": {"type": "array", "items": _OBJECT}}),
    "ComposeManifests": _named({"manifests": {"type": "array", "items": _OBJECT}}),
    "ComposeSBOMs": _named({"items": {"type": "array", "items": _list_of("ImageSBOM")}}),
    "ImageSBOM": _object(
        {
            "sbom": {"type": "object", "description": "SPDX"},
            "sbom_type": {"enum": ["spdx"]},
            "pipeline_name": _STRING,
            "pipeline_purpose": {"enum": ["buildroot", "image"]},
        }
    ),
    "ComposeProvenance": _named(
        {
            "items": {
                "type": "array",
                "items": {"type": "object", "description": "an in-toto statement with SLSA provenance"},
            }
        }
    ),
    "ImageList": _page_of("CatalogImage"),
    "CatalogImage": _named(
        {
            "instance_id": {**_STRING, "description": "its id in EC2's API"},
            "volume_id": _STRING,
            "name": _STRING,
            "architecture": _STRING,
            "format": {"enum": ["raw", "qcow2", "vmdk", "vhd", "ova"]},
            "source": {**_STRING, "description": "compose:ID, import:ID or base"},
            "description": {**_STRING, "description": "of the request to import it"},
            "platform": {**_STRING, "description": "of an imported instance"},
            "layout": {"enum": ["disk", "partition"]},
            "launch_specification": {
                "type": "object",
                "description": "of an imported instance, as EC2's API names its members",
            },
            "created_at": _TIME,
            "size": {**_INTEGER, "description": "bytes of the file"},
            "virtual_size": {**_INTEGER, "description": "bytes of the disk"},
            "sha256": {**_STRING, "description": "of the file"},
        },
        *("volume_id", "description", "platform", "layout", "launch_specification"),
        *("created_at", "size", "virtual_size", "sha256"),
    ),
    "ImageDeleteStatus": reference("ObjectReference"),
    "DistributionList": {
        "type": "object",
        "description": "repositories, of which there are none, by distribution, architecture and image type",
        "additionalProperties": {
            "type": "object",
            "additionalProperties": {"type": "object", "additionalProperties": {"type": "array"}},
        },
    },
    "DistributionDetails": _named(
        {
            "name": _STRING,
            "architectures": {"type": "object", "additionalProperties": reference("ArchitectureInfo")},
        }
    ),
    "ArchitectureInfo": _object(
        {
            "name": _STRING,
            "image_types": {"type": "object", "additionalProperties": reference("ImageTypeInfo")},
        }
    ),
    "ImageTypeInfo": _object({"name": _STRING, "filename": _STRING, "mime_type": _STRING}),
}
