"""The API of the service's status: what works and what does not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from image_service.common.concurrency.single_flight import shielded
from image_service.common.openapi.document import (
    BOOLEAN,
    COUNT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    list_schema,
    object_schema,
    reference,
)
from image_service.core.errors import InvalidParameter
from image_service.server.admin.verdict import Level, judge
from image_service.server.observability.log import LEVELS
from image_service.server.web_api.messages import ApiResponse, json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.common.openapi.document import Schemas
    from image_service.server.admin.activity import Activity
    from image_service.server.admin.state import ServingState
    from image_service.server.web_api.messages import ApiRequest

_log = Logger()
STATUS_SCHEMAS: Schemas = {
    "LogLevel": object_schema(level={"enum": list(LEVELS)}),
    "ChosenAddress": object_schema(address=TEXT_OR_NULL),
    "BaseAddress": object_schema(
        decided_by=TEXT_OR_NULL, chosen=TEXT_OR_NULL, is_present=BOOLEAN, addresses=list_schema("OwnAddress")
    ),
    "OwnAddress": object_schema(address=TEXT, interface=TEXT),
    "Status": object_schema(
        verdict=reference("Verdict"),
        host=TEXT_OR_NULL,
        version=TEXT,
        started_at=TIME,
        workers=COUNT,
        base_url=TEXT,
        base_address=reference("BaseAddress"),
        standalone=BOOLEAN,
        log_level={"enum": [*LEVELS, None]},
        stopping=BOOLEAN,
        ready=BOOLEAN,
        reason=TEXT_OR_NULL,
        impairment=TEXT_OR_NULL,
        connections=COUNT,
        requests=COUNT,
        upstream=reference("Upstream"),
        database={"oneOf": [reference("Database"), {"type": "null"}]},
        streams=list_schema("Stream"),
        certificates=list_schema("Certificate"),
        replicas=list_schema("Replica"),
        totals={"oneOf": [reference("Totals"), {"type": "null"}]},
    ),
    "Replica": object_schema(
        host=TEXT_OR_NULL,
        version=TEXT,
        machines=COUNT,
        connections=COUNT,
        requests=COUNT,
        age_seconds={"type": "number"},
        state={"enum": ["present", "away"]},
        is_own=BOOLEAN,
    ),
    "Totals": object_schema(replicas=COUNT, machines=COUNT, connections=COUNT, requests=COUNT),
    "Verdict": object_schema(level={"enum": [level.name.lower() for level in Level]}, text=TEXT),
    "Upstream": object_schema(
        url=TEXT,
        answered_at=TIME_OR_NULL,
        failed_at=TIME_OR_NULL,
        failing_since=TIME_OR_NULL,
        failure=TEXT_OR_NULL,
        failure_status={"type": ["integer", "null"]},
        failures=COUNT,
    ),
    "Database": object_schema(
        was_reached=BOOLEAN,
        failing_seconds={"type": ["number", "null"]},
        round_trip_seconds={"type": ["number", "null"]},
    ),
    "Stream": object_schema(name=TEXT, refreshed_at=TIME, failures=COUNT),
    "Certificate": object_schema(file=TEXT, not_after=TIME, state={"enum": ["valid", "ending", "ended"]}),
}


@attrs.frozen
class StatusApi:
    """Shows the status.

    Args:
        replicas: returns those that share the database, this one among them; none without one.
    """

    _state: ServingState
    _activity: Activity
    _replicas: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    _now: Callable[[], datetime] = lambda: datetime.now(UTC)
    schemas: Schemas = attrs.field(default=STATUS_SCHEMAS, init=False)

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        summary = "show what works and what does not"
        return (
            ApiOperation("GET", "/api/v1/status", "getStatus", summary, self._show, reply="Status"),
            ApiOperation(
                "PUT",
                "/api/v1/log-level",
                "setLogLevel",
                "set the lowest level of the log, until the next start or reload",
                self._set_log_level,
                status=204,
                body="LogLevel",
            ),
            ApiOperation(
                "PUT",
                "/api/v1/base-address",
                "chooseAddress",
                "have URLs begin with an address of this machine; null: that of the default route",
                self._choose_address,
                status=204,
                body="ChosenAddress",
            ),
        )

    async def _set_log_level(self, request: ApiRequest) -> ApiResponse:
        match parse_json_object(request.body):
            case {"level": str(level), **others} if level in LEVELS and not others:
                _log.info(
                    "{client} sets the log level to {lowest}", client=request.client, lowest=level
                )  # before, because the new level may leave it out
                await self._state.set_log_level(level)
            case _:
                raise InvalidParameter(f"level must be the only member: {', '.join(LEVELS)}")
        return ApiResponse(204)

    async def _choose_address(self, request: ApiRequest) -> ApiResponse:
        match parse_json_object(request.body):
            case {"address": str() | None as address, **others} if not others:
                # It is carried out for all processes, also if the client leaves.
                await shielded(Deferred.fromCoroutine(self._state.choose_address(address)))
                _log.info("{client} chose the address in URLs", client=request.client)
            case _:
                raise InvalidParameter("address must be the only member: a string or null")
        return ApiResponse(204)

    async def _show(self, _: ApiRequest) -> ApiResponse:
        status = await self._state.describe_status()
        images = json.loads(await self._state.render_images())["images"]
        await self._activity.refresh()
        replicas = self._replicas()
        machines = self._activity.progress.count_machines()
        verdict = judge(status, images, machines, self._now(), replicas)
        return json_response(
            {
                "verdict": {"level": verdict.level.name.lower(), "text": verdict.text},
                **status,
                "base_address": self._state.describe_base_address(),
                "replicas": replicas,
                "totals": _sum(replicas),
            }
        )


def _sum(replicas: Sequence[Mapping[str, Any]]) -> Mapping[str, int] | None:
    """Return the sums of the replicas that are present; None: there are none."""
    present = [each for each in replicas if each["state"] == "present"]
    names = ("machines", "connections", "requests")
    sums = {name: sum(each[name] for each in present) for name in names}
    return {"replicas": len(present), **sums} if present else None
