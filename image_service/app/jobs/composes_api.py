"""The composes of all tenants on the administrative listener, for the page of the jobs role."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs

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
from image_service.core.errors import Conflict, NotFound
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer.replies import describe_logs
from image_service.jobs.database.composes import ComposeFilter
from image_service.jobs.model import ComposeOrigin, ComposeState, ComposeSummary
from image_service.server.admin.verdict import Level
from image_service.server.http.dates import format_rfc3339
from image_service.server.web_api.messages import ApiResponse, json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime
    from typing import Any

    from image_service.app.jobs.rows import JobsRows
    from image_service.common.openapi.document import Json, Schemas
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.composer.service import ComposeService
    from image_service.jobs.model import Compose, JobSummary
    from image_service.server.admin.state import ServiceState
    from image_service.server.web_api.messages import ApiRequest

_Found = TypeVar("_Found", bound=ComposeSummary)
MAX_COMPOSES = 100
_PATH = "/api/v1/composes"
_ONE = f"{_PATH}/{{compose_id}}"
_IMAGE_TYPE = "application/octet-stream"
_SCHEMAS: Schemas = {
    "Composes": object_schema(verdict=reference("Verdict"), total=COUNT, composes=list_schema("Compose")),
    "Verdict": object_schema(level={"enum": [level.name.lower() for level in Level]}, text=TEXT),
    "Compose": object_schema(
        id=TEXT,
        tenant=TEXT,
        what=TEXT,
        state={"enum": [state.value for state in ComposeState]},
        reason=TEXT_OR_NULL,
        created_at=TIME,
        finished_at=TIME_OR_NULL,
        can_be_cancelled=BOOLEAN,
        has_image=BOOLEAN,
        uploads={"type": "array", "items": TEXT},
        jobs=list_schema("Job"),
    ),
    "Job": object_schema(
        id=TEXT,
        step=TEXT,
        attempt=COUNT,
        state=TEXT,
        reason=TEXT_OR_NULL,
        phase=TEXT,
        done=COUNT,
        total=COUNT,
        worker=TEXT,
        started_at=TIME_OR_NULL,
        finished_at=TIME_OR_NULL,
    ),
    "ComposeLogs": {"type": "object"},
}


@attrs.frozen
class ComposesApi:
    """Operations on composes, for the operator. See `AdminApi`."""

    _rows: JobsRows
    _service: ComposeService
    _contents: Contents
    _state: ServiceState
    schemas: Schemas = attrs.field(default=_SCHEMAS, init=False)

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """See `AdminApi`."""
        return (
            ApiOperation(
                "GET",
                _PATH,
                "getComposes",
                f"list the newest {MAX_COMPOSES} composes of all tenants, with their jobs",
                self._list,
                reply="Composes",
            ),
            ApiOperation(
                "GET",
                f"{_ONE}/logs",
                "getComposeLogs",
                "show the log of the latest attempt of each job",
                self._show_logs,
                reply="ComposeLogs",
            ),
            ApiOperation(
                "GET",
                f"{_ONE}/image",
                "getComposeImage",
                "download the image of a compose, or a range of it",
                self._download,
                other_statuses=(206, 304),
                content_types=(_IMAGE_TYPE,),
            ),
            ApiOperation(
                "POST",
                f"{_ONE}/cancellation",
                "cancelCompose",
                "cancel a compose that has not ended",
                self._cancel,
                status=204,
            ),
        )

    async def _list(self, _: ApiRequest) -> ApiResponse:
        if reason := await self._state.unready_reason():
            verdict = _verdict(Level.FAILING, reason)
            return json_response({"verdict": verdict, "total": 0, "composes": []})
        verdict = await self._judge()
        return json_response({"verdict": verdict, **await self._rows.in_thread(self._find_newest)})

    def _find_newest(self) -> Json:
        composes, total = self._rows.composes.find_page(ComposeFilter(), limit=MAX_COMPOSES)
        jobs = self._rows.jobs.summarize([compose.id for compose in composes])
        return {"total": total, "composes": [describe_compose(each, jobs[each.id]) for each in composes]}

    async def _judge(self) -> Mapping[str, str]:
        counts = await self._rows.in_thread(self._rows.composes.count_by_state)
        open_states = [state for state in ComposeState if not state.is_final]
        text = ", ".join(f"{counts.get(state, 0)} {state.value}" for state in open_states)
        if impairment := await self._state.describe_impairment():
            return _verdict(Level.IMPAIRED, f"{impairment}; composes: {text}")
        return _verdict(Level.GOOD, f"composes: {text}")

    async def _show_logs(self, _: ApiRequest, compose_id: str) -> ApiResponse:
        def describe() -> Json:
            compose = self._find(compose_id, *ComposeOrigin)
            return describe_logs(compose, self._rows.jobs.find_of_compose(compose.id))

        return json_response(await self._rows.in_thread(describe))

    async def _download(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        compose = await self._rows.in_thread(partial(self._find, compose_id, ComposeOrigin.COMPOSER))
        if not has_image(compose):
            raise Conflict(f"the compose is {compose.state.value}, and has no image")
        return await self._contents.respond(await self._contents.open_image(compose), request)

    async def _cancel(self, _: ApiRequest, compose_id: str) -> ApiResponse:
        find = partial(self._rows.composes.find_summary, compose_id)
        compose = _known(await self._rows.in_thread(find), ComposeOrigin.COMPOSER)
        try:
            await self._service.cancel(compose)
        except ApiError:
            raise Conflict("the compose has ended") from None
        return ApiResponse(204)

    def _find(self, compose_id: str, *origins: ComposeOrigin) -> Compose:
        return _known(self._rows.composes.find(compose_id), *origins)


def _known(compose: _Found | None, *origins: ComposeOrigin) -> _Found:
    if compose is None or compose.origin not in origins:
        raise NotFound("there is no such compose")
    return compose


def has_image(compose: ComposeSummary) -> bool:
    """Return True if the image of a compose can be downloaded."""
    return compose.state is ComposeState.SUCCESS and compose.origin is ComposeOrigin.COMPOSER


def describe_compose(compose: ComposeSummary, jobs: Iterable[JobSummary]) -> Json:
    """Return ``Compose`` of the API."""
    what = compose.origin.value
    if compose.image_type is not None:
        what = f"{compose.distribution} {compose.architecture} {compose.image_type.value}"
    return {
        "id": compose.id,
        "tenant": compose.tenant or "default",
        "what": what,
        "state": compose.state.value,
        "reason": compose.error.reason if compose.error else None,
        "created_at": format_rfc3339(compose.created_at),
        "finished_at": _time(compose.finished_at),
        "can_be_cancelled": not compose.state.is_final and compose.origin is ComposeOrigin.COMPOSER,
        "has_image": has_image(compose),
        "uploads": [upload.location for upload in compose.uploads if upload.location],
        "jobs": [_describe_job(job) for job in jobs],
    }


def _describe_job(job: JobSummary) -> Json:
    progress = job.progress
    return {
        "id": job.id,
        "step": job.step,
        "attempt": job.attempt,
        "state": job.state.value,
        "reason": job.error.reason if job.error else None,
        "phase": progress.phase if progress else "",
        "done": progress.done if progress else 0,
        "total": progress.total if progress else 0,
        "worker": job.worker,
        "started_at": _time(job.started_at),
        "finished_at": _time(job.finished_at),
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else format_rfc3339(moment)


def _verdict(level: Level, text: str) -> Mapping[str, Any]:
    return {"level": level.name.lower(), "text": text}
