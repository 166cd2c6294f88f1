"""The API of the administrative listener: each module has operations, one OpenAPI document describes all."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from image_service import __version__
from image_service.http.openapi import ApiDescription, openapi_document
from image_service.management.messages import json_response
from image_service.management.operations import ApiOperation, routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.http.openapi import Json, Schemas
    from image_service.management.messages import ApiRequest, ApiResponse
    from image_service.management.router import Handlers

_DESCRIPTION = ApiDescription(
    "image-service administration",
    __version__,
    "For those who run the service: probes, metrics, states.",
    ("",),
    error_type="application/problem+json",
    security_schemes=MappingProxyType(
        {
            "Bearer": {"type": "http", "scheme": "bearer"},
            "Basic": {"type": "http", "scheme": "basic"},
        }
    ),
)
PROBLEM_SCHEMA: Json = {
    "type": "object",
    "required": ["title", "status", "code", "detail"],
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "code": {"type": "string"},
        "detail": {"type": "string"},
    },
}
"""Problem details (RFC 9457)."""


class AdminApi(Protocol):
    """Operations on one subject."""

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """All of them."""

    @property
    def schemas(self) -> Schemas:
        """Schemas of their JSON, by name."""


def api_routes(apis: Sequence[AdminApi]) -> Mapping[str, Handlers]:
    """Return the routes of the APIs, and that of the OpenAPI document that describes them."""

    async def show(_: ApiRequest) -> ApiResponse:
        return json_response(document)

    schemas: dict[str, Json] = {"OpenAPI": {"type": "object"}, "Error": PROBLEM_SCHEMA}
    operations = [
        ApiOperation("GET", "/openapi.json", "getOpenapi", "show this document", show, reply="OpenAPI")
    ]
    for api in apis:
        operations.extend(api.operations)
        schemas.update(api.schemas)
    document = openapi_document(_DESCRIPTION, operations, schemas)
    return routes("", operations)
