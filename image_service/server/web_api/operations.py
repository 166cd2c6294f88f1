"""Operations of a web API with their handlers: one table gives its routes and its OpenAPI document."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import OperationDescription, openapi_document, path_pattern
from image_service.server.web_api.messages import json_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from image_service.common.openapi.bodies import Json, Schemas
    from image_service.common.openapi.document import ApiDescription
    from image_service.server.web_api.messages import ApiRequest, ApiResponse
    from image_service.server.web_api.router import Handlers


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


@attrs.frozen
class ApiOperation(OperationDescription):
    """An operation with its handler.

    Args:
        handler: called with the request, and with the parameters of the path as keyword arguments,
            percent-encoded.
    """

    handler: Callable[..., Awaitable[ApiResponse]]


def routes(base_path: str, operations: Sequence[ApiOperation]) -> Mapping[str, Handlers]:
    """Return the routes of an API, for an `ApiRouter`."""
    handlers: dict[str, dict[str, Callable[..., Awaitable[ApiResponse]]]] = {}
    for operation in operations:
        pattern = re.escape(base_path) + path_pattern(operation.path)
        handlers.setdefault(pattern, {})[operation.method] = operation.handler
    return handlers


def described_routes(
    api: ApiDescription, operations: Sequence[ApiOperation], schemas: Schemas
) -> Mapping[str, Handlers]:
    """Return the routes of operations, and that of ``/openapi.json``, which describes them all.

    Args:
        api: its errors are problem details.
        operations: all others.
        schemas: of their JSON.
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
