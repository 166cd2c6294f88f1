"""The calls of assisted-service: what is requested, with which credentials, and how a call ends."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from image_service.errors import (
    Forbidden,
    ImageServiceError,
    NotFound,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from image_service.images.reference import CredentialScheme

if TYPE_CHECKING:
    from twisted.web.http_headers import Headers

    from image_service.images.reference import Credentials

API_KEY_PARAMETER = "api_key"
CREDENTIAL_FIELDS = {
    CredentialScheme.IMAGE_TOKEN: "Image-Token",
    CredentialScheme.AUTHORIZATION: "Authorization",
}
"""The header field that carries a credential; API keys are a query parameter."""


class CallKind(enum.Enum):
    """The resource that a call fetches."""

    IGNITION = "ignition"
    INFRA_ENV = "infra-env"
    RAMDISK = "ramdisk"


class CallOutcome(enum.Enum):
    """The result of a call, for the metrics."""

    OK = "ok"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not-found"
    REFUSED = "refused"
    FAILED = "failed"
    TIMEOUT = "timeout"


_OUTCOMES = (
    (Unauthorized, CallOutcome.UNAUTHORIZED),
    (Forbidden, CallOutcome.FORBIDDEN),
    (NotFound, CallOutcome.NOT_FOUND),
    (UpstreamTimeout, CallOutcome.TIMEOUT),
    (UpstreamError, CallOutcome.FAILED),
)


def outcome_of(error: ImageServiceError) -> CallOutcome:
    """Return the outcome of a call that raised an error."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), CallOutcome.REFUSED)


@attrs.frozen
class UpstreamRequest:
    """One GET.

    Args:
        kind: of the call.
        what: the resource, for messages.
        path: segments below the collection of infra-envs.
        limit_bytes: of the response's content.
        parameters: of the query.
        optional: 204 is a valid response.
    """

    kind: CallKind
    what: str
    path: tuple[str, ...]
    limit_bytes: int
    parameters: tuple[tuple[str, str], ...] = ()
    optional: bool = False


def add_credentials(credentials: Credentials, parameters: list[tuple[str, str]], headers: Headers) -> None:
    """Put a credential into the parameter or field of its scheme."""
    if credentials.scheme is CredentialScheme.API_KEY:
        parameters.append((API_KEY_PARAMETER, credentials.secret))
        return
    field = CREDENTIAL_FIELDS[credentials.scheme]
    if not (credentials.secret.isascii() and credentials.secret.isprintable()):
        detail = f"{field} holds characters that no field value may have"
        raise Unauthorized(detail, fields=(("WWW-Authenticate", "Bearer"),))
    headers.setRawHeaders(field, [credentials.secret])
