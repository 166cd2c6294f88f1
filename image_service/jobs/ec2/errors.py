"""The errors of EC2's API."""

from __future__ import annotations

from image_service.errors import ImageServiceError

STATUSES = {
    "AuthFailure": 401,
    "DryRunOperation": 412,
    "MissingAuthenticationToken": 403,
    "RequestEntityTooLarge": 413,
    "SignatureDoesNotMatch": 403,
    "UnauthorizedOperation": 403,
    "InternalError": 500,
    "Unavailable": 503,
}
"""HTTP status by error code; that of all others is 400."""


class Ec2Error(ImageServiceError):
    """A request to EC2's API is refused.

    Args:
        error_code: EC2's, such as ``InvalidParameterValue``; SDKs compare it.
        detail: what was wrong, and what would be right.
    """

    code = "ec2-error"

    def __init__(self, error_code: str, detail: str, *, retry_after_seconds: int | None = None) -> None:
        super().__init__(detail, retry_after_seconds=retry_after_seconds)
        self.error_code = error_code

    @property
    def status(self) -> int:
        """HTTP status."""
        return STATUSES.get(self.error_code, 400)
