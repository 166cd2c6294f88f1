"""The infra-envs on the administrative listener, for its page: without their configs, keys and networks."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import attrs

from image_service.common.openapi.bodies import Count, Keywords, Time, body, schemas_of
from image_service.common.openapi.document import TEXT, TEXT_OR_NULL, list_schema, object_schema
from image_service.core.errors import IgnitionInvalid, InvalidParameter
from image_service.core.families.coreos.ignition import check_ignition
from image_service.server.admin.infra_envs_api import INFRA_ENVS_PATH
from image_service.server.standalone.assisted_api import InfraEnvApi
from image_service.server.standalone.infra_env import CHANGE_SCHEMAS, MAX_OVERRIDE_BYTES
from image_service.server.web_api.messages import json_response, parse_json_object
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.common.openapi.document import Schemas
    from image_service.server.standalone.infra_env import StandaloneInfraEnv
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

_CHECKS = "/api/v1/config-checks"


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
            "check an Ignition config",
            self._check,
            body="Config",
            reply="Check",
        )
        return (*super().operations, check)

    @property
    def schemas(self) -> Schemas:
        """See `AdminApi`."""
        summaries = schemas_of(InfraEnvSummary)
        return {
            **CHANGE_SCHEMAS,
            **{name: schema for name, schema in summaries.items() if name != "InfraEnvSummary"},
            "InfraEnv": summaries["InfraEnvSummary"],
            "InfraEnvs": object_schema(infra_envs=list_schema("InfraEnv"), made_at=TEXT_OR_NULL),
            "Config": {**object_schema(config=TEXT), "required": ["config"]},
            "Check": object_schema(
                fault=TEXT_OR_NULL, size={"type": "integer"}, max_size={"type": "integer"}
            ),
        }

    async def _list(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response({"infra_envs": await self._describe_all(), "made_at": None})

    async def _check(self, request: ApiRequest) -> ApiResponse:
        return json_response(await self._in_thread(partial(_check_config, request.body)))

    def _describe(self, infra_env: StandaloneInfraEnv) -> InfraEnvSummary:
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
            image_urls=self._image_urls(infra_env),
            updated_at=infra_env.updated_at.isoformat(),
        )


def _check_config(content: bytes) -> dict[str, object]:
    """Return what is wrong with a config; no fault quotes it."""
    document = parse_json_object(content)
    config = document.get("config")
    if not isinstance(config, str) or len(document) > 1:
        raise InvalidParameter("config must be a string, and the only member")
    encoded = config.encode()
    fault = None
    if len(encoded) > MAX_OVERRIDE_BYTES:
        fault = f"the config has {len(encoded)} bytes, more than {MAX_OVERRIDE_BYTES}"
    else:
        try:
            check_ignition(encoded)
        except IgnitionInvalid as error:
            fault = error.detail
    return {"fault": fault, "size": len(encoded), "max_size": MAX_OVERRIDE_BYTES}
