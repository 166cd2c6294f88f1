"""The API of the service's status: what works and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.http.openapi import reference
from image_service.management.messages import json_response
from image_service.management.operations import ApiOperation

if TYPE_CHECKING:
    from image_service.admin.state import ServingState
    from image_service.http.openapi import Json, Schemas
    from image_service.management.messages import ApiRequest, ApiResponse

_TEXT: Json = {"type": "string"}
_TEXT_OR_NULL: Json = {"type": ["string", "null"]}
_COUNT: Json = {"type": "integer", "minimum": 0}
_TIME: Json = {"type": "string", "format": "date-time"}
_TIME_OR_NULL: Json = {"type": ["string", "null"], "format": "date-time"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


STATUS_SCHEMAS: Schemas = {
    "Status": _object(
        version=_TEXT,
        started_at=_TIME,
        workers=_COUNT,
        ready={"type": "boolean"},
        reason=_TEXT_OR_NULL,
        impairment=_TEXT_OR_NULL,
        connections=_COUNT,
        requests=_COUNT,
        upstream=reference("Upstream"),
        database={"oneOf": [reference("Database"), {"type": "null"}]},
        streams={"type": "array", "items": reference("Stream")},
        certificates={"type": "array", "items": reference("Certificate")},
    ),
    "Upstream": _object(
        url=_TEXT, answered_at=_TIME_OR_NULL, failed_at=_TIME_OR_NULL, failure=_TEXT_OR_NULL, failures=_COUNT
    ),
    "Database": _object(
        was_reached={"type": "boolean"},
        failing_seconds={"type": ["number", "null"]},
        round_trip_seconds={"type": ["number", "null"]},
    ),
    "Stream": _object(name=_TEXT, refreshed_at=_TIME, failures=_COUNT),
    "Certificate": _object(file=_TEXT, not_after=_TIME, state={"enum": ["valid", "ending", "ended"]}),
}


@attrs.frozen
class StatusApi:
    """Shows the status."""

    _state: ServingState
    schemas: Schemas = attrs.field(default=STATUS_SCHEMAS, init=False)

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        summary = "show what works and what does not"
        return (ApiOperation("GET", "/api/v1/status", "getStatus", summary, self._show, reply="Status"),)

    async def _show(self, _: ApiRequest) -> ApiResponse:
        return json_response(await self._state.describe_status())
