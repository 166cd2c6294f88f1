"""The API of the administrative listener: each module has operations, one OpenAPI document describes all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from image_service import __version__
from image_service.common.openapi.document import ApiDescription
from image_service.server.web_api.operations import PROBLEM_TYPE, TOKEN_SCHEMES, described_routes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.common.openapi.document import Schemas
    from image_service.server.web_api.operations import ApiOperation
    from image_service.server.web_api.router import Handlers

_DESCRIPTION = ApiDescription(
    "image-service administration",
    __version__,
    "For those who run the service: probes, metrics, states.",
    ("",),
    error_type=PROBLEM_TYPE,
    security_schemes=TOKEN_SCHEMES,
)


class AdminApi(Protocol):
    """Operations on one subject."""

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """All of them."""

    @property
    def schemas(self) -> Schemas:
        """Schemas of their JSON, by name."""


def api_routes(apis: Sequence[AdminApi]) -> Mapping[str, Handlers]:
    """Return the routes of the APIs, and that of the OpenAPI document that describes them."""
    operations = [operation for api in apis for operation in api.operations]
    schemas = {name: schema for api in apis for name, schema in api.schemas.items()}
    return described_routes(_DESCRIPTION, operations, schemas)
