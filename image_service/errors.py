"""The one exception family: each error knows its HTTP status and a stable, machine-readable code.

A message says what was wrong, where (offset, size, name) and what would be right. It never holds a
credential, an Ignition config or any other text of the customization.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self


class ImageServiceError(Exception):
    """Anything that this service refuses or cannot do, with the answer that a client gets.

    Args:
        detail: what was wrong, where, and what would be right; shown to the client and logged.
        retry_after_seconds: when it is worth asking again; becomes ``Retry-After``.
        fields: further header fields that the answer must carry (``Allow``, ``WWW-Authenticate``).
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal-error"

    def __init__(
        self,
        detail: str,
        *,
        retry_after_seconds: int | None = None,
        fields: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.retry_after_seconds = retry_after_seconds
        self.fields = fields

    def again(self) -> Self:
        """Make an equal one, to be kept or to be raised once more.

        An exception that was raised keeps all that it came through alive, and grows each time.
        """
        return copy.copy(self)


class ConfigurationError(ImageServiceError):
    """The environment does not make a configuration; ``detail`` lists every fault."""

    code = "configuration-invalid"


# What the client sent.


class InvalidRequest(ImageServiceError):
    """The request cannot be understood (RFC 9110 section 15.5.1)."""

    status = 400
    code = "request-invalid"


class InvalidParameter(InvalidRequest):
    """A parameter of the contract is missing or has no such value."""

    code = "parameter-invalid"


class Unauthorized(ImageServiceError):
    """assisted-service wants (other) credentials."""

    status = 401
    code = "unauthorized"


class Forbidden(ImageServiceError):
    """assisted-service does not let these credentials see the infra-env."""

    status = 403
    code = "forbidden"


class NotFound(ImageServiceError):
    """There is no such resource, infra-env or base image."""

    status = 404
    code = "not-found"


class UnknownBaseImage(NotFound):
    """There is no base image of that version, architecture and type."""

    code = "base-image-unknown"


class MethodNotAllowed(ImageServiceError):
    """The resource exists and is only read."""

    status = 405
    code = "method-not-allowed"


class RequestTimeout(ImageServiceError):
    """The request head did not arrive in time."""

    status = 408
    code = "request-timeout"


class Conflict(ImageServiceError):
    """assisted-service cannot answer for the infra-env in its present state."""

    status = 409
    code = "conflict"


class PreconditionFailed(ImageServiceError):
    """The representation is not the one that the client asked for."""

    status = 412
    code = "precondition-failed"


class ContentTooLarge(ImageServiceError):
    """Request content where none is taken."""

    status = 413
    code = "content-not-accepted"


class UriTooLong(ImageServiceError):
    """The request target is longer than the limit."""

    status = 414
    code = "target-too-long"


class UnsupportedMediaType(ImageServiceError):
    """A management request whose content is not JSON."""

    status = 415
    code = "content-type-unsupported"


class RangeNotSatisfiable(ImageServiceError):
    """Nothing of what was asked for exists."""

    status = 416
    code = "range-not-satisfiable"


class ExpectationFailed(ImageServiceError):
    """An expectation other than ``100-continue``."""

    status = 417
    code = "expectation-failed"


class MisdirectedRequest(ImageServiceError):
    """A management request for a host that this listener is not."""

    status = 421
    code = "host-misdirected"


class HeadTooLarge(ImageServiceError):
    """The request head is larger than the limit, or has too many fields."""

    status = 431
    code = "head-too-large"


class NotImplementedMethod(ImageServiceError):
    """A method, or a transfer coding, that this service does not know."""

    status = 501
    code = "not-implemented"


class VersionNotSupported(ImageServiceError):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    status = 505
    code = "http-version-unsupported"


# What the customization holds.


class Unprocessable(ImageServiceError):
    """The customization cannot be laid over the base image."""

    status = 422
    code = "customization-invalid"


class IgnitionInvalid(Unprocessable):
    """JSON, but not an Ignition version 3 config."""

    code = "ignition-invalid"


class IgnitionTooLarge(Unprocessable):
    """The config does not fit its embed area, however compressed."""

    code = "ignition-too-large"


class RamdiskTooLarge(Unprocessable):
    """The ramdisk does not fit its area."""

    code = "ramdisk-too-large"


class KernelArgumentInvalid(Unprocessable):
    """A kernel argument that a boot loader would run, split or drop."""

    code = "kernel-argument-invalid"


class KernelArgumentsTooLarge(Unprocessable):
    """The kernel arguments do not fit their embed areas."""

    code = "kernel-arguments-too-large"


# What the base images and assisted-service do.


class BaseImageError(ImageServiceError):
    """A file is not a base image that can be served; says why, by name and offset."""

    status = 503
    code = "base-image-refused"


class FileNotInIso(BaseImageError):
    """A file that was looked up in a base image is not there."""


class Unavailable(ImageServiceError):
    """Not now: the image is not ready, or the service is at its limit."""

    status = 503
    code = "unavailable"


class StreamMetadataInvalid(ImageServiceError):
    """A stream's metadata is not what it should be; says where, as JSON paths."""

    status = 502
    code = "stream-metadata-invalid"


class UpstreamError(ImageServiceError):
    """assisted-service is unreachable or answered garbage."""

    status = 502
    code = "upstream-failed"


class UpstreamTimeout(ImageServiceError):
    """assisted-service did not answer in time."""

    status = 504
    code = "upstream-timeout"


# What this service keeps for itself. No request fails of it: whoever asks goes on without.


class StoreFailed(ImageServiceError):
    """The store of snapshots cannot be read or written: damaged, full, locked or not allowed."""

    code = "store-failed"


class SnapshotUnreadable(ImageServiceError):
    """A stored snapshot cannot be opened: other credentials, another secret, another release, or damage."""

    code = "snapshot-unreadable"
