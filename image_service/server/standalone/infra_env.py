"""Infra-envs of the stand-in: parsed strictly from JSON, rendered as assisted-service does."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import attrs

from image_service.common.openapi.bodies import Keywords, Time, body, schemas_of
from image_service.common.openapi.document import TEXT, TEXT_OR_NULL, list_schema, object_schema
from image_service.core.errors import FormatError, ImageServiceError, InvalidParameter, KeyfileInvalid
from image_service.core.families.coreos.build_names import (
    ARCHITECTURE_FAULT,
    ARCHITECTURES,
    SYNONYMS,
    is_architecture,
    rpm_architecture,
)
from image_service.core.families.coreos.ignition import check_ignition, is_butane
from image_service.core.families.coreos.kargs import KernelArgument, Operation, check_argument
from image_service.core.families.coreos.network_keyfiles import check_keyfile_name
from image_service.core.formats.initrd_stream import check_ramdisk
from image_service.core.images.reference import Kind
from image_service.server.standalone.ssh_keys import parse_ssh_keys
from image_service.server.standalone.translation.butane import MAX_BUTANE_BYTES, ButaneConfig
from image_service.server.standalone.translation.hosts import (
    STATIC_NETWORK_SCHEMA,
    parse_static_network,
)
from image_service.server.web_api.messages import parse_json_object
from image_service.settings.upstream import MAX_IGNITION_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from image_service.common.openapi.bodies import Json, Schemas

MAX_OVERRIDE_BYTES = MAX_IGNITION_BYTES
MAX_RAMDISK_BYTES = 8 * 1024 * 1024
_MAX_KERNEL_ARGUMENTS = 64
_MAX_ARGUMENT_CHARACTERS = 4096
_MAX_KEYFILES = 64
_MAX_KEYFILE_CHARACTERS = 64 * 1024
_NAME = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_MAX_HOSTNAME = 64  # of Linux
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+_-]{0,63}")  # as it stands in a URL's path
_OPERATIONS = {operation.value: operation for operation in Operation}
_IMAGE_TYPE: Json = {"enum": [Kind.FULL_ISO.value, Kind.MINIMAL_ISO.value]}


@body()
class InfraEnvBody:
    """An infra-env in a reply."""

    kind: Annotated[str, Keywords(const="InfraEnv")]
    id: Annotated[str, Keywords(format="uuid")]
    href: str
    name: str
    openshift_version: str
    cpu_architecture: str
    type: Annotated[str, Keywords(**_IMAGE_TYPE)]
    ignition_config_override: str | None = attrs.field(repr=False)
    ssh_authorized_key: str | None = attrs.field(repr=False)
    hostname: str | None
    network_keyfiles: Mapping[str, str] = attrs.field(repr=False)
    # A string: assisted-service's own oddity.
    static_network_config: Annotated[str | None, Keywords(contentMediaType="application/json")] = attrs.field(
        repr=False
    )
    family_config_set: bool
    ramdisk_set: bool
    download_url: str
    image_urls: Mapping[str, str]
    created_at: Time
    updated_at: Time
    # A string, too.
    kernel_arguments: Annotated[str | None, Keywords(contentMediaType="application/json")] = attrs.field(
        default=None, repr=False
    )


@attrs.frozen(kw_only=True)
class StandaloneInfraEnv:
    """An infra-env.

    Args:
        id: lower-case UUID.
        name: for people.
        ignition_config_override: JSON, merged into the discovery config.
        ssh_authorized_key: public keys of the user core, one a line; None: there is none.
        hostname: of the machine; None: it is not set.
        family_config: the config for a base image of another family than CoreOS; None: there is none.
        kernel_arguments: operations on those of the image.
        network_keyfiles: NetworkManager keyfiles by file name.
        static_network_config: JSON, as assisted-service has it in its replies; None: there is none.
        static_network_files: what machines get of it, by path, see `convert_networks`; None: nothing.
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
    ssh_authorized_key: str | None = attrs.field(default=None, repr=False)
    hostname: str | None = None
    family_config: bytes | None = attrs.field(default=None, repr=False)
    kernel_arguments: tuple[KernelArgument, ...] = attrs.field(default=(), repr=False)
    network_keyfiles: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    static_network_config: str | None = attrs.field(default=None, repr=False)
    static_network_files: Mapping[str, str] | None = attrs.field(default=None, repr=False)
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

    def copy(self, changes: Mapping[str, Any], now: datetime) -> StandaloneInfraEnv:
        """Return a new one with the same attributes except for `changes`."""
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(type(self))}
        for own in ("id", "created_at", "updated_at"):
            del fields[own]
        return self.register({**fields, **changes}, now)

    def describe(self, download_url: str, image_urls: Mapping[str, str]) -> InfraEnvBody:
        """Return it as assisted-service does, with our ``network_keyfiles`` and ``ramdisk_set``."""
        operations = [
            {"operation": argument.operation.value, "value": argument.value}
            for argument in self.kernel_arguments
        ]
        return InfraEnvBody(
            kind="InfraEnv",
            id=self.id,
            href=f"/api/assisted-install/v2/infra-envs/{self.id}",
            name=self.name,
            openshift_version=self.openshift_version,
            cpu_architecture=self.cpu_architecture,
            type=self.image_type.value,
            ignition_config_override=self.ignition_config_override,
            ssh_authorized_key=self.ssh_authorized_key,
            hostname=self.hostname,
            network_keyfiles=self.network_keyfiles,
            static_network_config=self.static_network_config,
            family_config_set=self.family_config is not None,
            ramdisk_set=self.ramdisk is not None,
            download_url=download_url,
            image_urls=image_urls,
            created_at=_timestamp(self.created_at),
            updated_at=_timestamp(self.updated_at),
            kernel_arguments=json.dumps(operations) if operations else None,
        )


def parse_fields(body: bytes, *, registering: bool) -> dict[str, Any]:
    """Parse the attributes of an infra-env that a client sets; `translate_fields` makes them complete.

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
            fields[name] = _FIELDS[name][0](document[name])
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
    if not isinstance(value, str) or not is_architecture(value):
        raise ValueError(ARCHITECTURE_FAULT)
    return rpm_architecture(value)


def _image_type(value: object) -> Kind:
    for kind in (Kind.FULL_ISO, Kind.MINIMAL_ISO):
        if value == kind.value:
            return kind
    raise ValueError("must be full-iso or minimal-iso")


def parse_override(value: object) -> str | ButaneConfig | None:
    """Return a config for CoreOS; raises ValueError, which says what it must be."""
    if value in (None, ""):
        return None
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise ValueError("must be an Ignition config, as an object or as a string that holds one")  # noqa: TRY004 - one type for all faults
    config = value.encode()
    if is_butane(config):
        if len(config) > MAX_BUTANE_BYTES:
            raise ValueError(f"has {len(config)} bytes of Butane, more than {MAX_BUTANE_BYTES}")
        return ButaneConfig(value)
    if len(config) > MAX_OVERRIDE_BYTES:
        raise ValueError(f"has {len(config)} bytes, more than {MAX_OVERRIDE_BYTES}")
    try:
        check_ignition(config)
    except ImageServiceError as error:
        raise ValueError(f"must be an Ignition version 3 config: {error.detail}") from None
    return value


def _hostname(value: object) -> str | None:
    if value in (None, ""):
        return None
    if not isinstance(value, str) or len(value) > _MAX_HOSTNAME or not _HOSTNAME.fullmatch(value):
        raise ValueError(
            f"must be at most {_MAX_HOSTNAME} letters, digits and hyphens, in labels of 1 to 63 between dots"
        )
    return value


def _family_config(value: object) -> bytes | None:
    """Return a config of text, or of ``{"base64": text}``."""
    match value:
        case None:
            return None
        case str():
            config = value.encode()
        case {"base64": str(encoded), **others} if not others:
            try:
                config = base64.b64decode(encoded, validate=True)
            except ValueError:
                raise ValueError("must have base64 in its member base64") from None
        case _:
            raise ValueError("must be a string, or an object with the string base64")
    if len(config) > MAX_OVERRIDE_BYTES:
        raise ValueError(f"has {len(config)} bytes, more than {MAX_OVERRIDE_BYTES}")
    return config


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
        try:
            check_keyfile_name(name)
        except KeyfileInvalid:
            raise ValueError("must have file names as member names, such as eth0.nmconnection") from None
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
    if len(content) > MAX_RAMDISK_BYTES:
        raise ValueError(f"has {len(content)} bytes, more than {MAX_RAMDISK_BYTES}")
    try:
        check_ramdisk(content, "the content", time.monotonic)
    except FormatError as error:
        raise ValueError(
            "must be a string of base64 that holds an archive of gzip, xz, zstd or cpio, which the kernel"
            f" unpacks: {error.detail}"
        ) from None
    return content


def _timestamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


_REQUIRED = ("name", "openshift_version")
# Every client of assisted-service sends it. No image contains it, so it is not stored.
_IGNORED = {"pull_secret"}
_KERNEL_ARGUMENT = object_schema(
    operation={"enum": list(_OPERATIONS)}, value={"type": "string", "minLength": 1}
)
# The parser of each field, and its schema, which does not say all that is checked.
_FIELDS: dict[str, tuple[Callable[[object], object], Json]] = {
    "name": (
        _matching(_NAME, "1 to 128 printable characters"),
        {"type": "string", "minLength": 1, "maxLength": 128},
    ),
    "openshift_version": (
        _matching(_VERSION, "a version such as 4.20"),
        {"type": "string", "minLength": 1, "maxLength": 64},
    ),
    "cpu_architecture": (_architecture, {"enum": [*ARCHITECTURES, *SYNONYMS]}),
    "image_type": (_image_type, _IMAGE_TYPE),
    "ignition_config_override": (parse_override, {"anyOf": [TEXT_OR_NULL, {"type": "object"}]}),
    "ssh_authorized_key": (parse_ssh_keys, TEXT_OR_NULL),
    "hostname": (_hostname, {**TEXT_OR_NULL, "maxLength": _MAX_HOSTNAME}),
    "family_config": (
        _family_config,
        {"anyOf": [TEXT_OR_NULL, object_schema(base64={**TEXT, "contentEncoding": "base64"})]},
    ),
    "kernel_arguments": (_kernel_arguments, {"type": ["array", "null"], "items": _KERNEL_ARGUMENT}),
    "static_network_config": (parse_static_network, STATIC_NETWORK_SCHEMA),
    "network_keyfiles": (_network_keyfiles, {"type": ["object", "null"], "additionalProperties": TEXT}),
    "ramdisk": (_ramdisk, {**TEXT_OR_NULL, "contentEncoding": "base64"}),
}
_CHANGES = object_schema(
    **{name: schema for name, (_, schema) in _FIELDS.items()},
    pull_secret={},
)
CHANGE_SCHEMAS: Schemas = {
    "NewInfraEnv": {**_CHANGES, "required": list(_REQUIRED)},
    "InfraEnvChanges": {**_CHANGES, "required": []},
}
"""Of the requests."""
INFRA_ENV_SCHEMAS: Schemas = {
    **CHANGE_SCHEMAS,
    "InfraEnvs": list_schema("InfraEnv"),
    **schemas_of(InfraEnvBody),
}
"""Of the requests and replies."""
