"""Operations for monitoring: probes, metrics and the states of base images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unavailable
from image_service.server.catalog.lifecycle.status import BASE_IMAGE_SCHEMAS
from image_service.server.web_api.messages import ApiResponse
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.server.admin.state import ServiceState
    from image_service.server.web_api.messages import ApiRequest

PROBES = frozenset({"/health", "/live"})
"""Paths that orchestrators request, which have no token."""
RETRY_SECONDS = 1
_TEXT = "text/plain"


@attrs.frozen
class Monitoring:
    """Responds by the state of the service."""

    _state: ServiceState

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        return (
            ApiOperation(
                "GET",
                "/live",
                "getLive",
                "respond while the process does",
                self._live,
                content_types=(_TEXT,),
            ),
            ApiOperation(
                "GET",
                "/health",
                "getHealth",
                "respond with 503 and the reason while no request can be served",
                self._health,
                content_types=(_TEXT,),
            ),
            ApiOperation(
                "GET", "/metrics", "getMetrics", "show the metrics", self._metrics, content_types=(_TEXT,)
            ),
            ApiOperation(
                "GET", "/images", "getBaseImages", "list base images", self._images, reply="BaseImages"
            ),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return BASE_IMAGE_SCHEMAS

    async def _live(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, b"ok\n", _TEXT)

    async def _health(self, _: ApiRequest) -> ApiResponse:
        if reason := await self._state.unready_reason():
            raise Unavailable(reason, retry_after_seconds=RETRY_SECONDS)
        impairment = await self._state.describe_impairment()
        return ApiResponse(200, f"ok\n{impairment}\n".encode() if impairment else b"ok\n", _TEXT)

    async def _metrics(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, *await self._state.render_metrics())

    async def _images(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, (await self._state.render_images()).encode())
