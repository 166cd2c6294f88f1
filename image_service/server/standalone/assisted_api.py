"""The API of the stand-in: request values in, response values out, without HTTP.

    POST                  /api/assisted-install/v2/infra-envs           201
    GET                   /api/assisted-install/v2/infra-envs           200
    GET PATCH DELETE      …/infra-envs/{id}                             200 201 204
    POST                  …/infra-envs/{id}/copies                      201
    GET                   …/infra-envs/{id}/downloads/files             200
    GET                   …/infra-envs/{id}/downloads/minimal-initrd    200 204
    GET                   …/infra-envs/{id}/downloads/image-url         200
    GET                   /openapi.json                                 200

The statuses are assisted-service's, whose PATCH responds with 201 too.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
from twisted.logger import Logger

from image_service import __version__
from image_service.common.openapi.document import TEXT, ApiDescription, QueryParameter, object_schema
from image_service.core.errors import InvalidParameter, NotFound
from image_service.core.families.coreos.family import COREOS
from image_service.core.families.live.families import get_family
from image_service.core.images.live import check_config
from image_service.core.images.reference import ISOS, Kind
from image_service.server.assisted.responses import FAMILY_CONFIG_FIELD
from image_service.server.standalone.content import discovery_config, ramdisk
from image_service.server.standalone.image_urls import image_urls
from image_service.server.standalone.infra_env import INFRA_ENV_SCHEMAS, StandaloneInfraEnv, parse_fields
from image_service.server.web_api.messages import ApiResponse, json_response
from image_service.server.web_api.operations import (
    PROBLEM_TYPE,
    TOKEN_SCHEMES,
    ApiOperation,
    described_routes,
)
from image_service.server.web_api.router import ApiRouter

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import TypeAlias

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.openapi.document import Schemas
    from image_service.core.families.live.family import LiveFamily
    from image_service.server.standalone.store import InfraEnvStore
    from image_service.server.web_api.messages import ApiRequest

    FindFamily: TypeAlias = Callable[[str, str], Awaitable[str | None]]
    ValidateConfig: TypeAlias = Callable[[bytes, LiveFamily], Awaitable[None]]
    TranslateFields: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any]]]

_COLLECTION = "/api/assisted-install/v2/infra-envs"
_ID = "(?P<infra_env_id>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
_DOWNLOAD = re.compile(f"{_COLLECTION}/{_ID}(?:|/downloads/files|/downloads/minimal-initrd)")
_IGNITION_FILE = "discovery.ign"
_DESCRIPTION = ApiDescription(
    "image-service stand-in for assisted-service",
    __version__,
    "Registers infra-envs, in the form of assisted-service's API.",
    ("",),
    error_type=PROBLEM_TYPE,
    security_schemes=TOKEN_SCHEMES,
)
_SCHEMAS: Schemas = {
    **INFRA_ENV_SCHEMAS,
    "IgnitionConfig": {"type": "object"},
    "ImageUrl": object_schema(url=TEXT),
}
_OF_CONFIG = frozenset({"family_config", "openshift_version", "cpu_architecture"})
"""The fields on which it depends whether a family reads the config."""
_FILES = {Kind.FULL_ISO: "full.iso", Kind.MINIMAL_ISO: "minimal.iso"}


async def find_no_family(version: str, architecture: str) -> None:
    """Return None: no base image is known."""


def live_family(name: str | None) -> LiveFamily | None:
    """Return a family by its name; None: CoreOS, or it is not known."""
    return None if name in {None, COREOS} else get_family(name)


class InfraEnvApi:
    """The infra-envs and their downloads.

    Args:
        in_thread: calls the store in a thread.
        clock: seconds since 1970.
        image_service_base_url: returns the base URL of images, without a final slash.
        translate: returns the fields of `parse_fields` as `translate_fields` makes them.
        validate: refuses a config as `check_by_program` does.
        find_family: returns the name of the family of the base image that a version and an architecture
            name; None if it is not known.
    """

    collection = _COLLECTION
    _log = Logger()

    def __init__(  # noqa: PLR0913 - what it works with
        self,
        store: InfraEnvStore,
        in_thread: InThread,
        clock: Callable[[], float],
        image_service_base_url: Callable[[], str],
        *,
        translate: TranslateFields,
        validate: ValidateConfig,
        find_family: FindFamily = find_no_family,
    ) -> None:
        self._store = store
        self._in_thread = in_thread
        self._clock = clock
        self._image_service_base_url = image_service_base_url
        self._translate = translate
        self._validate = validate
        self._find_family = find_family
        collection = {"GET": self._list, "POST": self._register}
        operations = (*self.operations, *self._downloads())
        described = described_routes(_DESCRIPTION, operations, _SCHEMAS)
        self._router = ApiRouter({**described, f"{_COLLECTION}/": collection})

    @property
    def operations(self) -> Sequence[ApiOperation]:
        """Those that list and change infra-envs."""
        one = f"{self.collection}/{{infra_env_id}}"
        return (
            ApiOperation(
                "GET", self.collection, "ListInfraEnvs", "list infra-envs", self._list, reply="InfraEnvs"
            ),
            ApiOperation(
                "POST",
                self.collection,
                "RegisterInfraEnv",
                "register an infra-env",
                self._register,
                status=201,
                body="NewInfraEnv",
                reply="InfraEnv",
            ),
            ApiOperation("GET", one, "GetInfraEnv", "show an infra-env", self._show, reply="InfraEnv"),
            ApiOperation(
                "PATCH",
                one,
                "UpdateInfraEnv",
                "change an infra-env",
                self._update,
                status=201,
                body="InfraEnvChanges",
                reply="InfraEnv",
            ),
            ApiOperation(
                "DELETE", one, "DeregisterInfraEnv", "remove an infra-env", self._deregister, status=204
            ),
            ApiOperation(
                "POST",
                f"{one}/copies",
                "CopyInfraEnv",
                "register an infra-env with the attributes of another one, except for those that are given",
                self._copy,
                status=201,
                body="InfraEnvChanges",
                reply="InfraEnv",
            ),
        )

    def _downloads(self) -> Sequence[ApiOperation]:
        one = f"{self.collection}/{{infra_env_id}}"
        return (
            ApiOperation(
                "GET",
                f"{one}/downloads/files",
                "DownloadInfraEnvFiles",
                "download the Ignition config, or the config of another family",
                self._file,
                reply="IgnitionConfig",
                content_types=("application/octet-stream",),
                query=(
                    QueryParameter("file_name", "which file", {"const": _IGNITION_FILE}, required=True),
                    QueryParameter(
                        "discovery_iso_type",
                        "kind of image; that of the infra-env",
                        {"enum": [iso.value for iso in ISOS]},
                    ),
                ),
            ),
            ApiOperation(
                "GET",
                f"{one}/downloads/minimal-initrd",
                "DownloadMinimalInitrd",
                "download the ramdisk, if there is one",
                self._minimal_initrd,
                other_statuses=(204,),
                content_types=("application/octet-stream",),
            ),
            ApiOperation(
                "GET",
                f"{one}/downloads/image-url",
                "GetInfraEnvDownloadURL",
                "show the URL of the image",
                self._image_url,
                reply="ImageUrl",
            ),
        )

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to an authenticated request, or raise an ImageServiceError."""
        return await self._router.respond(request)

    async def respond_to_service(self, request: ApiRequest) -> ApiResponse:
        """Return the response to image-service itself: an infra-env, its config or its ramdisk, by its id.

        Whoever knows the id could get these as an image, so no secret is needed; there is no list and no
        change.
        """
        if request.method != "GET" or not _DOWNLOAD.fullmatch(request.path):
            raise NotFound("this listener only has the downloads of an infra-env")
        return await self._router.respond(request)

    async def register(
        self, fields: Mapping[str, Any], infra_env_id: str | None = None
    ) -> StandaloneInfraEnv:
        """Register an infra-env with the attributes of `parse_fields`, by default under a random id."""
        return await self._add(StandaloneInfraEnv.register(fields, self._now(), infra_env_id))

    async def _add(self, infra_env: StandaloneInfraEnv) -> StandaloneInfraEnv:
        await self._in_thread(partial(self._store.add_infra_env, infra_env))
        self._log.info("registered infra-env {infra_env}", infra_env=infra_env.id)
        return infra_env

    def image_url(self, infra_env: StandaloneInfraEnv) -> str:
        """Return the URL of an infra-env's image."""
        version, architecture = infra_env.openshift_version, infra_env.cpu_architecture
        file = _FILES[infra_env.image_type]
        return f"{self._image_service_base_url()}/byid/{infra_env.id}/{version}/{architecture}/{file}"

    async def _register(self, request: ApiRequest) -> ApiResponse:
        return await self._created(await self._register_body(request.body))

    async def _register_body(self, body: bytes) -> StandaloneInfraEnv:
        fields = await self._parse_fields(body, registering=True)
        infra_env = StandaloneInfraEnv.register(fields, self._now())
        await self._check_config(infra_env, fields)
        return await self._add(infra_env)

    async def _copy(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        changes = await self._parse_fields(request.body, registering=False)
        original = await self._find_infra_env(infra_env_id)
        infra_env = original.copy(changes, self._now())
        await self._check_config(infra_env, changes)
        return await self._created(await self._add(infra_env))

    async def _created(self, infra_env: StandaloneInfraEnv) -> ApiResponse:
        location = ("Location", f"{self.collection}/{infra_env.id}")
        return json_response(await self._describe_one(infra_env), 201, (location,))

    async def _list(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response(await self._describe_all())

    async def _describe_all(self) -> Sequence[object]:
        infra_envs = await self._in_thread(self._store.list_infra_envs)
        bases = {(each.openshift_version, each.cpu_architecture) for each in infra_envs}
        families = {base: live_family(await self._find_family(*base)) for base in sorted(bases)}
        return [
            self._describe(each, families[each.openshift_version, each.cpu_architecture])
            for each in infra_envs
        ]

    async def _describe_one(self, infra_env: StandaloneInfraEnv) -> object:
        name = await self._find_family(infra_env.openshift_version, infra_env.cpu_architecture)
        return self._describe(infra_env, live_family(name))

    async def _show(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        del request  # same
        return json_response(await self._describe_one(await self._find_infra_env(infra_env_id)))

    async def _update(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        fields = await self._parse_fields(request.body, registering=False)
        infra_env = await self._find_infra_env(infra_env_id)
        await self._check_config(attrs.evolve(infra_env, **fields), fields)
        update = partial(self._store.update_infra_env, infra_env_id, fields, self._now())
        infra_env = await self._in_thread(update)
        self._log.info("updated infra-env {infra_env}", infra_env=infra_env_id, fields=sorted(fields))
        return json_response(await self._describe_one(infra_env), 201)

    async def _deregister(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        del request  # same
        await self._in_thread(partial(self._store.remove_infra_env, infra_env_id))
        self._log.info("deregistered infra-env {infra_env}", infra_env=infra_env_id)
        return ApiResponse(204)

    async def _file(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        name = request.query.get("file_name")
        if name != _IGNITION_FILE:
            raise InvalidParameter(f"file_name must be {_IGNITION_FILE}")
        infra_env = await self._find_infra_env(infra_env_id)
        iso_type = request.query.get("discovery_iso_type", infra_env.image_type.value)
        kind = next((iso for iso in ISOS if iso.value == iso_type), None)
        if kind is None:
            raise InvalidParameter(f"discovery_iso_type must be {', '.join(iso.value for iso in ISOS)}")
        if infra_env.family_config is None:
            return ApiResponse(200, discovery_config(infra_env, kind), modified=infra_env.updated_at)
        return ApiResponse(
            200,
            infra_env.family_config,
            "application/octet-stream",
            modified=infra_env.updated_at,
            fields=((FAMILY_CONFIG_FIELD, "family"),),
        )

    async def _minimal_initrd(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        del request  # same
        infra_env = await self._find_infra_env(infra_env_id)
        content = ramdisk(infra_env)
        if content is None:
            return ApiResponse(204)
        return ApiResponse(200, content, "application/octet-stream", modified=infra_env.updated_at)

    async def _image_url(self, request: ApiRequest, infra_env_id: str) -> ApiResponse:
        del request  # same
        return json_response({"url": self.image_url(await self._find_infra_env(infra_env_id))})

    async def _check_config(self, infra_env: StandaloneInfraEnv, changes: Mapping[str, Any]) -> None:
        """Refuse a new config, or an old one for a new base image, that its family would not read.

        While the family is not known the config is checked when an image is requested.
        """
        config = infra_env.family_config
        if not config or _OF_CONFIG.isdisjoint(changes):
            return
        version, architecture = infra_env.openshift_version, infra_env.cpu_architecture
        name = await self._find_family(version, architecture)
        if name is not None:
            image = f"the base image {version} ({architecture})"
            family = live_family(name)
            await self._in_thread(partial(check_config, config, family, image))
            if family is not None:
                await self._validate(config, family)

    async def _find_infra_env(self, infra_env_id: str) -> StandaloneInfraEnv:
        return await self._in_thread(partial(self._store.find_infra_env, infra_env_id))

    async def _parse_fields(self, body: bytes, *, registering: bool) -> dict[str, Any]:
        """Parse in a thread: a JSON tree of some MiB takes seconds."""
        fields = await self._in_thread(partial(parse_fields, body, registering=registering))
        return await self._translate(fields)

    def _describe(self, infra_env: StandaloneInfraEnv, family: LiveFamily | None) -> object:
        return infra_env.describe(self.image_url(infra_env), self._image_urls(infra_env, family))

    def _image_urls(self, infra_env: StandaloneInfraEnv, family: LiveFamily | None) -> Mapping[str, str]:
        return image_urls(self._image_service_base_url(), infra_env, family)

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)
