"""Parameters of lists. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from image_service.common.openapi.document import QueryParameter
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer import errors
from image_service.jobs.database.composes import ComposeFilter
from image_service.jobs.model import ComposeOrigin, ComposeState, ImageType

if TYPE_CHECKING:
    from collections.abc import Mapping

_NUMBER = re.compile("[0-9]{1,9}")
_DEFAULT_SIZE = 100
MAX_SIZE = 1000
"""Items of a list."""

PAGE = (
    QueryParameter("page", "number of the page; 0", {"type": "integer", "minimum": 0}),
    QueryParameter(
        "size", f"items on a page; {_DEFAULT_SIZE}", {"type": "integer", "minimum": 1, "maximum": MAX_SIZE}
    ),
)
COMPOSE_FILTERS = (
    QueryParameter("status", "of the composes; any", {"enum": ["success", "failure", "pending"]}),
    QueryParameter("distribution", "of the composes; any"),
    QueryParameter("image_type", "of the composes; any", {"enum": list(ImageType)}),
)

_STATES = {
    "success": {ComposeState.SUCCESS},
    "failure": {ComposeState.FAILURE, ComposeState.CANCELLED},
    "pending": {state for state in ComposeState if not state.is_final},
}


@attrs.frozen
class Page:
    """A page of a list.

    Args:
        number: from 0.
        size: items, at most.
    """

    number: int
    size: int

    @property
    def offset(self) -> int:
        """The number of items before it."""
        return self.number * self.size


def parse_page(query: Mapping[str, str]) -> Page:
    """Return the page in a query; raises ApiError."""
    number = _parse_number(query.get("page", "0"))
    if number is None:
        raise ApiError(number=errors.INVALID_PAGE)
    size = _parse_number(query.get("size", str(_DEFAULT_SIZE)))
    if not size or size > MAX_SIZE:
        raise ApiError(number=errors.INVALID_SIZE)
    return Page(number, size)


def parse_filter(query: Mapping[str, str], tenant: str) -> ComposeFilter:
    """Return the filter for composes of `tenant` in a query; raises ApiError."""
    known = {parameter.name for parameter in (*PAGE, *COMPOSE_FILTERS)}
    if query.keys() - known:
        raise ApiError(f"parameters are {', '.join(sorted(known))}", number=errors.BAD_REQUEST)
    status, image_type = query.get("status"), query.get("image_type")
    distribution = query.get("distribution")
    if distribution is not None and not distribution.isprintable():
        raise ApiError("distribution must be printable text", number=errors.BAD_REQUEST)
    if status is not None and status not in _STATES:
        raise ApiError(f"status must be one of {', '.join(_STATES)}", number=errors.BAD_REQUEST)
    if image_type is not None and image_type not in set(ImageType):
        raise ApiError(f"image_type must be one of {', '.join(ImageType)}", number=errors.BAD_REQUEST)
    return ComposeFilter(
        tenant,
        None if status is None else _STATES[status],
        distribution,
        None if image_type is None else ImageType(image_type),
        ComposeOrigin.COMPOSER,
    )


def _parse_number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None
