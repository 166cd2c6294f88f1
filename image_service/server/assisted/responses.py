"""Responses of assisted-service, parsed strictly. No error quotes their content: it contains secrets."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import Any

import attrs
from twisted.web.http_headers import Headers  # noqa: TC002 - same

from image_service.common.programs.own_process import passes_elsewhere
from image_service.core.errors import FormatError, IgnitionInvalid, IgnitionNotJson
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.formats.initrd_stream import check_ramdisk
from image_service.core.images.reference import ISOS, Kind
from image_service.server.assisted.failures import upstream_error
from image_service.server.http.dates import parse_http_date


@attrs.frozen
class CompleteResponse:
    """A response, read to its end, and the name of its resource, for errors."""

    resource: str
    headers: Headers = attrs.field(repr=False)
    body: bytes = attrs.field(repr=False)
    status: int = 200


@attrs.frozen
class IgnitionConfig:
    """An infra-env's Ignition config."""

    config: bytes = attrs.field(repr=False)  # version 3, byte for byte as received
    modified: datetime | None  # Last-Modified of the response, UTC; None: absent or invalid


@attrs.frozen
class InfraEnv:
    """The properties of an infra-env that matter to its images."""

    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(repr=False)  # in order
    openshift_version: str | None  # None: the infra-env has none
    kind: Kind | None  # of its image; None: it has none, or one that is not an ISO
    architecture: str | None  # as in ``OS_IMAGES``; None: the infra-env has none
    name: str = attrs.field(default="", eq=False)  # for people; no image depends on it


MAX_NAME = 200
"""Characters of an infra-env's name that are kept."""
PROCESS_BYTES = 1 << 20
"""A config larger than this is parsed in a process of its own; one of 16 MiB takes 100 ms."""
FAMILY_CONFIG_FIELD = "Image-Service-Config"
"""Says that the stand-in sends a config of another family than CoreOS."""


def parse_ignition(response: CompleteResponse) -> IgnitionConfig:
    """Return the config; raises UpstreamError unless it is JSON, IgnitionInvalid unless it has version 3.

    One of the stand-in may be of another family, which its header field says.
    """
    try:
        if not response.headers.hasHeader(FAMILY_CONFIG_FIELD):
            is_large = len(response.body) > PROCESS_BYTES
            if not (is_large and passes_elsewhere(check_ignition, response.body)):
                check_ignition(response.body)
    except IgnitionNotJson:
        raise upstream_error(f"{response.resource}, {len(response.body)} bytes, is not JSON") from None
    except IgnitionInvalid as error:
        raise IgnitionInvalid(f"assisted-service sent {response.resource}: {error.detail}") from None
    (modified, *_) = response.headers.getRawHeaders(b"Last-Modified", [b""])
    return IgnitionConfig(response.body, parse_http_date(modified.decode("latin-1")))


def parse_infra_env(response: CompleteResponse) -> InfraEnv:
    """Return the infra-env in a JSON object of the API; raises UpstreamError if it is invalid."""
    infra_env = _load_json(response.body, response.resource)
    if not isinstance(infra_env, dict):
        raise upstream_error(f"{response.resource} is not a JSON object")

    def text(name: str) -> str | None:
        value = infra_env.get(name)
        if value is not None and not isinstance(value, str):
            raise upstream_error(f"{name} of {response.resource} is not a string")
        return value or None  # Go writes an unset string as an empty one

    kind, name = text("type"), infra_env.get("name")
    return InfraEnv(
        _parse_kernel_arguments(text("kernel_arguments"), f"kernel_arguments of {response.resource}"),
        text("openshift_version"),
        Kind(kind) if kind in {iso.value for iso in ISOS} else None,
        rpm_architecture(text("cpu_architecture") or "") or None,
        name[:MAX_NAME] if isinstance(name, str) else "",
    )


def parse_ramdisk(response: CompleteResponse) -> bytes | None:
    """Return the ramdisk, or None; raises UpstreamError if no kernel would unpack it."""
    ramdisk = response.body
    if not ramdisk:
        return None
    try:
        check_ramdisk(ramdisk, f"{response.resource}, {len(ramdisk)} bytes,", time.monotonic)
    except FormatError as error:
        raise upstream_error(error.detail) from None
    return ramdisk


def _load_json(text: bytes | str, name: str) -> Any:  # noqa: ANN401 - JSON is any of six types
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    # Raised outside the decoder's error, which contains the whole text and would be this one's context.
    raise upstream_error(f"{name} is not JSON")


def _parse_kernel_arguments(text: str | None, name: str) -> tuple[KernelArgument, ...]:
    """Parse a JSON list in a string: the API's own form."""
    arguments = []
    operations = _load_json(text or "null", name)
    if not isinstance(operations, list | None):
        raise upstream_error(f"{name} is not a list")
    for number, operation in enumerate(operations or (), 1):
        match operation:
            case {"operation": "append" | "replace" | "delete" as verb, "value": str(value)}:
                arguments.append(KernelArgument(Operation(verb), value))
            case _:
                raise upstream_error(f"{name}: number {number} is not an operation with a value")
    return tuple(arguments)
