"""The operation that has the doctor check an image of this service."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import DeferredLock
from twisted.internet.threads import deferToThreadPool

from image_service.common.openapi.document import TEXT, list_schema, object_schema
from image_service.core.errors import InvalidArguments, InvalidParameter
from image_service.server.web_api.messages import json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation
from image_service.tools.doctor.examination import Examination
from image_service.tools.doctor.outcomes import CheckStatus, describe_checks, describe_verdict
from image_service.tools.doctor.target import ImageUrl

if TYPE_CHECKING:
    from twisted.internet.base import ReactorBase

    from image_service.common.openapi.document import Schemas
    from image_service.server.admin.state import ServingState
    from image_service.server.web_api.messages import ApiRequest, ApiResponse


@attrs.frozen
class ExaminationsApi:
    """Checks one image at a time, in a thread. See `AdminApi`."""

    _state: ServingState
    _reactor: ReactorBase
    _lock: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        return (
            ApiOperation(
                "POST",
                "/api/v1/examinations",
                "examineImage",
                "check whether a machine could boot from a URL of this service, as image-service doctor does",
                self._examine,
                body="ExaminedUrl",
                reply="Examination",
            ),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return {
            "ExaminedUrl": object_schema(url=TEXT),
            "Examination": object_schema(verdict=TEXT, checks=list_schema("ExaminationCheck")),
            "ExaminationCheck": object_schema(
                name=TEXT, status={"enum": list(map(str, CheckStatus))}, detail=TEXT
            ),
        }

    async def _examine(self, request: ApiRequest) -> ApiResponse:
        base_url = (await self._state.describe_status())["base_url"]
        examination = Examination(url=_parse_url(request.body, base_url))

        def work() -> ApiResponse:
            outcomes = list(examination.run())
            return json_response({"verdict": describe_verdict(outcomes), "checks": describe_checks(outcomes)})

        pool = self._reactor.getThreadPool()
        response: ApiResponse = await self._lock.run(lambda: deferToThreadPool(self._reactor, pool, work))
        return response


def _parse_url(body: bytes, base_url: str) -> ImageUrl:
    match parse_json_object(body):
        case {"url": str(url), **others} if not others and url.startswith(f"{base_url}/"):
            try:
                return ImageUrl.parse(url)
            except InvalidArguments as error:
                raise InvalidParameter(error.detail) from None
    raise InvalidParameter(f"url must be the only member, a URL of this service: {base_url}/…")
