"""Why a request to S3 got no answer, without the texts of the SDK, which may contain URLs with queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.common.http.errors import failure_of
from image_service.common.http.origins import public_url

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_HAD = "the SDK cannot get the credentials that it is configured for"
# By the names of the SDK's classes, which is an extra, and slow to import; the first one in the MRO counts.
_CAUSES = {
    "NoCredentialsError": "no credentials; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
    "PartialCredentialsError": (
        "no credentials; of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY one is set, both must be"
    ),
    "CredentialRetrievalError": _NOT_HAD,
    "MetadataRetrievalError": _NOT_HAD,
    "TokenRetrievalError": _NOT_HAD,
    "SSOError": _NOT_HAD,
    "LoginError": _NOT_HAD,
    "ProfileNotFound": "the SDK's files do not have the profile; check AWS_PROFILE",
    "ConfigParseError": "the SDK's files are damaged",
    "InvalidRegionError": "the region is not valid; check AWS_REGION",
    "ParamValidationError": "the bucket or the key is not valid",
    "BotoCoreError": "the SDK does not accept its configuration; check the AWS_* variables",
    "ValueError": "the endpoint is not an http or https URL with a valid host; check AWS_ENDPOINT_URL",
}
_CAUSES_OF_CONNECTIONS = {
    "ProxyConnectionError": "the connection failed",
    "ConnectTimeoutError": "no connection in time",
    "ReadTimeoutError": "no answer in time",
    "ConnectionClosedError": "the connection ended before the answer",
    "ResponseStreamingError": "the answer is incomplete",
    "IncompleteReadError": "the answer is incomplete",
    "ResponseParserError": "the answer is not that of S3",
    "LocationValueError": "its name does not resolve: it is not a host name",
    "HTTPClientError": "the request failed",
    "ConnectionError": "the connection failed",
}


def describe_sdk_error(error: Exception, endpoint: str = "") -> str:
    """Return the cause of an error of the SDK; of a connection, after the URL of its endpoint."""
    names = [kind.__name__ for each in _chain(error) for kind in type(each).__mro__]
    connection = next(
        (_CAUSES_OF_CONNECTIONS[name] for name in names if name in _CAUSES_OF_CONNECTIONS), None
    )
    if connection is None:
        return next((_CAUSES[name] for name in names if name in _CAUSES), "the SDK failed")
    failed = next((each for each in _chain(error) if isinstance(each, OSError) and each.strerror), None)
    cause = connection if failed is None else str(failure_of(failed))
    if "ProxyConnectionError" in names:
        cause = f"the proxy: {cause}; check HTTP_PROXY, HTTPS_PROXY and NO_PROXY"
    return f"{public_url(endpoint)}: {cause}" if endpoint else cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that it wraps: the SDK and its HTTP client keep them in several ways."""
    left, seen = [error], set[int]()
    while left:
        each = left.pop(0)
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            known = getattr(each, "kwargs", {}).get("error")
            inner = (known, getattr(each, "reason", None), *each.args, each.__cause__, each.__context__)
            left += [found for found in inner if isinstance(found, BaseException)]
