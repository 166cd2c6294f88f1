"""The responses of assisted-service, parsed strictly: the Ignition config and the infra-env."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime  # noqa: TC003 - attrs resolves annotations at run time
from typing import Any

import attrs

from image_service.assisted.failures import upstream_error
from image_service.coreos.kargs import KernelArgument, Operation
from image_service.images.reference import ISOS, Kind


@attrs.frozen
class IgnitionConfig:
    """An infra-env's Ignition config.

    Args:
        config: JSON, unchanged.
        modified: Last-Modified, UTC; None if it is absent or not a date.
    """

    config: bytes = attrs.field(repr=False)
    modified: datetime | None


@attrs.frozen
class InfraEnv:
    """The fields of an infra-env that images depend on.

    Args:
        kernel_arguments: operations, in order.
        openshift_version: None if it has none.
        kind: of its image; None if it is absent or unknown.
        architecture: as ``OS_IMAGES`` spells it.
    """

    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(repr=False)
    openshift_version: str | None
    kind: Kind | None
    architecture: str | None


def parse_infra_env(body: bytes) -> InfraEnv:
    """Parse the JSON object of assisted-service's API; raises UpstreamError if it is invalid."""
    infra_env = _load(body, "the infra-env")
    if not isinstance(infra_env, dict):
        raise upstream_error("the infra-env is not a JSON object")
    kind = _text(infra_env, "type")
    return InfraEnv(
        kernel_arguments=_kernel_arguments(_text(infra_env, "kernel_arguments")),
        openshift_version=_text(infra_env, "openshift_version"),
        kind=Kind(kind) if kind in {iso.value for iso in ISOS} else None,
        architecture=_text(infra_env, "cpu_architecture"),
    )


def _load(text: bytes | str, what: str) -> Any:  # noqa: ANN401 - JSON is any of six types
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    # Not in an except block: the decoder's error holds the whole text, and would be the context of this one.
    raise upstream_error(f"{what} is not JSON")


def _text(infra_env: dict[str, object], name: str) -> str | None:
    """Return a string; None if it is absent, null or, as Go writes an unset one, empty."""
    value = infra_env.get(name, "")
    if value is not None and not isinstance(value, str):
        raise upstream_error(f"{name} of the infra-env is not a string")
    return value or None


def _kernel_arguments(text: str | None) -> tuple[KernelArgument, ...]:
    operations = _load(text or "null", "kernel_arguments of the infra-env")
    if operations is None:
        return ()
    if not isinstance(operations, list):
        raise upstream_error("kernel_arguments of the infra-env is not a list")
    return tuple(_kernel_argument(operation, number) for number, operation in enumerate(operations, 1))


def _kernel_argument(operation: object, number: int) -> KernelArgument:
    match operation:
        case {"operation": "append" | "replace" | "delete" as name, "value": str(value)}:
            return KernelArgument(Operation(name), value)
    raise upstream_error(f"kernel argument {number} of the infra-env is not an operation with a value")
