"""The worker API, version 1: jobs out, heartbeats, files and results in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

from image_service.common.openapi.document import ApiDescription, openapi_document
from image_service.core.errors import Forbidden, InvalidRequest
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.api.schemas import SchemaCheck
from image_service.jobs.database.tables import UNKNOWN_ISOLATION
from image_service.jobs.dispatch.dispatcher import WorkerPoll
from image_service.jobs.dispatch.results import MAX_RESULT_BYTES, WorkerResult, parse_progress
from image_service.jobs.model import JobType
from image_service.jobs.worker_api.errors import (
    BASE_PATH,
    MALFORMED_ERROR_ID,
    MALFORMED_WORKER_ID,
    TYPE_REFUSED,
    UNKNOWN_ERROR_ID,
    UNKNOWN_WORKER,
    WORKER_ERRORS,
)
from image_service.jobs.worker_api.schemas import WORKER_SCHEMAS
from image_service.server.web_api.messages import ApiResponse, json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation, routes
from image_service.server.web_api.router import ApiRouter

if TYPE_CHECKING:
    from image_service.core.errors import ImageServiceError
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.dispatch.attempts import WorkerAttempts
    from image_service.jobs.dispatch.dispatcher import JobDispatcher
    from image_service.jobs.dispatch.handout import HandedJob
    from image_service.jobs.dispatch.rows import DispatchRows
    from image_service.jobs.principal import Principal
    from image_service.server.web_api.messages import ApiRequest

_BASE_PATHS = (BASE_PATH, "/api/image-builder/worker/v1", "/api/worker/v1")
_DESCRIPTION = ApiDescription(
    "image-service - Worker",
    "1",
    "osbuild-composer's worker API: workers request jobs here, and report on them.",
    _BASE_PATHS,
)
_ARTIFACT = re.compile(r".*/jobs/[^/]+/artifacts/[^/]+")
_NUMBER = re.compile("[0-9]{1,9}")
_MAX_BODY_BYTES = 4 * MAX_RESULT_BYTES  # a result as it may be written; it is read in the reactor's thread
_UNREGISTERED = "unregistered"


class WorkerApi:
    """The worker API."""

    base_paths: tuple[str, ...] = _BASE_PATHS
    max_body_bytes: int = _MAX_BODY_BYTES

    def __init__(
        self, rows: DispatchRows, dispatcher: JobDispatcher, attempts: WorkerAttempts, contents: Contents
    ) -> None:
        self._rows = rows
        self._dispatcher = dispatcher
        self._attempts = attempts
        self._contents = contents
        self.operations = operations = self._operations()
        self._document = openapi_document(_DESCRIPTION, operations, WORKER_SCHEMAS)
        self._checks = {
            operation.body: SchemaCheck(WORKER_SCHEMAS, operation.body)
            for operation in operations
            if operation.body is not None
        }
        self._router = ApiRouter(
            {
                path: handlers
                for base_path in _BASE_PATHS
                for path, handlers in (
                    *routes(base_path, operations).items(),
                    (re.escape(f"{base_path}/openapi.json"), {"GET": self._openapi}),
                )
            }
        )

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to a request; only document and errors are for requests without `principal`."""
        return await self._router.respond(request)

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error."""
        return WORKER_ERRORS.render(error)

    def is_streamed(self, method: str, path: str) -> bool:
        """Return True for the upload of an artifact."""
        return method == "PUT" and _ARTIFACT.fullmatch(path) is not None

    def authorization_of(self, request: ApiRequest) -> str | None:
        """Return the field of a request."""
        return request.headers.get("authorization")

    def _operations(self) -> list[ApiOperation]:
        return [
            ApiOperation(
                "POST",
                "/jobs",
                "RequestJob",
                "Request a job; waits for one, and replies with 204 if there is none",
                self._request_job,
                status=201,
                other_statuses=(204,),
                reply="RequestJobResponse",
                body="RequestJobRequest",
            ),
            ApiOperation(
                "GET",
                "/jobs/{token}",
                "GetJob",
                "Record a heartbeat; the reply shows a cancellation of the job",
                self._beat,
                reply="GetJobResponse",
            ),
            ApiOperation(
                "PATCH",
                "/jobs/{token}",
                "UpdateJob",
                "Finish a job with its result, or store its progress",
                self._update_job,
                reply="UpdateJobResponse",
                body="UpdateJobRequest",
            ),
            ApiOperation(
                "PUT",
                "/jobs/{token}/artifacts/{name}",
                "UploadJobArtifact",
                "Send a file, which counts once a result names it",
                self._add_artifact,
                body_type="application/octet-stream",
            ),
            ApiOperation(
                "POST",
                "/jobs/{token}/artifacts/{name}",
                "TakeJobArtifact",
                "Name a file of the worker that the server has started, instead of sending it",
                self._take_artifact,
                reply="TakeJobArtifactResponse",
                body="TakeJobArtifactRequest",
            ),
            ApiOperation(
                "GET",
                "/jobs/{token}/inputs/{name}",
                "GetJobInput",
                "Read an input of a job, also by ranges",
                self._read_input,
                other_statuses=(206, 304),
                content_types=("application/octet-stream",),
            ),
            ApiOperation(
                "POST",
                "/workers",
                "postWorkers",
                "Register a worker",
                self._add_worker,
                status=201,
                reply="PostWorkersResponse",
                body="PostWorkersRequest",
            ),
            ApiOperation(
                "POST",
                "/workers/{worker_id}/status",
                "postWorkerStatus",
                "Record that a worker is alive",
                self._see_worker,
            ),
            ApiOperation(
                "GET", "/status", "GetStatus", "Get the status", self._status, reply="StatusResponse"
            ),
            ApiOperation("GET", "/errors/{id}", "getError", "Get an error", self._error, reply="Error"),
            ApiOperation(
                "GET",
                "/openapi",
                "getOpenapi",
                "Get this document",
                self._openapi,
                content_types=("application/json",),
            ),
        ]

    async def _request_job(self, request: ApiRequest) -> ApiResponse:
        body = self._parse(request, "RequestJobRequest")
        if not body["types"]:
            raise ApiError(f"types must have at least one of {', '.join(JobType)}", number=TYPE_REFUSED)
        principal: Principal = request.principal
        is_any = "tenant" in body
        if is_any and not principal.is_operator:
            raise Forbidden("jobs of all tenants are for workers of the operator")
        wanted = WorkerPoll(
            None if is_any else principal.tenant,
            {JobType(name) for name in body["types"] if name in set(JobType)},
            body["arch"],
            str(_parse_worker_id(body["worker_id"])) if "worker_id" in body else _UNREGISTERED,
        )
        handed = await self._dispatcher.poll(wanted)
        if handed is None:
            return ApiResponse(204)
        document = _handed_document(handed, _base_path(request), takes_files=principal.is_built_in)
        return json_response(document, 201)

    async def _beat(self, request: ApiRequest, token: str) -> ApiResponse:
        is_cancelled = await self._attempts.beat(request.principal, token)
        return json_response({**_reference(token, "JobStatus", f"/jobs/{token}"), "canceled": is_cancelled})

    async def _update_job(self, request: ApiRequest, token: str) -> ApiResponse:
        body = self._parse(request, "UpdateJobRequest")
        if "result" in body:
            await self._attempts.finish(request.principal, token, WorkerResult.parse(body["result"]))
        else:
            await self._attempts.beat(request.principal, token, parse_progress(body["partial"]))
        return json_response(_reference(token, "UpdateJobResponse", f"/jobs/{token}"))

    async def _add_artifact(self, request: ApiRequest, token: str, name: str) -> ApiResponse:
        if request.content is None:
            raise InvalidRequest("an artifact has content")
        length = request.headers.get("content-length", "")
        size = int(length) if length.isdecimal() else None
        await self._attempts.add_artifact(request.principal, token, name, request.content, size)
        return ApiResponse()

    async def _take_artifact(self, request: ApiRequest, token: str, name: str) -> ApiResponse:
        body = self._parse(request, "TakeJobArtifactRequest")
        path, sha256 = Path(body["path"]), body["sha256"]
        taken = await self._attempts.take_artifact(request.principal, token, name, path, sha256)
        return json_response({"taken": taken})

    async def _read_input(self, request: ApiRequest, token: str, name: str) -> ApiResponse:
        content = await self._attempts.open_input(request.principal, token, name)
        return await self._contents.respond(content, request)

    async def _add_worker(self, request: ApiRequest) -> ApiResponse:
        body = self._parse(request, "PostWorkersRequest")
        worker_id, tenant = str(uuid4()), request.principal.tenant
        isolation = body.get("isolation", UNKNOWN_ISOLATION)
        await self._rows.call(self._rows.workers.add, worker_id, tenant, body["arch"], isolation)
        document = {**_reference(worker_id, "WorkerID", "/workers"), "worker_id": worker_id}
        return json_response(document, 201)

    async def _see_worker(self, request: ApiRequest, worker_id: str) -> ApiResponse:
        known = str(_parse_worker_id(worker_id))
        if not await self._rows.call(self._rows.workers.see, known, request.principal.tenant):
            raise ApiError("register again by POST /workers", number=UNKNOWN_WORKER)
        return ApiResponse()

    async def _status(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response({**_reference("status", "Status", "/status"), "status": "OK"})

    async def _error(self, request: ApiRequest, id: str) -> ApiResponse:  # noqa: A002 - of the path in the file
        del request  # same
        if not _NUMBER.fullmatch(id):
            raise ApiError("the id of an error is a number", number=MALFORMED_ERROR_ID)
        if int(id) not in WORKER_ERRORS:
            raise ApiError("there is no error of this id", number=UNKNOWN_ERROR_ID)
        return json_response(WORKER_ERRORS.document(int(id)))

    async def _openapi(self, request: ApiRequest) -> ApiResponse:
        del request  # same
        return json_response(self._document)

    def _parse(self, request: ApiRequest, schema: str) -> dict[str, Any]:
        """Return the JSON of a request; raises InvalidRequest."""
        document = parse_json_object(request.body)
        violation = self._checks[schema].violation(document)
        if violation is not None:
            raise InvalidRequest(violation)
        return document


def _handed_document(handed: HandedJob, base_path: str, *, takes_files: bool) -> dict[str, object]:
    location = f"{base_path}/jobs/{handed.token}"
    return {
        **_reference(handed.job.id, "RequestJob", "/jobs"),
        "type": handed.job.type,
        "location": location,
        "artifact_location": f"{location}/artifacts/",
        "compose_id": handed.job.compose_id,
        "args": handed.arguments,
        "dynamic_args": handed.dynamic_arguments,
        "takes_files": takes_files,
    }


def _reference(object_id: str, kind: str, path: str) -> dict[str, object]:
    return {"id": object_id, "kind": kind, "href": BASE_PATH + path}


def _base_path(request: ApiRequest) -> str:
    """Return the base path of a request, which may be behind a proxy that knows only this one."""
    return next((base for base in _BASE_PATHS if request.path.startswith(f"{base}/")), BASE_PATH)


def _parse_worker_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ApiError("the id of a worker is a UUID", number=MALFORMED_WORKER_ID) from None
