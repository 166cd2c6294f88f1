"""The JSON Schema of ``GET /images``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.openapi.document import (
    BOOLEAN,
    COUNT,
    COUNT_OR_NULL,
    TEXT,
    TEXT_OR_NULL,
    TIME_OR_NULL,
    list_schema,
    object_schema,
)
from image_service.server.catalog.lifecycle.status import BaseImageState

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas

BASE_IMAGE_SCHEMAS: Schemas = {
    "BaseImage": object_schema(
        version=TEXT,
        openshift_version=TEXT,
        cpu_architecture=TEXT,
        type=TEXT,
        state={"enum": [state.value for state in BaseImageState]},
        reason=TEXT_OR_NULL,
        bytes_done=COUNT,
        bytes_total=COUNT_OR_NULL,
        size=COUNT_OR_NULL,
        sha256={"type": ["string", "null"], "pattern": "^[0-9a-f]{64}$"},
        remote=BOOLEAN,
        verified={"enum": ["digest", "origin", None]},
        retry_at=TIME_OR_NULL,
        url=TEXT,
    ),
    "BaseImages": object_schema(images=list_schema("BaseImage")),
}
