"""Calls of assisted-service's API: resources, credentials and outcomes."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Forbidden, NotFound, Unauthorized, UpstreamError, UpstreamTimeout
from image_service.core.images.reference import CredentialScheme
from image_service.settings.upstream import MAX_IGNITION_BYTES

if TYPE_CHECKING:
    from twisted.web.http_headers import Headers

    from image_service.core.errors import ImageServiceError
    from image_service.core.images.reference import Credentials

IGNITION_LIMIT_BYTES = MAX_IGNITION_BYTES
RAMDISK_LIMIT_BYTES = 64 * 1024 * 1024


def infra_env_limit(ignition_bytes: int) -> int:
    """Return the limit in bytes of an infra-env, which repeats the config's override as an escaped string."""
    return 2 * ignition_bytes + 1024 * 1024


API_KEY_PARAMETER = "api_key"
CREDENTIAL_FIELDS = {
    CredentialScheme.IMAGE_TOKEN: "Image-Token",
    CredentialScheme.AUTHORIZATION: "Authorization",
}
"""The header field that carries a credential; an API key is a query parameter."""


class CallKind(enum.Enum):
    """The kind of resource that a call fetches."""

    IGNITION = "ignition"
    INFRA_ENV = "infra-env"
    RAMDISK = "ramdisk"


class CallOutcome(enum.Enum):
    """The results of calls, as the metrics count them."""

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
    """Return the outcome of a call that raised ``error``."""
    return next((outcome for kind, outcome in _OUTCOMES if isinstance(error, kind)), CallOutcome.REFUSED)


@attrs.frozen
class ApiCall:
    """A GET request for a resource of one infra-env."""

    kind: CallKind
    resource: str  # its name in log messages and errors
    path: tuple[str, ...]  # segments of the URL below the collection of infra-envs
    limit_bytes: int  # of the response's body
    parameters: tuple[tuple[str, str], ...] = ()
    may_be_absent: bool = False  # 204 is a valid response
    is_revalidation: bool = False  # the answer to an earlier call is in use


@attrs.define(eq=False)
class Attempt:
    """A call that is in progress.

    Args:
        request_id: of the client's request on whose behalf it is made; empty: there is none.
        answer_id: the X-Request-ID of the response; empty: it has none, or there is no response yet.
    """

    call: ApiCall
    request_id: str = ""
    answer_id: str = ""


def add_credentials(credentials: Credentials, parameters: list[tuple[str, str]], headers: Headers) -> None:
    """Add the credential where assisted-service expects one of its scheme."""
    if credentials.scheme is CredentialScheme.API_KEY:
        parameters.append((API_KEY_PARAMETER, credentials.secret))
        return
    field = CREDENTIAL_FIELDS[credentials.scheme]
    if not (credentials.secret.isascii() and credentials.secret.isprintable()):
        detail = f"{field} contains characters that are invalid in a header field"
        raise Unauthorized(detail, fields=(("WWW-Authenticate", "Bearer"),))
    headers.setRawHeaders(field, [credentials.secret])
