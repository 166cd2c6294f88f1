"""The operation that attempts at once what a base image needs to be ready."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import TEXT
from image_service.core.errors import Conflict, InvalidParameter
from image_service.server.web_api.messages import ApiResponse, parse_json_object
from image_service.server.web_api.operations import ApiOperation
from image_service.settings.os_images import TYPES

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.server.admin.state import ServingState
    from image_service.server.web_api.messages import ApiRequest

_MEMBERS = ("version", "cpu_architecture", "type")


@attrs.frozen
class ImageRetriesApi:
    """Tries again what has failed. See `AdminApi`."""

    _state: ServingState

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        return (
            ApiOperation(
                "POST",
                "/api/v1/images/retries",
                "retryImage",
                "begin the next attempt of a failed, refused or degraded base image at once",
                self._retry,
                status=204,
                body="ImageRetry",
            ),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return {
            "ImageRetry": {
                "type": "object",
                "required": list(_MEMBERS),
                "properties": {**dict.fromkeys(_MEMBERS, TEXT), "type": {"enum": list(TYPES)}},
                "additionalProperties": False,
            }
        }

    async def _retry(self, request: ApiRequest) -> ApiResponse:
        document = parse_json_object(request.body)
        if set(document) != set(_MEMBERS) or not all(isinstance(each, str) for each in document.values()):
            raise InvalidParameter(f"the members must be {', '.join(_MEMBERS)}, each a string")
        if document["type"] not in TYPES:
            raise InvalidParameter(f"type must be {' or '.join(TYPES)}")
        if not await self._state.retry_image(*(document[name] for name in _MEMBERS)):
            raise Conflict("no attempt is due for this base image")
        return ApiResponse(204)
