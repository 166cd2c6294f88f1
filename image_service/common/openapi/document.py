"""An API as a table of operations, and the OpenAPI document that describes them."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPENAPI = "3.1.0"  # its schemas are JSON Schemas

Json: TypeAlias = "Mapping[str, object]"
Schemas: TypeAlias = "Mapping[str, Json]"
"""JSON Schemas (2020-12) by name; they refer to each other by ``#/components/schemas/NAME``."""

TEXT: Json = {"type": "string"}
TEXT_OR_NULL: Json = {"type": ["string", "null"]}
TIME: Json = {"type": "string", "format": "date-time"}
TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}
COUNT: Json = {"type": "integer", "minimum": 0}
COUNT_OR_NULL: Json = {"type": ["integer", "null"], "minimum": 0}
BOOLEAN: Json = {"type": "boolean"}

_PARAMETER = re.compile(r"\{([a-z_]+)\}")
_WITHOUT_CONTENT = {204, 304}  # RFC 9110 section 6.4.1
_JSON_WEB_TOKEN: Json = MappingProxyType({"type": "http", "scheme": "bearer", "bearerFormat": "JWT"})


@attrs.frozen
class ApiDescription:
    """The description of an API.

    Args:
        base_paths: under which it is served, each without a final slash.
        error_type: media type of every status from 400 on, whose content has the schema ``Error``.
        security_schemes: by name; a request needs one of them at most.
    """

    title: str
    version: str
    description: str
    base_paths: tuple[str, ...]
    error_type: str = "application/json"
    security_schemes: Mapping[str, Json] = MappingProxyType({"Bearer": _JSON_WEB_TOKEN})


@attrs.frozen
class QueryParameter:
    """A parameter of a query.

    Args:
        description: its effect, and its default.
    """

    name: str
    description: str
    schema: Json = attrs.field(factory=lambda: {"type": "string"})
    required: bool = False


@attrs.frozen
class OperationDescription:
    """A method of a path.

    Args:
        path: below the API's base path; ``{name}`` stands for one segment.
        id: ``operationId``.
        status: of success.
        other_statuses: below 400; the content is that of success, or none for 204 and 304.
        reply: name of the schema of replies in JSON; None: there are none.
        content_types: of replies that are not JSON.
        body: name of the schema of the request's JSON; None: there is none.
        body_type: of content that is not JSON.
    """

    method: str
    path: str
    id: str
    summary: str
    status: int = attrs.field(default=200, kw_only=True)
    other_statuses: tuple[int, ...] = attrs.field(default=(), kw_only=True)
    reply: str | None = attrs.field(default=None, kw_only=True)
    content_types: tuple[str, ...] = attrs.field(default=(), kw_only=True)
    body: str | None = attrs.field(default=None, kw_only=True)
    body_type: str | None = attrs.field(default=None, kw_only=True)
    query: tuple[QueryParameter, ...] = attrs.field(default=(), kw_only=True)


def path_pattern(path: str) -> str:
    """Return the regular expression of a path with parameters, which are its named groups."""
    parts = enumerate(_PARAMETER.split(path))
    return "".join(f"(?P<{text}>[^/]+)" if index % 2 else re.escape(text) for index, text in parts)


def reference(name: str) -> Json:
    """Return a JSON reference to a schema of the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_schema(**properties: Json) -> Json:
    """Return the schema of an object that has these members and no others."""
    return {
        "type": "object",
        "required": list(properties),
        "properties": properties,
        "additionalProperties": False,
    }


def list_schema(name: str) -> Json:
    """Return the schema of a list, whose items have the schema of that name."""
    return {"type": "array", "items": reference(name)}


def openapi_document(
    api: ApiDescription, operations: Sequence[OperationDescription], schemas: Schemas
) -> Json:
    """Return the OpenAPI document of an API.

    Args:
        schemas: of requests and replies; ``Error`` is that of every status from 400 on.
    """
    paths: dict[str, dict[str, Json]] = {}
    for operation in operations:
        described = _operation_object(operation, api.error_type)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": OPENAPI,
        "info": {"title": api.title, "version": api.version, "description": api.description},
        "servers": [{"url": path or "/"} for path in api.base_paths],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {name: dict(scheme) for name, scheme in api.security_schemes.items()},
        },
        "security": [*({name: []} for name in api.security_schemes), {}],
    }


def _operation_object(operation: OperationDescription, error_type: str) -> Json:
    path_parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string"}}
        for name in _PARAMETER.findall(operation.path)
    ]
    query_parameters = [
        {
            "in": "query",
            "name": each.name,
            "description": each.description,
            "required": each.required,
            "schema": each.schema,
        }
        for each in operation.query
    ]
    success: dict[str, object] = {"description": "success"}
    content: dict[str, object] = {media_type: {} for media_type in operation.content_types}
    if operation.reply is not None:
        content |= _content("application/json", operation.reply)
    if content:
        success["content"] = content
    error = {"description": "failure", "content": _content(error_type, "Error")}
    responses: dict[str, object] = {
        str(status): {"description": "success"} if status in _WITHOUT_CONTENT else success
        for status in (operation.status, *operation.other_statuses)
    }
    document: dict[str, object] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": {**responses, "4XX": error, "5XX": error},
    }
    if path_parameters or query_parameters:
        document["parameters"] = [*path_parameters, *query_parameters]
    if operation.body is not None:
        document["requestBody"] = {"required": True, "content": _content("application/json", operation.body)}
    elif operation.body_type is not None:
        document["requestBody"] = {"required": True, "content": {operation.body_type: {}}}
    return document


def _content(media_type: str, schema: str) -> Json:
    return {media_type: {"schema": reference(schema)}}
