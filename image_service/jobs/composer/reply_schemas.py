"""The schemas of the composer API's replies: osbuild-composer's, with additions of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import TEXT, TIME, list_schema, reference

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.jobs.model import Json

_INTEGER: Json = {"type": "integer"}
_OBJECT: Json = {"type": "object"}


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
            "kind": TEXT,
            "page": {**_INTEGER, "description": "from 0"},
            "size": {**_INTEGER, "description": "items on this page"},
            "total": {**_INTEGER, "description": "items in all"},
            "items": list_schema(name),
        }
    )


REPLY_SCHEMAS: Schemas = {
    "ObjectReference": _object({"id": TEXT, "kind": TEXT, "href": TEXT}),
    "Error": _named({"code": TEXT, "operation_id": TEXT, "reason": TEXT, "details": TEXT}),
    "ErrorList": _page_of("Error"),
    "ComposeId": reference("ObjectReference"),
    "ComposeDeleteStatus": reference("ObjectReference"),
    "ComposeCancelStatus": reference("ObjectReference"),
    "ComposeStatus": _named(
        {
            "status": {"enum": ["success", "failure", "pending"]},
            "image_status": reference("ImageStatus"),
            "image_statuses": list_schema("ImageStatus"),
            "distribution": TEXT,
            "architecture": TEXT,
            "image_type": TEXT,
            "created_at": TIME,
            "finished_at": TIME,
        },
        "finished_at",
    ),
    "ImageStatus": _object(
        {
            "status": {"enum": ["success", "failure", "pending", "building", "uploading", "registering"]},
            "progress": reference("Progress"),
            "upload_status": reference("UploadStatus"),
            "upload_statuses": list_schema("UploadStatus"),
            "error": _object({"id": _INTEGER, "reason": TEXT, "details": {}}),
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
            "type": {"enum": ["local", "aws.s3", "oci", "container"]},
            "options": {
                "type": "object",
                "properties": {
                    "url": {
                        **TEXT,
                        "description": "of aws.s3, oci and container; empty before it is there",
                    },
                    "digest": {**TEXT, "description": "of container: that of the manifest; same"},
                    "artifact_path": {**TEXT, "description": "of local: the path of the download"},
                },
            },
        }
    ),
    "ComposeList": {"oneOf": [list_schema("ComposeStatus"), reference("ComposePage")]},
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
    "ComposeSBOMs": _named({"items": {"type": "array", "items": list_schema("ImageSBOM")}}),
    "ImageSBOM": _object(
        {
            "sbom": {"type": "object", "description": "SPDX"},
            "sbom_type": {"enum": ["spdx"]},
            "pipeline_name": TEXT,
            "pipeline_purpose": {"enum": ["buildroot", "image"]},
        }
    ),
    "ComposeProvenance": _named(
        {
            "items": {
                "type": "array",
                "items": {"type": "object", "description": "an in-toto statement with SLSA provenance"},
            },
            "bundles": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "a Sigstore bundle with the statement, if SIGNING_KEY_FILE is set",
                },
            },
        }
    ),
    "ImageList": _page_of("CatalogImage"),
    "CatalogImage": _named(
        {
            "instance_id": {**TEXT, "description": "its id in EC2's API"},
            "volume_id": TEXT,
            "name": TEXT,
            "architecture": TEXT,
            "format": {"enum": ["raw", "qcow2", "vmdk", "vhd", "ova"]},
            "source": {**TEXT, "description": "compose:ID, import:ID or base"},
            "description": {**TEXT, "description": "of the request to import it"},
            "platform": {**TEXT, "description": "of an imported instance"},
            "layout": {"enum": ["disk", "partition"]},
            "launch_specification": {
                "type": "object",
                "description": "of an imported instance, as EC2's API names its members",
            },
            "created_at": TIME,
            "size": {**_INTEGER, "description": "bytes of the file"},
            "virtual_size": {**_INTEGER, "description": "bytes of the disk"},
            "sha256": {**TEXT, "description": "of the file"},
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
            "name": TEXT,
            "architectures": {"type": "object", "additionalProperties": reference("ArchitectureInfo")},
        }
    ),
    "ArchitectureInfo": _object(
        {
            "name": TEXT,
            "image_types": {"type": "object", "additionalProperties": reference("ImageTypeInfo")},
        }
    ),
    "ImageTypeInfo": _object({"name": TEXT, "filename": TEXT, "mime_type": TEXT}),
}
