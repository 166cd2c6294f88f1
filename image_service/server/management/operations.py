"""Operations of a management API with their handlers: one table gives its routes and its OpenAPI document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import OperationDescription, path_pattern

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from image_service.server.management.messages import ApiResponse
    from image_service.server.management.router import Handlers


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
