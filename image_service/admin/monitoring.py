"""Routes for monitoring: probes, metrics and the states of base images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.errors import Unavailable
from image_service.management.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from image_service.admin.state import ServiceState
    from image_service.management.messages import ApiRequest
    from image_service.management.router import Handlers

PROBES = frozenset({"/health", "/live"})
"""Paths that orchestrators request, which have no token."""
RETRY_SECONDS = 1


@attrs.frozen
class Monitoring:
    """Responds by the state of the service."""

    _state: ServiceState

    def routes(self) -> Mapping[str, Handlers]:
        """Return the handlers by path, for `ApiRouter`."""
        return {
            "/live": {"GET": self._live},
            "/health": {"GET": self._health},
            "/metrics": {"GET": self._metrics},
            "/images": {"GET": self._images},
        }

    async def _live(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, b"ok\n", "text/plain")

    async def _health(self, _: ApiRequest) -> ApiResponse:
        if reason := await self._state.unready_reason():
            raise Unavailable(reason, retry_after_seconds=RETRY_SECONDS)
        impairment = await self._state.describe_impairment()
        return ApiResponse(200, f"ok\n{impairment}\n".encode() if impairment else b"ok\n", "text/plain")

    async def _metrics(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, *await self._state.render_metrics())

    async def _images(self, _: ApiRequest) -> ApiResponse:
        return ApiResponse(200, (await self._state.render_images()).encode())
