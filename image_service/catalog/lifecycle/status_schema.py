"""The JSON Schema of ``GET /images``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.catalog.lifecycle.status import BaseImageState
from image_service.http.openapi import reference

if TYPE_CHECKING:
    from image_service.http.openapi import Json, Schemas

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_BYTES: Json = {"type": "integer", "minimum": 0}
_BYTES_OR_NULL: Json = {"type": ["integer", "null"], "minimum": 0}
_PROPERTIES: dict[str, Json] = {
    "version": _TEXT,
    "openshift_version": _TEXT,
    "cpu_architecture": _TEXT,
    "type": _TEXT,
    "state": {"enum": [state.value for state in BaseImageState]},
    "reason": _TEXT_OR_NULL,
    "bytes_done": _BYTES,
    "bytes_total": _BYTES_OR_NULL,
    "size": _BYTES_OR_NULL,
    "sha256": {"type": ["string", "null"], "pattern": "^[0-9a-f]{64}$"},
    "remote": {"type": "boolean"},
    "verified": {"enum": ["digest", "origin", None]},
    "retry_at": {"type": ["string", "null"], "format": "date-time"},
    "url": _TEXT,
}

BASE_IMAGE_SCHEMAS: Schemas = {
    "BaseImage": {
        "type": "object",
        "required": list(_PROPERTIES),
        "properties": _PROPERTIES,
        "additionalProperties": False,
    },
    "BaseImages": {
        "type": "object",
        "required": ["images"],
        "properties": {"images": {"type": "array", "items": reference("BaseImage")}},
    },
}
