"""The one exception family. Each class has a stable code; ``server/http/problem`` maps classes to statuses.

A detail names the fault, its place (offset, size, name) and a valid value. It never contains a
credential, an Ignition config or any other text of a customization.
"""

from __future__ import annotations

import copy
from typing import ClassVar, Self


class ImageServiceError(Exception):
    """A request that is refused, or an operation that failed.

    Args:
        detail: shown to the client and logged.
        retry_after_seconds: when a retry may succeed; becomes ``Retry-After``.
        fields: further header fields that the response must carry (``Allow``, ``WWW-Authenticate``).
    """

    code: ClassVar[str] = "internal-error"
    must_close: ClassVar[bool] = False  # the connection: on another one, another replica may answer

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

    def copy(self) -> Self:
        """Return an equal error without a traceback, to be kept or to be raised again.

        A raised exception keeps every frame on its way alive, and its traceback grows each time it is raised.
        """
        return copy.copy(self)


class ConfigurationError(ImageServiceError):
    """The settings are invalid; ``detail`` lists every fault."""

    code = "configuration-invalid"


# Requests


class InvalidRequest(ImageServiceError):
    """The request is malformed (RFC 9110 section 15.5.1)."""

    code = "request-invalid"


class InvalidParameter(InvalidRequest):
    """A parameter is missing or has an invalid value."""

    code = "parameter-invalid"


class PlainHttp(InvalidRequest):
    """The request is in plain HTTP, and its port requires TLS."""

    code = "plain-http"


class Unauthorized(ImageServiceError):
    """assisted-service requires other credentials, or some."""

    code = "unauthorized"


class Forbidden(ImageServiceError):
    """assisted-service denies these credentials access to the infra-env."""

    code = "forbidden"


class NotFound(ImageServiceError):
    """There is no such resource, infra-env or base image."""

    code = "not-found"


class Gone(ImageServiceError):
    """A short link has expired or was revoked, or the image that it names does not exist any more."""

    code = "gone"


class UnknownBaseImage(NotFound):
    """There is no base image of that version, architecture and type."""

    code = "base-image-unknown"


class MethodNotAllowed(ImageServiceError):
    """The resource exists but does not support the method."""

    code = "method-not-allowed"


class RequestTimeout(ImageServiceError):
    """The request head did not arrive in time."""

    code = "request-timeout"


class Conflict(ImageServiceError):
    """The request cannot be carried out in the present state of its infra-env, or of its image."""

    code = "conflict"


class PreconditionFailed(ImageServiceError):
    """A precondition of the request is false (RFC 9110 section 13)."""

    code = "precondition-failed"


class ContentTooLarge(ImageServiceError):
    """The request has content where none is accepted, or too much."""

    code = "content-not-accepted"


class UriTooLong(ImageServiceError):
    """The request target is longer than the limit."""

    code = "target-too-long"


class UnsupportedMediaType(ImageServiceError):
    """The content of a request to a web API is not JSON."""

    code = "content-type-unsupported"


class RangeNotSatisfiable(ImageServiceError):
    """No requested range overlaps the representation."""

    code = "range-not-satisfiable"


class ExpectationFailed(ImageServiceError):
    """The request has an expectation other than ``100-continue``."""

    code = "expectation-failed"


class MisdirectedRequest(ImageServiceError):
    """A request to a web API names a host other than this listener."""

    code = "host-misdirected"


class TooManyWrongCodes(ImageServiceError):
    """A client has requested short links that do not exist, too often to go on at once."""

    code = "too-many-wrong-codes"


class HeadTooLarge(ImageServiceError):
    """The request head is larger than the limit, or has too many fields."""

    code = "head-too-large"


class NotImplementedMethod(ImageServiceError):
    """The method or transfer coding is not implemented."""

    code = "not-implemented"


class VersionNotSupported(ImageServiceError):
    """The HTTP version is neither 1.0 nor 1.1."""

    code = "http-version-unsupported"


# Customizations


class Unprocessable(ImageServiceError):
    """The customization cannot be laid over the base image."""

    code = "customization-invalid"


class IgnitionInvalid(Unprocessable):
    """The config is not an Ignition version 3 config."""

    code = "ignition-invalid"


class IgnitionNotJson(IgnitionInvalid):
    """The config is not even JSON."""


class ConfigInvalid(Unprocessable):
    """The config is not in the language of its family."""

    code = "config-invalid"


class IgnitionTooLarge(Unprocessable):
    """The compressed config does not fit its embed area."""

    code = "ignition-too-large"


class RamdiskTooLarge(Unprocessable):
    """The ramdisk does not fit its area."""

    code = "ramdisk-too-large"


class KernelArgumentInvalid(Unprocessable):
    """A kernel argument would be executed, split or dropped by a boot loader."""

    code = "kernel-argument-invalid"


class KeyfileInvalid(Unprocessable):
    """A file is not a NetworkManager keyfile."""

    code = "keyfile-invalid"


class KernelArgumentsTooLarge(Unprocessable):
    """The kernel arguments do not fit their embed areas."""

    code = "kernel-arguments-too-large"


# Files


class BaseImageError(ImageServiceError):
    """A file cannot be served as a base image."""

    code = "base-image-refused"


class FormatError(BaseImageError):
    """The bytes of a file violate its format; ``detail`` names the part, the offset and the size."""


class FormatUnread(FormatError):
    """Bytes that may be right, but exceed a limit on bytes, files or memory, or have a form not read here."""


class SignatureInvalid(FormatError):
    """None of the given keys has signed it."""


class FileNotInImage(FormatError):
    """A file system image has no file of that path."""


class UnreadScript(FormatError):
    """A boot loader's script uses commands or values that this program does not evaluate; it may be valid."""


# Operation


class Unavailable(ImageServiceError):
    """The image is not ready yet, or a limit of this service is reached."""

    code = "unavailable"


class UpstreamQueueFull(Unavailable):
    """No slot for a call to assisted-service became free in time. Nothing was asked, and nothing failed."""

    code = "upstream-queue-full"


class StreamMetadataInvalid(ImageServiceError):
    """Stream metadata is invalid; ``detail`` names the member as a JSON path."""

    code = "stream-metadata-invalid"


class UpstreamError(ImageServiceError):
    """assisted-service is unreachable, or its response is invalid."""

    code = "upstream-failed"


class UpstreamRefused(ImageServiceError):
    """assisted-service has answered with a redirect, or with a status that no client of ours can act on."""

    code = "upstream-refused"


class UpstreamTimeout(ImageServiceError):
    """assisted-service did not respond in time."""

    code = "upstream-timeout"


class StoreFailed(ImageServiceError):
    """The snapshot store is damaged, full, locked or not accessible; requests are served without it."""

    code = "store-failed"


class StoreFull(StoreFailed):
    """There is no room in the snapshot store for a snapshot of this size, now or ever."""

    code = "store-full"


class StoreDenied(StoreFailed):
    """The object store refuses what the credentials of this service ask for; who runs it must change that."""

    code = "store-denied"


class SnapshotUnreadable(ImageServiceError):
    """A stored snapshot cannot be decrypted: other credentials, secret or release, or damage."""

    code = "snapshot-unreadable"


# Disk images: each class has an exit status in ``toolkit/commands``


class MissingDependency(ImageServiceError):
    """A program or Python package that an operation needs is not installed; ``detail`` names the package."""

    code = "dependency-missing"


class TransferFailed(ImageServiceError):
    """A manifest, a part or an object cannot be downloaded or uploaded, or is not as it must be."""

    code = "transfer-failed"


class TransferRefused(TransferFailed):
    """A server refuses a request, as it would the next one: the object is absent, or the URL has expired."""

    code = "transfer-refused"


class ConversionFailed(ImageServiceError):
    """A program that reads or writes a disk image failed; ``detail`` ends with its message."""

    code = "conversion-failed"


class InvalidArguments(ImageServiceError):
    """Each argument of a command is valid, but not together with the others."""

    code = "arguments-invalid"


class UnusableOutput(ImageServiceError):
    """The output's name is that of a symlink, a directory or a device, or its directory cannot be written."""

    code = "output-unusable"


class UnsafeImage(BaseImageError):
    """A disk image refers to files or bytes outside it, or its structures contradict each other."""

    code = "image-unsafe"


class NotCustomizable(BaseImageError):
    """A disk image is not a CoreOS disk, or it has a config or has booted already."""

    code = "image-not-customizable"


class NoRoom(ImageServiceError):
    """A limit of bytes is too small: scratch, a file system or memory; ``detail`` names the bytes."""

    code = "no-room"


class TimedOut(ImageServiceError):
    """A limit of seconds is exceeded: elapsed or CPU time."""

    code = "timed-out"


# Jobs


class EngineUnavailable(Unavailable):
    """The job engine does not answer."""

    code = "engine-unavailable"


class TooManyQueued(ImageServiceError):
    """A tenant has reached its limit of unfinished composes."""

    code = "too-many-queued"


class BudgetExceeded(ImageServiceError):
    """A tenant has no room left for what it would keep; deleting composes and images frees some."""

    code = "budget-exceeded"


class TaskLimitReached(ImageServiceError):
    """A tenant has reached its limit of unfinished imports and exports, or of imported bytes."""

    code = "task-limit-reached"


class TenantMissing(ImageServiceError):
    """The token of a request names no tenant."""

    code = "tenant-missing"


class JobTokenMalformed(InvalidRequest):
    """The token of a job has an invalid format."""

    code = "job-token-malformed"


class JobTokenUnknown(NotFound):
    """The attempt of a job that a token names is of another tenant, or not the present one."""

    code = "job-token-unknown"


class RowNotAuthentic(ImageServiceError):
    """A row of a compose or a job in the database is not as this service has written it."""

    code = "row-not-authentic"


class JobNotRunning(InvalidRequest):
    """The job that a token names is cancelled."""

    code = "job-not-running"


def describe_os_error(error: OSError) -> str:
    """Return its file, if it has one, and its reason."""
    return ": ".join(filter(None, (error.filename, error.strerror or str(error))))
