"""Routes of a web API: paths and methods to handlers, with 404 and 405 for everything else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from image_service.core.errors import MethodNotAllowed, NotFound
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from image_service.server.web_api.messages import ApiRequest

Handlers: TypeAlias = Mapping[str, Callable[..., Awaitable[ApiResponse]]]
"""By method; each is called with the request, and with the named groups of the path's pattern."""


class ApiRouter:
    """Passes requests to handlers.

    Args:
        routes: handlers by the pattern of a whole path, percent-encoded; the first that matches counts.
    """

    def __init__(self, routes: Mapping[str, Handlers]) -> None:
        self._routes = [(re.compile(pattern), handlers) for pattern, handlers in routes.items()]

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the handler's response; raises NotFound, MethodNotAllowed, or what the handler raises."""
        for pattern, handlers in self._routes:
            match = pattern.fullmatch(request.path)
            if match is None:
                continue
            handler = handlers.get(request.method)
            if handler is None:
                allowed = [*handlers, "HEAD"] if "GET" in handlers else list(handlers)
                detail = f"this resource only allows {', '.join(handlers)}"
                raise MethodNotAllowed(detail, fields=(("Allow", ", ".join(allowed)),))
            return await handler(request, **match.groupdict())
        raise NotFound("no such resource")
