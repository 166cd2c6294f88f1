"""Boot progress (as `/api/v1/mounts`), base images, failures, the events of all three, and the last hour."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import (
    BOOLEAN,
    COUNT,
    TEXT,
    TEXT_OR_NULL,
    TIME,
    TIME_OR_NULL,
    QueryParameter,
    list_schema,
    object_schema,
)
from image_service.core.errors import InvalidRequest, Unavailable
from image_service.server.admin.advice import advise
from image_service.server.admin.events import CONTENT_TYPE, EventStreams
from image_service.server.boot_progress.board import INTERVALS
from image_service.server.boot_progress.stages import ReadState, Stage
from image_service.server.catalog.lifecycle.status import BASE_IMAGE_SCHEMAS
from image_service.server.http.dates import format_epoch
from image_service.server.web_api.messages import ApiResponse
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.common.openapi.document import Json, Schemas
    from image_service.server.admin.activity import Activity
    from image_service.server.admin.events import Seen
    from image_service.server.admin.state import ServiceState
    from image_service.server.transport.exchanges.failures import Failure
    from image_service.server.web_api.messages import ApiRequest

MAX_EVENTS = 256
"""Of mounts, sent at a time."""
_NUMBER: Json = {"type": "integer", "minimum": 0}
_IMAGE_NAME = ("version", "openshift_version", "cpu_architecture", "type")
_SCHEMAS: Schemas = {
    **BASE_IMAGE_SCHEMAS,
    "Mount": object_schema(
        infra_env=TEXT_OR_NULL,
        infra_env_name=TEXT_OR_NULL,
        previous_infra_env=TEXT_OR_NULL,
        version=TEXT,
        cpu_architecture=TEXT,
        kind=TEXT,
        address=TEXT,
        client=TEXT_OR_NULL,
        user_agent=TEXT,
        since=TIME,
        last_read=TIME,
        bytes_read=COUNT,
        size=COUNT,
        rate=COUNT,
        rates={"type": "array", "items": COUNT, "minItems": INTERVALS, "maxItems": INTERVALS},
        stage={"enum": [*(stage.value for stage in Stage), None]},
        stage_since=TIME_OR_NULL,
        last_stage={"enum": [stage.value for stage in Stage]},
        state={"enum": [state.value for state in ReadState]},
        rootfs_percent={"type": ["number", "null"], "minimum": 0, "maximum": 100},
        stalled=BOOLEAN,
    ),
    "Mounts": object_schema(mounts=list_schema("Mount")),
    "Failure": object_schema(
        path=TEXT_OR_NULL,
        status={"type": ["integer", "null"]},
        reason=TEXT,
        cause=TEXT,
        client=TEXT,
        user_agent=TEXT,
        request_id=TEXT,
        time=TIME,
    ),
    "Cause": object_schema(cause=TEXT, count=COUNT, what_to_do=TEXT),
    "Activity": object_schema(minutes=list_schema("Minute"), link_uses=list_schema("LinkUse")),
    "Minute": object_schema(requests=COUNT, bytes_sent=COUNT, machines=COUNT),
    "LinkUse": object_schema(id=TEXT, used_at=TIME),
    "Failures": object_schema(failures=list_schema("Failure"), causes=list_schema("Cause")),
}


class ProgressApi:
    """Responds by the activity of clients, and by the state of the service."""

    def __init__(self, activity: Activity, state: ServiceState, clock: IReactorTime) -> None:
        self._activity = activity
        self._state = state
        self._streams = EventStreams(self._changes, clock)

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        return (
            ApiOperation(
                "GET",
                "/api/v1/mounts",
                "getMounts",
                "list mounts, the latest first",
                self._list_mounts,
                reply="Mounts",
                query=(
                    QueryParameter("limit", "how many; all", _NUMBER),
                    QueryParameter("offset", "how many of the latest to leave out; none", _NUMBER),
                ),
            ),
            ApiOperation(
                "GET", "/api/v1/images", "getImages", "list base images", self._images, reply="BaseImages"
            ),
            ApiOperation(
                "GET",
                "/api/v1/failures",
                "getFailures",
                "list the requests that failed last",
                self._list_failures,
                reply="Failures",
            ),
            ApiOperation(
                "GET",
                "/api/v1/activity",
                "getActivity",
                "show each minute of the last hour, and the latest uses of short links",
                self._show_activity,
                reply="Activity",
            ),
            ApiOperation(
                "GET",
                "/api/v1/events",
                "getEvents",
                "send mounts, base images and failures as they change",
                self._stream_events,
                content_types=(CONTENT_TYPE,),
            ),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return _SCHEMAS

    async def _list_mounts(self, request: ApiRequest) -> ApiResponse:
        offset, limit = _parse_number(request, "offset"), _parse_number(request, "limit")
        await self._activity.refresh()
        return _compact({"mounts": self._activity.progress.describe_all(offset or 0, limit)})

    async def _images(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, (await self._state.render_images()).encode())

    async def _list_failures(self, _: ApiRequest) -> ApiResponse:
        await self._activity.refresh()
        failures = [_describe_failure(failure) for failure in reversed(self._activity.failures.after())]
        causes = [
            {"cause": cause, "count": count, "what_to_do": advise(cause)}
            for cause, count in self._activity.failures.counts.most_common()
        ]
        return _compact({"failures": failures, "causes": causes})

    async def _show_activity(self, _: ApiRequest) -> ApiResponse:
        activity = self._activity
        await activity.refresh()
        now, epoch = activity.seconds(), time.time() - activity.seconds()
        return _compact(
            {
                "minutes": [attrs.asdict(minute) for minute in activity.last_hour.minutes(now)],
                "link_uses": [
                    {"id": link_id, "used_at": format_epoch(epoch + used_at)}
                    for link_id, used_at in activity.link_uses.items()
                ],
            }
        )

    async def _stream_events(self, _: ApiRequest) -> ApiResponse:
        await self._activity.refresh()
        return self._streams.open()

    async def _changes(self, seen: Seen) -> list[Json]:
        """Return the changes since the last events of a stream (see `events.Changes`)."""
        events: list[Json] = []
        with suppress(Unavailable):
            for image in json.loads(await self._state.render_images())["images"]:
                name = " ".join(image[field] for field in _IMAGE_NAME)
                if seen.images.get(name) != image:
                    seen.images[name] = image
                    events.append({"type": "image", "image": image})
        progress, failures = self._activity.progress, self._activity.failures
        for revision, mount in islice(progress.changes(seen.mounts), MAX_EVENTS):
            seen.mounts = revision
            events.append({"type": "mount", "mount": mount})
        failed = failures.after(seen.failures)
        events += [{"type": "failure", "failure": _describe_failure(failure)} for failure in failed]
        seen.failures = failures.revision
        return events


def _parse_number(request: ApiRequest, name: str) -> int | None:
    """Return the number of a parameter; None: the query does not have it."""
    text = request.query.get(name)
    if text is not None and not re.fullmatch(r"[0-9]{1,9}", text):
        raise InvalidRequest(f"{name} must be a whole number of at most nine digits")
    return None if text is None else int(text)


def _compact(document: Json) -> ApiResponse:
    """Return a response with a large document; indenting one takes seven times as long."""
    return ApiResponse(200, json.dumps(document).encode() + b"\n")


def _describe_failure(failure: Failure) -> Json:
    return {**attrs.asdict(failure), "time": format_epoch(failure.time)}
