"""Where infra-envs are made, if not on the page: at assisted-service, or at the API of the stand-in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import TEXT_OR_NULL, object_schema
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from image_service.common.openapi.document import Schemas
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

INFRA_ENVS_PATH = "/api/v1/infra-envs"


@attrs.frozen
class InfraEnvsElsewhere:
    """Says where infra-envs are made. See `AdminApi`.

    Args:
        place: where, for people.
    """

    _place: str

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """See `AdminApi`."""
        summary = "show where infra-envs are made"
        return (
            ApiOperation("GET", INFRA_ENVS_PATH, "ListInfraEnvs", summary, self._list, reply="InfraEnvs"),
        )

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        return {"InfraEnvs": object_schema(infra_envs={"type": "null"}, made_at=TEXT_OR_NULL)}

    async def _list(self, _: ApiRequest) -> ApiResponse:
        return json_response({"infra_envs": None, "made_at": self._place})
