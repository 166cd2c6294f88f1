"""Infra-envs of the stand-in: parsed strictly from JSON, rendered as assisted-service does."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs

from image_service.core.errors import ImageServiceError, InvalidParameter
from image_service.core.families.coreos.ignition import check_ignition
from image_service.core.families.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.core.formats.initrd import is_initrd
from image_service.core.images.reference import Kind
from image_service.server.management.messages import parse_json_object

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

MAX_OVERRIDE_BYTES = 4 * 1024 * 1024
MAX_RAMDISK_BYTES = 8 * 1024 * 1024
_MAX_KERNEL_ARGUMENTS = 64
_MAX_ARGUMENT_CHARACTERS = 4096
_MAX_KEYFILES = 64
_MAX_KEYFILE_CHARACTERS = 64 * 1024
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")  # as it stands in a URL's path
_KEYFILE = re.compile(r"[0-9A-Za-z_][0-9A-Za-z._@-]{0,127}")  # a file's name, not hidden, without slashes
ARCHITECTURES = {name: name for name in ("x86_64", "aarch64", "ppc64le", "s390x")} | {"arm64": "aarch64"}
_OPERATIONS = {operation.value: operation for operation in Operation}


@attrs.frozen(kw_only=True)
class StandaloneInfraEnv:
    """An infra-env.

    Args:
        id: lower-case UUID.
        name: for people.
        openshift_version: of the base image.
        cpu_architecture: of the base image.
        image_type: of the image.
        ignition_config_override: JSON, merged into the discovery config.
        kernel_arguments: operations on those of the image.
        network_keyfiles: NetworkManager keyfiles by file name.
        ramdisk: a compressed archive, instead of one of the keyfiles; None: there is none.
        created_at: UTC, whole seconds.
        updated_at: same; later after every change.
    """

    id: str
    name: str
    openshift_version: str
    cpu_architecture: str = "x86_64"
    image_type: Kind = Kind.FULL_ISO
    ignition_config_override: str | None = attrs.field(default=None, repr=False)
    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(default=(), repr=False)
    network_keyfiles: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    ramdisk: bytes | None = attrs.field(default=None, repr=False)
    created_at: datetime
    updated_at: datetime

    @classmethod
    def register(
        cls, fields: Mapping[str, Any], now: datetime, infra_env_id: str | None = None
    ) -> StandaloneInfraEnv:
        """Return a new infra-env with the attributes of `parse_fields`, by default with a random id."""
        moment = now.replace(microsecond=0)
        return cls(id=infra_env_id or str(uuid4()), created_at=moment, updated_at=moment, **fields)

    def to_json(self, download_url: str) -> dict[str, object]:
        """Return the JSON object of assisted-service, with our ``network_keyfiles`` and ``ramdisk_set``."""
        document: dict[str, object] = {
            "kind": "InfraEnv",
            "id": self.id,
            "href": f"/api/assisted-install/v2/infra-envs/{self.id}",
            "name": self.name,
            "openshift_version": self.openshift_version,
            "cpu_architecture": self.cpu_architecture,
            "type": self.image_type.value,
            "ignition_config_override": self.ignition_config_override,
            "network_keyfiles": dict(self.network_keyfiles),
            "ramdisk_set": self.ramdisk is not None,
            "download_url": download_url,
            "created_at": _timestamp(self.created_at),
            "updated_at": _timestamp(self.updated_at),
        }
        if self.kernel_arguments:
            operations = [
                {"operation": argument.operation.value, "value": argument.value}
                for argument in self.kernel_arguments
            ]
            document["kernel_arguments"] = json.dumps(operations)  # a string: assisted-service's own oddity
        return document


def parse_fields(body: bytes, *, registering: bool) -> dict[str, Any]:
    """Parse the attributes of an infra-env that a client sets.

    Args:
        body: a JSON object.
        registering: the required fields must be present.

    Raises:
        InvalidRequest: not a JSON object.
        InvalidParameter: names every field that is unknown, missing or wrong.
    """
    document = parse_json_object(body)
    missing = [name for name in _REQUIRED if registering and name not in document]
    faults = [f"{name!a} is not a field" for name in document.keys() - _FIELDS.keys() - _IGNORED]
    faults += [f"{name} is required" for name in missing]
    fields: dict[str, Any] = {}
    for name in _FIELDS.keys() & document.keys():
        try:
            fields[name] = _FIELDS[name](document[name])
        except ValueError as error:
            faults.append(f"{name} {error}")
    if faults:
        raise InvalidParameter("; ".join(sorted(faults)))
    return fields


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise ValueError(f"must be {meaning}")
        return value

    return parse


def _architecture(value: object) -> str:
    if not isinstance(value, str) or value not in ARCHITECTURES:
        raise ValueError(f"must be one of {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[value]


def _image_type(value: object) -> Kind:
    for kind in (Kind.FULL_ISO, Kind.MINIMAL_ISO):
        if value == kind.value:
            return kind
    raise ValueError("must be full-iso or minimal-iso")


def _override(value: object) -> str | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str):
        raise ValueError("must be a string that holds an Ignition config")  # noqa: TRY004 - one type for all faults
    config = value.encode()
    if len(config) > MAX_OVERRIDE_BYTES:
        raise ValueError(f"has {len(config)} bytes, more than {MAX_OVERRIDE_BYTES}")
    try:
        check_ignition(config)
    except ImageServiceError:
        raise ValueError("must be an Ignition version 3 config") from None
    return value


def _kernel_arguments(value: object) -> tuple[KernelArgument, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_KERNEL_ARGUMENTS:
        raise ValueError(f"must be a list of at most {_MAX_KERNEL_ARGUMENTS} objects")
    return tuple(map(_kernel_argument, value))


def _kernel_argument(value: object) -> KernelArgument:
    match value:
        case {"operation": str(operation), "value": str(argument), **others} if not others:
            if operation not in _OPERATIONS or len(argument) > _MAX_ARGUMENT_CHARACTERS:
                message = f"must append, replace or delete at most {_MAX_ARGUMENT_CHARACTERS} characters each"
                raise ValueError(message)
            return _check_kernel_argument(KernelArgument(_OPERATIONS[operation], argument))
    raise ValueError("must be objects with the strings 'operation' and 'value'")


def _check_kernel_argument(argument: KernelArgument) -> KernelArgument:
    try:
        check_argument(argument)
    except ImageServiceError as error:
        raise ValueError(f"cannot be applied: {error.detail}") from None
    return argument


def _network_keyfiles(value: object) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_KEYFILES:
        raise ValueError(f"must be an object of at most {_MAX_KEYFILES} members")
    for name, text in value.items():
        if not _KEYFILE.fullmatch(name):
            raise ValueError("must have file names as member names")
        if not isinstance(text, str) or "\0" in text or len(text) > _MAX_KEYFILE_CHARACTERS:
            raise ValueError(f"must hold text of at most {_MAX_KEYFILE_CHARACTERS} characters each")
    return value


def _ramdisk(value: object) -> bytes | None:
    if value in (None, ""):
        return None
    try:
        content = base64.b64decode(value, validate=True) if isinstance(value, str) else b""
    except ValueError:
        content = b""
    if not is_initrd(content):
        raise ValueError("must be a string of base64 that holds an archive of gzip, xz, zstd or cpio")
    if len(content) > MAX_RAMDISK_BYTES:
        raise ValueError(f"has {len(content)} bytes, more than {MAX_RAMDISK_BYTES}")
    return content


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


_REQUIRED = ("name", "openshift_version")
# Every client of assisted-service sends it. No image contains it, so it is not stored.
_IGNORED = {"pull_secret"}
_FIELDS: dict[str, Callable[[object], object]] = {
    "name": _matching(_NAME, "1 to 128 printable characters"),
    "openshift_version": _matching(_VERSION, "a version such as 4.20"),
    "cpu_architecture": _architecture,
    "image_type": _image_type,
    "ignition_config_override": _override,
    "kernel_arguments": _kernel_arguments,
    "network_keyfiles": _network_keyfiles,
    "ramdisk": _ramdisk,
}
