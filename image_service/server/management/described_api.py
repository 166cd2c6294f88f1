"""An API that describes itself: its routes, and that of the OpenAPI document of its operations."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from image_service.common.openapi.document import openapi_document
from image_service.server.management.messages import json_response
from image_service.server.management.operations import ApiOperation, routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.common.openapi.document import ApiDescription, Json, Schemas
    from image_service.server.management.messages import ApiRequest, ApiResponse
    from image_service.server.management.router import Handlers

_PROBLEM_SCHEMA: Json = {
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
PROBLEM_TYPE = "application/problem+json"
TOKEN_SCHEMES: Mapping[str, Json] = MappingProxyType(
    {"Bearer": {"type": "http", "scheme": "bearer"}, "Basic": {"type": "http", "scheme": "basic"}}
)
"""Of the listeners whose token `RequestGuard` checks."""


def described_routes(
    api: ApiDescription, operations: Sequence[ApiOperation], schemas: Schemas
) -> Mapping[str, Handlers]:
    """Return the routes of operations, and that of ``/openapi.json``, which describes them all.

    Args:
        api: its description; its errors are problem details.
        operations: all others.
        schemas: of their JSON, by name.
    """

    async def show(_: ApiRequest) -> ApiResponse:
        return json_response(document)

    show_document = ApiOperation(
        "GET", "/openapi.json", "getOpenapi", "show this document", show, reply="OpenAPI"
    )
    described = [show_document, *operations]
    own_schemas: Schemas = {"OpenAPI": {"type": "object"}, "Error": _PROBLEM_SCHEMA}
    document = openapi_document(api, described, {**own_schemas, **schemas})
    return routes("", described)
