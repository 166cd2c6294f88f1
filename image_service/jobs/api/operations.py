"""An API as one table of operations, which gives its routes and its OpenAPI document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.jobs.api.schemas import reference

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from image_service.jobs.api.schemas import Schemas
    from image_service.jobs.model import Json
    from image_service.management.messages import ApiResponse
    from image_service.management.router import Handlers

OPENAPI = "3.1.0"  # its schemas are JSON Schemas

_PARAMETER = re.compile(r"\{([a-z_]+)\}")


@attrs.frozen
class ApiDescription:
    """The description of an API.

    Args:
        base_paths: under which it is served, each without a final slash.
    """

    title: str
    version: str
    description: str
    base_paths: tuple[str, ...]


@attrs.frozen
class QueryParameter:
    """A parameter of a query; each is optional.

    Args:
        description: its effect, and its default.
        schema: of its value.
    """

    name: str
    description: str
    schema: Json = attrs.field(factory=lambda: {"type": "string"})


@attrs.frozen
class ApiOperation:
    """A method of a path.

    Args:
        path: below the API's base path; ``{name}`` stands for one segment, which the handler gets,
            percent-encoded, as the keyword argument `name`.
        id: ``operationId``.
        summary: its effect.
        handler: called with the request.
        status: of success.
        reply: name of the schema of the response's content; None: it has none, or none in JSON.
        content_type: of a reply that is not JSON.
        body: name of the schema of the request's JSON; None: there is none.
        body_type: of content that is not JSON.
        query: parameters.
    """

    method: str
    path: str
    id: str
    summary: str
    handler: Callable[..., Awaitable[ApiResponse]]
    status: int = 200
    reply: str | None = None
    content_type: str | None = None
    body: str | None = None
    body_type: str | None = None
    query: tuple[QueryParameter, ...] = ()


def routes(base_path: str, operations: Sequence[ApiOperation]) -> Mapping[str, Handlers]:
    """Return the routes of an API, for an `ApiRouter`."""
    handlers: dict[str, dict[str, Callable[..., Awaitable[ApiResponse]]]] = {}
    for operation in operations:
        pattern = re.escape(base_path) + path_pattern(operation.path)
        handlers.setdefault(pattern, {})[operation.method] = operation.handler
    return handlers


def path_pattern(path: str) -> str:
    """Return the regular expression of a path with parameters, which are its named groups."""
    return _PARAMETER.sub(r"(?P<\1>[^/]+)", path)


def openapi_document(api: ApiDescription, operations: Sequence[ApiOperation], schemas: Schemas) -> Json:
    """Return the OpenAPI document of an API.

    Args:
        api: its description.
        operations: all of the API.
        schemas: of requests and replies; ``Error`` is that of every status from 400 on.
    """
    paths: dict[str, dict[str, Json]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation_object(operation)
    return {
        "openapi": OPENAPI,
        "info": {"title": api.title, "version": api.version, "description": api.description},
        "servers": [{"url": path} for path in api.base_paths],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"Bearer": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"}},
        },
        "security": [{"Bearer": []}, {}],
    }


def _operation_object(operation: ApiOperation) -> Json:
    path_parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    query_parameters = [
        {"in": "query", "name": each.name, "description": each.description, "schema": each.schema}
        for each in operation.query
    ]
    success: dict[str, object] = {"description": "success"}
    if operation.reply is not None:
        success["content"] = _json_content(operation.reply)
    elif operation.content_type is not None:
        success["content"] = {operation.content_type: {}}
    error = {"description": "failure", "content": _json_content("Error")}
    document: dict[str, object] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": {str(operation.status): success, "4XX": error, "5XX": error},
    }
    if path_parameters or query_parameters:
        document["parameters"] = [*path_parameters, *query_parameters]
    if operation.body is not None:
        document["requestBody"] = {"required": True, "content": _json_content(operation.body)}
    elif operation.body_type is not None:
        document["requestBody"] = {"required": True, "content": {operation.body_type: {}}}
    return document


def _json_content(schema: str) -> Json:
    return {"application/json": {"schema": reference(schema)}}
