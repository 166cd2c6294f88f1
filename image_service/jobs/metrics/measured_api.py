"""An API whose requests are counted and timed."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from typing import TYPE_CHECKING

from twisted.internet.defer import CancelledError

from image_service.common.openapi.document import path_pattern
from image_service.core.errors import ImageServiceError
from image_service.jobs.metrics.jobs_metrics import MeasuredRequest
from image_service.jobs.principal import DEFAULT_TENANT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from image_service.jobs.api.front import ServedApi
    from image_service.jobs.metrics.jobs_metrics import JobsMetrics
    from image_service.server.web_api.messages import ApiRequest, ApiResponse
    from image_service.server.web_api.operations import ApiOperation

OTHER = "other"
"""The path of requests without a route, and methods that no route has: clients make up any number."""


class MeasuredApi:
    """Passes requests to an API, and records them.

    Args:
        operations: of the API, whose paths are those of the metrics.
        metrics: record the requests, except those whose clients have disconnected.
    """

    def __init__(
        self,
        name: str,
        api: ServedApi,
        operations: Sequence[ApiOperation],
        metrics: JobsMetrics,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self.base_paths = api.base_paths
        self.max_body_bytes = api.max_body_bytes
        self.render_error = api.render_error
        self.is_streamed = api.is_streamed
        self.authorization_of = api.authorization_of
        self._name = name
        self._api = api
        paths = dict.fromkeys(operation.path for operation in operations)
        self._paths = [(re.compile(path_pattern(path)), path) for path in paths]
        self._methods = {operation.method for operation in operations}
        self._metrics = metrics
        self._seconds = seconds

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the API's response, also for an error."""
        begun = self._seconds()
        try:
            response = await self._api.respond(request)
        except ImageServiceError as error:
            response = self.render_error(error)
        except CancelledError:
            raise
        except Exception:
            self._record(request, int(HTTPStatus.INTERNAL_SERVER_ERROR), begun)
            raise
        self._record(request, response.status, begun)
        return response

    def _record(self, request: ApiRequest, status: int, begun: float) -> None:
        base_path = next(path for path in self.base_paths if request.path.startswith(f"{path}/"))
        below = request.path.removeprefix(base_path)
        path = next((path for pattern, path in self._paths if pattern.fullmatch(below)), OTHER)
        tenant = request.principal.tenant if request.principal else DEFAULT_TENANT
        method = request.method if request.method in self._methods else OTHER
        measured = MeasuredRequest(method, path, status, tenant, self._seconds() - begun)
        self._metrics.record_request(self._name, measured)
