"""The operations that describe the API: distributions and errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

import attrs

from image_service.common.openapi.document import QueryParameter
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer import errors, replies
from image_service.jobs.composer.errors import COMPOSER_ERRORS
from image_service.jobs.composer.paging import PAGE, parse_page
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from image_service.jobs.artifacts.bases import Bases
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

_NAMES = {"type": "array", "items": {"type": "string"}}
_FILTERS = (
    QueryParameter("image_type", "those to show; all", _NAMES),
    QueryParameter("architecture", "those to show; all", _NAMES),
)
_NUMBER = re.compile("[0-9]{1,9}")


@attrs.frozen
class ReferenceRoutes:
    """The operations that describe the API."""

    _bases: Bases

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """All of them."""
        return (
            ApiOperation(
                "GET",
                "/distributions",
                "getDistributionList",
                "list the distributions, with their architectures and image types",
                self._list_distributions,
                reply="DistributionList",
            ),
            ApiOperation(
                "GET",
                "/distributions/{name}",
                "getDistribution",
                "show the architectures and image types of a distribution",
                self._show_distribution,
                reply="DistributionDetails",
                query=_FILTERS,
            ),
            ApiOperation(
                "GET",
                "/errors",
                "getErrorList",
                "list errors",
                self._list_errors,
                reply="ErrorList",
                query=PAGE,
            ),
            ApiOperation(
                "GET", "/errors/{number}", "getError", "show an error", self._show_error, reply="Error"
            ),
        )

    async def _list_distributions(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response(replies.describe_distributions(self._bases.distributions()))

    async def _show_distribution(self, request: ApiRequest, name: str) -> ApiResponse:
        found = self._bases.distributions().get(unquote(name))
        if found is None:
            raise ApiError("there is no such distribution", number=errors.UNKNOWN_PATH)
        architectures = {
            architecture: [each for each in image_types if _is_wanted(request, "image_type", each)]
            for architecture, image_types in found.items()
            if _is_wanted(request, "architecture", architecture)
        }
        return json_response(replies.describe_distribution(unquote(name), architectures))

    async def _list_errors(self, request: ApiRequest) -> ApiResponse:
        page = parse_page(request.query)
        documents = COMPOSER_ERRORS.documents()
        items = documents[page.offset : page.offset + page.size]
        return json_response(replies.describe_page("ErrorList", items, page.number, len(documents)))

    async def _show_error(self, request: ApiRequest, number: str) -> ApiResponse:
        del request  # same
        if not _NUMBER.fullmatch(number):
            raise ApiError(number=errors.MALFORMED_ERROR_ID)
        if int(number) not in COMPOSER_ERRORS:
            raise ApiError(number=errors.UNKNOWN_ERROR)
        return json_response(COMPOSER_ERRORS.document(int(number)))


def _is_wanted(request: ApiRequest, parameter: str, value: str) -> bool:
    """Return True if a query has this value of a parameter, or no value at all."""
    return parameter not in request.query or value in request.query[parameter].split(",")
