"""Requests to the administrative listener that serving processes answer: the supervisor serves no image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from image_service.core.errors import ImageServiceError, Unavailable
from image_service.server.processes.queries import NO_RESPONSE
from image_service.server.web_api.messages import ApiRequest, ApiResponse, problem_response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from image_service.server.processes.process_slot import ProcessSlot

QUERY = "respond"
TIMEOUT_SECONDS = 8.0
"""Of a serving process's response, which may have to ask assisted-service."""


@attrs.frozen
class ForwardedRequests:
    """Sends requests to the first serving process that serves: the supervisor's end. See `LinkHandlers`."""

    _slots: Sequence[ProcessSlot]

    async def respond(self, request: ApiRequest, **_: str) -> ApiResponse:
        """Return a serving process's response; raises Unavailable if none responds."""
        slot = next((slot for slot in self._slots if slot.is_serving), None)
        if slot is None:
            raise Unavailable(NO_RESPONSE, retry_after_seconds=1)
        sent = [request.method, request.path, request.body.decode("latin-1"), request.client]
        response = await slot.query(QUERY, *sent, timeout_seconds=TIMEOUT_SECONDS)
        status, body, content_type, fields = response
        pairs = tuple((name, value) for name, value in fields)
        return ApiResponse(status, body.encode("latin-1"), content_type, fields=pairs)

    make = list_usable = revoke = find_size = respond


async def respond_to_forwarded(
    respond: Callable[[ApiRequest], Awaitable[ApiResponse]], method: str, path: str, body: str, client: str
) -> list[Any]:
    """Return the response to a forwarded request as JSON can represent it: the serving process's end."""
    request = ApiRequest(method, path, body=body.encode("latin-1"), client=client)
    try:
        response = await respond(request)
    except ImageServiceError as error:
        response = problem_response(error)
    return [response.status, response.body.decode("latin-1"), response.content_type, response.fields]
