"""The interface between EC2's protocol and the operations: callers and handlers."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

MAX_SKEW_SECONDS = 15 * 60
"""The greatest difference between the time of a request and that of the service."""


@attrs.frozen
class Ec2Caller:
    """The sender of a request whose signature is verified.

    Args:
        tenant: to which the access key belongs.
        access_key: its name, which is not secret.
        operations: that the access key may call; ``*`` stands for any characters.
        buckets: from which it may import objects, and to which it may export; ``*`` likewise.
        request_digest: SHA-256, in hexadecimal, of the signature, or of the `ClientToken`: the same for a
            repeated request.
        parameters_digest: SHA-256, in hexadecimal, of the parameters if there is a `ClientToken`; else "".
    """

    tenant: str
    access_key: str
    operations: tuple[str, ...]
    buckets: tuple[str, ...]
    request_digest: str
    parameters_digest: str = ""

    def may_call(self, operation: str) -> bool:
        """Return True if the access key may call an operation."""
        return any(fnmatchcase(operation, pattern) for pattern in self.operations)

    def may_use(self, bucket: str) -> bool:
        """Return True if the access key may import from a bucket and export to it."""
        return any(fnmatchcase(bucket, pattern) for pattern in self.buckets)


OperationHandler: TypeAlias = "Callable[[Ec2Caller, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]"
"""Carries out an operation.

Parameters and result have the members of the operation's input and output in botocore's model of EC2, such
as ``{"ConversionTaskId": "import-vol-1234abcd"}``. The parameters fit the model, except that enumerations are
not checked; the caller may call the operation, and the request has no ``DryRun``. An operation without
output returns an empty mapping; its reply is ``true``.

Raises:
    Ec2Error: the request is refused.
"""
