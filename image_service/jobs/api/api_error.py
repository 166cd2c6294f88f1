"""The error by which a handler of composer's APIs refuses a request."""

from __future__ import annotations

from image_service.core.errors import ImageServiceError


class ApiError(ImageServiceError):
    """A request is refused with an error of its API's list of numbered errors; `detail` may be empty."""

    code = "api-error"

    def __init__(self, detail: str = "", *, number: int = 0, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail, retry_after_seconds=retry_after_seconds)
        self.number = number
