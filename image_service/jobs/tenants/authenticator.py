"""Authenticates requests: by JWT, or by the listener they came through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from image_service.jobs.model import Principal


class Authenticator(Protocol):
    """Finds out who sends a request."""

    async def authenticate(self, authorization: str | None, *, is_local: bool) -> Principal:
        """Return who sends a request.

        Args:
            authorization: the field of the request.
            is_local: it came through a Unix socket.

        Raises:
            Unauthorized: the token is missing, expired, or of no accepted issuer, audience or key.
            Forbidden: the access list does not admit it.
            TenantMissing: it names no tenant.
            Unavailable: the keys could never be fetched.
        """
