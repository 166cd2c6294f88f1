"""The infra-envs on the administrative listener, for its page: without their configs, keys and networks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import attrs

from image_service.common.openapi.bodies import Count, Keywords, Time, body, schemas_of
from image_service.common.openapi.document import (
    COUNT,
    TEXT,
    TEXT_OR_NULL,
    list_schema,
    object_schema,
    reference,
)
from image_service.core.errors import ConfigInvalid, ImageServiceError, InvalidParameter, Unprocessable
from image_service.core.families.coreos.build_names import rpm_architecture
from image_service.core.families.coreos.ignition import check_ignition, is_butane
from image_service.core.families.live.others import IGNITION_CONFIG
from image_service.core.images.live import check_config
from image_service.core.images.reference import DEFAULT_ARCHITECTURE
from image_service.server.admin.infra_envs_api import INFRA_ENVS_PATH
from image_service.server.standalone.assisted_api import InfraEnvApi, live_family
from image_service.server.standalone.infra_env import CHANGE_SCHEMAS, MAX_OVERRIDE_BYTES, parse_override
from image_service.server.standalone.tables import MAX_TABLE_CHARACTERS, parse_table
from image_service.server.standalone.translation.butane import BUTANE, MAX_BUTANE_BYTES
from image_service.server.standalone.translation.hosts import MAX_TEXT_CHARACTERS, parse_static_network
from image_service.server.web_api.messages import json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.openapi.document import Schemas
    from image_service.core.families.live.family import LiveFamily
    from image_service.server.standalone.infra_env import StandaloneInfraEnv
    from image_service.server.standalone.tables import TableRow
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

_CHECKS = "/api/v1/config-checks"
_CHECKED = ("config", "static_network_config", "table")
_CHECK_FIELDS = {*_CHECKED, "openshift_version", "cpu_architecture"}


@body()
class KernelArgumentBody:
    """An operation on kernel arguments."""

    operation: str
    value: str


@body()
class InfraEnvSummary:
    """An infra-env without what may be secret."""

    id: Annotated[str, Keywords(format="uuid")]
    name: str
    openshift_version: str
    cpu_architecture: str
    hostname: str | None
    kernel_arguments: tuple[KernelArgumentBody, ...] = attrs.field(repr=False)
    config_set: bool
    ssh_keys: Count
    keyfiles: Count
    static_networks: Count
    image_urls: Mapping[str, str]
    updated_at: Time


class InfraEnvOperations(InfraEnvApi):
    """The operations of the page. See `AdminApi`."""

    collection = INFRA_ENVS_PATH

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """Those on infra-envs, and the check of a config."""
        check = ApiOperation(
            "POST",
            _CHECKS,
            "checkConfig",
            "check a config, by the family of a base image if that is given and known, else as Ignition; or a"
            " static network, or a table",
            self._check,
            body="Config",
            reply="Check",
        )
        register_table = ApiOperation(
            "POST",
            "/api/v1/infra-env-tables",
            "registerTable",
            "register an infra-env for each line of a table in CSV",
            self._register_table,
            body="Table",
            reply="TableResults",
        )
        return (*super().operations, check, register_table)

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        summaries = schemas_of(InfraEnvSummary)
        return {
            **CHANGE_SCHEMAS,
            **{name: schema for name, schema in summaries.items() if name != "InfraEnvSummary"},
            "InfraEnv": summaries["InfraEnvSummary"],
            "InfraEnvs": object_schema(infra_envs=list_schema("InfraEnv"), made_at=TEXT_OR_NULL),
            "Config": {
                **object_schema(**dict.fromkeys(sorted(_CHECK_FIELDS), TEXT)),
                "required": [],
                "oneOf": [{"required": [name]} for name in _CHECKED],
            },
            "Table": {
                **object_schema(
                    table=TEXT,
                    files={"type": "object", "additionalProperties": TEXT},
                    common=CHANGE_SCHEMAS["InfraEnvChanges"],
                ),
                "required": ["table"],
            },
            "TableResults": object_schema(rows=list_schema("TableResult")),
            "TableResult": object_schema(
                line=COUNT,
                name=TEXT_OR_NULL,
                mac=TEXT_OR_NULL,
                fault=TEXT_OR_NULL,
                infra_env={"oneOf": [reference("InfraEnv"), {"type": "null"}]},
            ),
            "Check": object_schema(
                fault=TEXT_OR_NULL, language=TEXT, size={"type": "integer"}, max_size={"type": "integer"}
            ),
        }

    async def _list(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response({"infra_envs": await self._describe_all(), "made_at": None})

    async def _check(self, request: ApiRequest) -> ApiResponse:
        document = await self._in_thread(partial(_parse_check, request.body))
        if "config" not in document:
            return json_response(await self._in_thread(partial(_check_other, document)))
        version, architecture = document.get("openshift_version"), document.get("cpu_architecture")
        family = None
        if version is not None:
            architecture = rpm_architecture(architecture or DEFAULT_ARCHITECTURE)
            family = live_family(await self._find_family(version, architecture))
        config = document["config"].encode()
        if family is None and await self._in_thread(partial(is_butane, config)):
            return json_response(await self._check_butane(document["config"], len(config)))
        reply = await self._in_thread(partial(_find_fault, config, family))
        if family is not None and reply["fault"] is None:
            try:
                await self._validate(config, family)
            except ConfigInvalid as error:
                reply = {**reply, "fault": error.detail}
        return json_response(reply)

    async def _check_butane(self, config: str, size: int) -> Mapping[str, object]:
        fault = None
        try:
            override = await self._in_thread(partial(parse_override, config))
            await self._translate({"ignition_config_override": override})
        except InvalidParameter as error:
            fault = error.detail
        except ValueError as error:
            fault = f"the config {error}"
        return _check_reply(fault, BUTANE, size, MAX_BUTANE_BYTES)

    async def _register_table(self, request: ApiRequest) -> ApiResponse:
        table = await self._in_thread(partial(_parse_table_request, request.body))
        return json_response({"rows": [await self._register_row(table, row) for row in table.rows]})

    async def _register_row(self, table: TableRequest, row: TableRow) -> Mapping[str, object]:
        fault, described = None, None
        try:
            infra_env = await self._register_body(await self._in_thread(partial(table.body_of, row)))
            described = await self._describe_one(infra_env)
        except ImageServiceError as error:
            fault = error.detail
        return {"line": row.line, "name": row.name, "mac": row.mac, "fault": fault, "infra_env": described}

    def _describe(self, infra_env: StandaloneInfraEnv, family: LiveFamily | None) -> InfraEnvSummary:
        keys = infra_env.ssh_authorized_key
        return InfraEnvSummary(
            id=infra_env.id,
            name=infra_env.name,
            openshift_version=infra_env.openshift_version,
            cpu_architecture=infra_env.cpu_architecture,
            hostname=infra_env.hostname,
            kernel_arguments=tuple(
                KernelArgumentBody(operation=argument.operation.value, value=argument.value)
                for argument in infra_env.kernel_arguments
            ),
            config_set=infra_env.ignition_config_override is not None or infra_env.family_config is not None,
            ssh_keys=keys.count("\n") + 1 if keys else 0,
            keyfiles=len(infra_env.network_keyfiles),
            static_networks=len(json.loads(infra_env.static_network_config or "[]")),
            image_urls=self._image_urls(infra_env, family),
            updated_at=infra_env.updated_at.isoformat(),
        )


@attrs.frozen
class TableRequest:
    """The request to register the rows of a table.

    Args:
        files: that rows name: texts, by names without directories.
        common: fields of all rows.
    """

    rows: Sequence[TableRow]
    files: Mapping[str, str] = attrs.field(repr=False)
    common: Mapping[str, Any] = attrs.field(repr=False)

    def body_of(self, row: TableRow) -> bytes:
        """Return the body of the request that registers a row; raises InvalidParameter."""
        return json.dumps(row.fields(self.common, self._read)).encode()

    def _read(self, name: str) -> bytes:
        own = name.rpartition("/")[2]
        if own not in self.files:
            raise InvalidParameter(f"the file {own[:100]!a} is not among those that were given")
        return self.files[own].encode()


def _parse_table_request(content: bytes) -> TableRequest:
    match parse_json_object(content):
        case {"table": str(text), **others} if others.keys() <= {"files", "common"}:
            files, common = others.get("files", {}), others.get("common", {})
            if isinstance(common, dict) and isinstance(files, dict):
                is_text = all(isinstance(each, str) for each in files.values())
                if is_text and isinstance(common.get("kernel_arguments") or [], list):
                    return TableRequest(parse_table(text), files, common)
    raise InvalidParameter(
        "table must be a string, files an object of strings, and common an object, in which kernel_arguments"
        " is a list"
    )


def _parse_check(content: bytes) -> dict[str, str]:
    document = parse_json_object(content)
    is_text = all(isinstance(value, str) for value in document.values())
    if not is_text or len(document.keys() & set(_CHECKED)) != 1 or document.keys() - _CHECK_FIELDS:
        raise InvalidParameter(
            f"there must be one of {', '.join(_CHECKED)}, a string; and beside it only the strings"
            " openshift_version and cpu_architecture"
        )
    return document


def _check_other(document: Mapping[str, str]) -> Mapping[str, object]:
    """Return what is wrong with a static network or a table."""
    fault = None
    if (table := document.get("table")) is not None:
        try:
            parse_table(table)
        except InvalidParameter as error:
            fault = error.detail
        return _check_reply(fault, "table", len(table), MAX_TABLE_CHARACTERS)
    network = document["static_network_config"]
    try:
        parse_static_network(network)
    except ValueError as error:
        fault = f"it {error}"
    return _check_reply(fault, "static network", len(network), MAX_TEXT_CHARACTERS)


def _find_fault(config: bytes, family: LiveFamily | None) -> Mapping[str, object]:
    """Return what is wrong with a config; no fault quotes it."""
    fault = None
    if len(config) > MAX_OVERRIDE_BYTES:
        fault = f"the config has {len(config)} bytes, more than {MAX_OVERRIDE_BYTES}"
    else:
        try:
            if family is None:
                check_ignition(config)
            else:
                check_config(config, family, "the base image")
        except Unprocessable as error:
            fault = error.detail
    language = IGNITION_CONFIG if family is None else family.config
    return _check_reply(fault, language, len(config), MAX_OVERRIDE_BYTES)


def _check_reply(fault: str | None, language: str, size: int, max_size: int) -> Mapping[str, object]:
    return {"fault": fault, "language": language, "size": size, "max_size": max_size}
