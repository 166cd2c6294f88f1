"""The operations on composes."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import attrs
from twisted.logger import Logger

from image_service.core.errors import NotFound, RowNotAuthentic, StoreFailed
from image_service.core.provenance.dsse import BUNDLE
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.artifacts.contents import Content
from image_service.jobs.composer import errors, replies
from image_service.jobs.composer.paging import COMPOSE_FILTERS, MAX_SIZE, PAGE, parse_filter, parse_page
from image_service.jobs.composer.requests import parse_request
from image_service.jobs.database.composes import ComposeFilter
from image_service.jobs.model import ComposeOrigin, ComposeState, ComposeSummary
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.objects.s3_links import S3Links
    from image_service.core.provenance.dsse import SigningKeys
    from image_service.jobs.artifacts.compose_statements import ComposeStatements
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.composer.service import ComposeService
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.model import Compose, Job, Json, UploadResult
    from image_service.server.web_api.messages import ApiRequest, ApiResponse


_log = Logger()

COMPOSE_ID = re.compile("[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")
_REST_BYTES = 1024**2
"""For line breaks in base64, URL and kernel arguments."""
_ONE = "/composes/{compose_id}"
_Found = TypeVar("_Found", bound=ComposeSummary)


@attrs.frozen
class ComposeRoutes:
    """The operations on composes; each sees those of the request's tenant only.

    Args:
        in_thread: runs slow calls in a thread, such as those of the rows.
        get_signing_keys: returns the keys that sign the provenance, as they are now; None: nothing does.
        statements: of ISOs; None: nothing is signed.
    """

    _service: ComposeService
    _composes: ComposeRepository
    _jobs: JobRepository
    _contents: Contents
    _in_thread: InThread
    _links: S3Links
    _get_signing_keys: Callable[[], SigningKeys] | None = None
    _statements: ComposeStatements | None = None

    @property
    def max_body_bytes(self) -> int:
        """The most bytes of a request: an Ignition config, in base64, is the largest part."""
        limits = self._service.limits
        return limits.max_request_bytes + limits.max_ignition_bytes * 4 // 3 + _REST_BYTES

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """All of them."""
        return (
            ApiOperation(
                "POST",
                "/compose",
                "postCompose",
                "start a compose",
                self._start,
                status=201,
                reply="ComposeId",
                body="ComposeRequest",
            ),
            ApiOperation(
                "GET",
                "/composes/",
                "getComposeList",
                f"list the newest {MAX_SIZE} composes, sorted by id; with parameters a page, newest first",
                self._list,
                reply="ComposeList",
                query=(*PAGE, *COMPOSE_FILTERS),
            ),
            _get("", "ComposeStatus", "show the status of a compose", self._status),
            ApiOperation(
                "DELETE",
                _ONE,
                "deleteCompose",
                "delete a compose and its image; cancel it if it has not ended",
                self._delete,
                reply="ComposeDeleteStatus",
            ),
            ApiOperation(
                "POST",
                f"{_ONE}/cancel",
                "postComposeCancel",
                "cancel a compose, which then has failed",
                self._cancel,
                reply="ComposeCancelStatus",
            ),
            _get("/metadata", "ComposeMetadata", "show the request", self._metadata),
            _get("/logs", "ComposeLogs", "show the logs of the jobs", self._logs),
            _get("/manifests", "ComposeManifests", "show the steps", self._manifests),
            _get("/sboms", "ComposeSBOMs", "show the additions to the base image", self._sboms),
            _get("/provenance", "ComposeProvenance", "show the inputs of the image", self._provenance),
            ApiOperation(
                "GET",
                f"{_ONE}/download",
                "getComposeDownload",
                "download the image, or a range of it",
                self._download,
                other_statuses=(206, 304),
                content_types=(replies.CONTENT_TYPE,),
            ),
            ApiOperation(
                "GET",
                f"{_ONE}/statement",
                "getComposeStatement",
                "show which bytes of an ISO are its base's, and what the others are for, signed",
                self._statement,
                other_statuses=(206, 304),
                content_types=(BUNDLE,),
            ),
        )

    async def _start(self, request: ApiRequest) -> ApiResponse:
        parse = partial(parse_request, request.body, self._service.limits)
        compose = await self._service.start(request.principal.tenant, await self._in_thread(parse))
        return json_response(replies.describe_object("ComposeId", compose.id, "/compose"), 201)

    async def _list(self, request: ApiRequest) -> ApiResponse:
        list_ = partial(self._list_page, request) if request.query else partial(self._list_newest, request)
        return await self._in_thread(list_)

    def _list_newest(self, request: ApiRequest) -> ApiResponse:
        wanted = ComposeFilter(request.principal.tenant, origin=ComposeOrigin.COMPOSER)
        composes, _ = self._composes.find_page(wanted, limit=MAX_SIZE)
        by_id = sorted(composes, key=lambda compose: compose.id)
        return json_response([self._describe_listed(compose) for compose in by_id])

    def _list_page(self, request: ApiRequest) -> ApiResponse:
        page = parse_page(request.query)
        wanted = parse_filter(request.query, request.principal.tenant)
        composes, total = self._composes.find_page(wanted, offset=page.offset, limit=page.size)
        items = [self._describe_listed(compose) for compose in composes]
        return json_response(replies.describe_page("ComposeList", items, page.number, total))

    def _describe_listed(self, compose: ComposeSummary) -> Json:
        return replies.describe_status(compose, (), partial(self._sign, compose))

    async def _status(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        def reply() -> ApiResponse:
            compose = self._find_summary(request, compose_id)
            jobs = self._jobs.summarize([compose.id])[compose.id]
            return json_response(replies.describe_status(compose, jobs, partial(self._sign, compose)))

        return await self._in_thread(reply)

    async def _metadata(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        return await self._reply(request, compose_id, lambda compose, _: replies.describe_metadata(compose))

    async def _logs(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        return await self._reply(request, compose_id, replies.describe_logs)

    async def _manifests(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        return await self._reply(request, compose_id, lambda compose, _: replies.describe_manifests(compose))

    async def _sboms(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        return await self._reply(
            request, compose_id, lambda compose, _: replies.describe_sboms(_successful(compose))
        )

    async def _provenance(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        signer = self._get_signing_keys().signer if self._get_signing_keys else None
        return await self._reply(
            request,
            compose_id,
            lambda compose, jobs: replies.describe_provenance(_successful(compose), jobs, signer),
        )

    async def _download(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        compose = _successful(await self._in_thread(partial(self._find, request, compose_id)))
        try:
            content = await self._contents.open_image(compose)
            return await self._contents.respond(content, request)
        except NotFound as error:
            raise ApiError(error.detail, number=errors.ARTIFACT_NOT_FOUND) from None

    async def _statement(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        compose = _successful(await self._in_thread(partial(self._find, request, compose_id)))
        if self._statements is None:
            detail = "there are no statements: SIGNING_KEY_FILE is not set"
            raise ApiError(detail, number=errors.ARTIFACT_NOT_FOUND)
        try:
            statement = await self._statements.get(compose)
            return await self._contents.respond(Content(statement), request)
        except NotFound as error:
            raise ApiError(error.detail, number=errors.ARTIFACT_NOT_FOUND) from None

    async def _delete(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        compose = await self._in_thread(partial(self._find_summary, request, compose_id))
        await self._service.delete(compose)
        path = f"/composes/{compose.id}"
        return json_response(replies.describe_object("ComposeDeleteStatus", compose.id, path))

    async def _cancel(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        compose = await self._in_thread(partial(self._find_summary, request, compose_id))
        await self._service.cancel(compose)
        path = f"/composes/{compose.id}/cancel"
        return json_response(replies.describe_object("ComposeCancelStatus", compose.id, path))

    async def _reply(
        self, request: ApiRequest, compose_id: str, describe: Callable[[Compose, list[Job]], Json]
    ) -> ApiResponse:
        """Return the description of a compose and its jobs; `describe` runs in a thread."""

        def reply() -> ApiResponse:
            compose = self._find(request, compose_id)
            return json_response(describe(compose, self._jobs.find_of_compose(compose.id)))

        return await self._in_thread(reply)

    def _sign(self, compose: ComposeSummary, upload: UploadResult) -> str:
        """Return a URL of a finished upload; its location, if it is not authentic or cannot be signed."""
        target = upload.target
        try:
            self._composes.check_upload(compose, upload)
            return self._links.url_of(upload.location, target.region, is_public=target.public)
        except (RowNotAuthentic, StoreFailed) as error:
            _log.warn("an upload has no URL: {reason}", reason=error.detail)
            return upload.location

    def _find(self, request: ApiRequest, compose_id: str) -> Compose:
        """Return a compose of the request's tenant; raises ApiError."""
        return _known(self._composes.find(_checked(compose_id), request.principal.tenant))

    def _find_summary(self, request: ApiRequest, compose_id: str) -> ComposeSummary:
        """Return a compose of the request's tenant, also one that is not authentic; raises ApiError."""
        return _known(self._composes.find_summary(_checked(compose_id), request.principal.tenant))


def _checked(compose_id: str) -> str:
    if not COMPOSE_ID.fullmatch(compose_id.lower()):
        raise ApiError(number=errors.MALFORMED_ID)
    return compose_id.lower()


def _known(compose: _Found | None) -> _Found:
    """Return a compose of composer's API; raises ApiError."""
    if compose is None or compose.origin is not ComposeOrigin.COMPOSER:
        raise ApiError("job does not exist", number=errors.UNKNOWN_COMPOSE)  # composer-cli looks for it
    return compose


def _get(path: str, kind: str, summary: str, handler: Callable[..., Awaitable[ApiResponse]]) -> ApiOperation:
    return ApiOperation("GET", _ONE + path, f"get{kind}", summary, handler, reply=kind)


def _successful(compose: Compose) -> Compose:
    """Return a compose that has an image; raises ApiError."""
    if compose.state is not ComposeState.SUCCESS:
        raise ApiError(f"the compose is {compose.state}, not success", number=errors.WRONG_STATE)
    return compose
