"""Payloads of the repository: customizations, and the fields of infra-envs that describe an image.

A customization:

offset  bytes
     0      1   format, 1
     1      4   length of the head, big-endian
     5          head: a JSON object with kernel_arguments, a list of pairs; modified, a date of ISO 8601
                or null; ignition_bytes; ramdisk_bytes, null where there is no ramdisk; of a minimal
                ISO base_url, which earlier releases neither write nor read
                Ignition config, as it is
                ramdisk, as it is, to the end

An infra-env: a JSON list of OpenShift version, kind and architecture, each null if it names none.
"""

from __future__ import annotations

import json
import struct
from datetime import datetime
from typing import Any

from image_service.core.errors import SnapshotUnreadable
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.customization import Customization
from image_service.core.images.reference import Kind
from image_service.server.assisted.responses import InfraEnv

_FORMAT = 1
_PREFIX = struct.Struct(">BI")


def encode_customization(customization: Customization) -> bytes:
    """Encode a customization."""
    modified, ramdisk = customization.modified, customization.ramdisk
    arguments = [(argument.operation.value, argument.value) for argument in customization.kernel_arguments]
    head = json.dumps(
        {
            "kernel_arguments": arguments,
            "modified": None if modified is None else modified.isoformat(),
            "ignition_bytes": len(customization.ignition),
            "ramdisk_bytes": None if ramdisk is None else len(ramdisk),
            **({} if customization.base_url is None else {"base_url": customization.base_url}),
        }
    ).encode()
    return b"".join((_PREFIX.pack(_FORMAT, len(head)), head, customization.ignition, ramdisk or b""))


def decode_customization(payload: bytes) -> Customization:
    """Decode a customization.

    Raises:
        SnapshotUnreadable: another release has written it, or something else.
    """
    try:
        return _decode(payload)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # the error would be the context of the next, and a decoder's holds the text
    raise SnapshotUnreadable(f"a stored snapshot of {len(payload)} bytes is not in this release's format")


def _decode(payload: bytes) -> Customization:
    number, head_bytes = _PREFIX.unpack_from(payload)
    if number != _FORMAT:
        raise ValueError(number)
    ignition_at = _PREFIX.size + head_bytes
    head: dict[str, Any] = json.loads(payload[_PREFIX.size : ignition_at])
    ramdisk_at = ignition_at + head["ignition_bytes"]
    if len(payload) != ramdisk_at + (head["ramdisk_bytes"] or 0):
        raise ValueError(len(payload))
    return Customization(
        ignition=payload[ignition_at:ramdisk_at],
        kernel_arguments=tuple(
            KernelArgument(Operation(operation), value) for operation, value in head["kernel_arguments"]
        ),
        modified=None if head["modified"] is None else datetime.fromisoformat(head["modified"]),
        ramdisk=None if head["ramdisk_bytes"] is None else payload[ramdisk_at:],
        base_url=head.get("base_url"),
    )


def encode_infra_env(infra_env: InfraEnv) -> bytes:
    """Encode the version, kind and architecture of an infra-env; its kernel arguments are in a snapshot."""
    kind = infra_env.kind.value if infra_env.kind else None
    return json.dumps([infra_env.openshift_version, kind, infra_env.architecture]).encode()


def decode_infra_env(payload: bytes) -> InfraEnv:
    """Decode what ``encode_infra_env`` returned.

    Raises:
        SnapshotUnreadable: another release has written it.
    """
    try:
        version, kind, architecture = json.loads(payload)
        return InfraEnv((), version, Kind(kind) if kind else None, architecture)
    except (TypeError, ValueError):
        raise SnapshotUnreadable("a stored infra-env is not in this release's format") from None
