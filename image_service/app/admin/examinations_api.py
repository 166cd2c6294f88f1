"""The operation that has the doctor check an image of this service."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from image_service.common.concurrency.single_flight import shielded
from image_service.common.openapi.document import TEXT, list_schema, object_schema
from image_service.core.errors import InvalidArguments, InvalidParameter, Unavailable
from image_service.server.web_api.messages import json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation
from image_service.tools.doctor.examination import Examination
from image_service.tools.doctor.outcomes import CheckStatus, describe_checks, describe_verdict
from image_service.tools.doctor.target import ImageUrl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from twisted.internet.interfaces import IReactorFromThreads

    from image_service.common.openapi.document import Schemas
    from image_service.server.admin.state import ServingState
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

MOST_SECONDS = 60.0
"""An examination that takes longer is ended before its next check."""


@attrs.define
class ExaminationsApi:
    """Checks one image at a time, in a thread. See `AdminApi`."""

    _state: ServingState
    _reactor: IReactorFromThreads
    _is_running: bool = attrs.field(default=False, init=False)

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
        examination = Examination(url=_parse_url(request.body, self._state.find_base_urls()))
        if self._is_running:
            raise Unavailable("another image is being checked", retry_after_seconds=10)
        self._is_running = True  # until the thread has ended, also if the client leaves before
        return await shielded(self._start(examination))

    def _start(self, examination: Examination) -> Deferred[ApiResponse]:
        checked: Deferred[ApiResponse] = Deferred()

        def end(result: ApiResponse | Failure) -> None:
            self._is_running = False
            checked.callback(result)

        def work() -> None:
            try:
                result: ApiResponse | Failure = _run(examination)
            except Exception:  # noqa: BLE001 - the request gets it
                result = Failure()
            self._reactor.callFromThread(end, result)

        # Not in a pool: the end of the process would wait for the thread, which waits for this process.
        threading.Thread(target=work, name="examination", daemon=True).start()
        return checked


def _run(examination: Examination) -> ApiResponse:
    deadline = time.monotonic() + MOST_SECONDS
    outcomes = []
    for outcome in examination.run():
        outcomes.append(outcome)
        if time.monotonic() > deadline:
            raise Unavailable(f"the checks took more than {MOST_SECONDS:.0f} s; run image-service doctor")
    return json_response({"verdict": describe_verdict(outcomes), "checks": describe_checks(outcomes)})


def _parse_url(body: bytes, base_urls: Sequence[str]) -> ImageUrl:
    match parse_json_object(body):
        case {"url": str(url), **others} if not others and _is_below(base_urls, url):
            try:
                return ImageUrl.parse(url)
            except InvalidArguments as error:
                raise InvalidParameter(error.detail) from None
    raise InvalidParameter(f"url must be the only member, a URL of this service: {base_urls[0]}/…")


def _is_below(base_urls: Sequence[str], url: str) -> bool:
    """Return True if a URL is this service's: a proxy may serve other paths of the host."""
    return url.startswith(tuple(f"{each}/" for each in base_urls)) and ".." not in unquote(url).split("/")
