"""Errors of composer's APIs: each API has a list of numbers, with a status and a reason each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
from twisted.logger import Logger

from image_service.core.errors import BudgetExceeded, Unavailable
from image_service.jobs.api.api_error import ApiError
from image_service.server.http.request_id import new_request_id
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.core.errors import ImageServiceError

_log = Logger()

_SERVER_ERRORS = 500
_RETRY_SECONDS = {429: 60, 503: 10}  # if the error has no such time


@attrs.frozen
class ErrorEntry:
    """An error of an API.

    Args:
        number: stable; clients compare it.
        reason: one sentence, the same for every occurrence.
    """

    number: int
    status: int
    reason: str


class ErrorList:
    """The errors of an API, and their documents.

    Args:
        base_path: of the API, without a final slash.
        prefix: of the codes, such as ``IMAGE-BUILDER-COMPOSER-``.
        entries: all errors of the API.
        numbers: for each class of error that is raised elsewhere, which entry it is; subclasses that are not
            listed have that of their base. `ImageServiceError` must be listed.
        has_message: True: documents also have ``message``, equal to ``reason``.
    """

    def __init__(
        self,
        base_path: str,
        prefix: str,
        entries: Sequence[ErrorEntry],
        numbers: Mapping[type[ImageServiceError], int],
        *,
        has_message: bool = False,
    ) -> None:
        self._base_path = base_path
        self._prefix = prefix
        self._entries = {entry.number: entry for entry in entries}
        self._numbers = numbers
        self._has_message = has_message

    def __contains__(self, number: int) -> bool:
        """Return True if there is an error of this number."""
        return number in self._entries

    def documents(self) -> list[dict[str, object]]:
        """Return the documents of all errors, by number."""
        return [self.document(number) for number in sorted(self._entries)]

    def document(self, number: int, operation_id: str = "", details: str = "") -> dict[str, object]:
        """Return the document of an error.

        Args:
            operation_id: names one occurrence, as the log does; "": it is not logged.
            details: of this occurrence; always a string, because clients decode it into one.
        """
        reason = self._entries[number].reason
        return {
            "id": str(number),
            "kind": "Error",
            "href": f"{self._base_path}/errors/{number}",
            "code": f"{self._prefix}{number}",
            "operation_id": operation_id,
            "reason": reason,
            **({"message": reason} if self._has_message else {}),
            "details": details,
        }

    def render(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error; log it if the service is at fault, or cannot answer now."""
        number = self._number_of(error)
        status = self._entries[number].status
        operation_id = ""
        if status >= _SERVER_ERRORS and not isinstance(error, BudgetExceeded):
            operation_id = new_request_id()
            log = _log.warn if isinstance(error, Unavailable) else _log.error
            log("a request failed: {detail}", detail=error.detail, code=error.code, operation_id=operation_id)
        fields = error.fields
        retry_seconds = error.retry_after_seconds or _RETRY_SECONDS.get(status)
        if retry_seconds is not None:
            fields += (("Retry-After", str(retry_seconds)),)
        document = self.document(number, operation_id, error.detail)
        return ApiResponse(status, json.dumps(document).encode() + b"\n", fields=fields)

    def _number_of(self, error: ImageServiceError) -> int:
        if isinstance(error, ApiError):
            return error.number
        return next(self._numbers[kind] for kind in type(error).__mro__ if kind in self._numbers)
