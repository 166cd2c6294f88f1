"""The management API, as far from HTTP's wire as possible: a request value in, an answer value out.

    POST                  /api/assisted-install/v2/infra-envs           201
    GET                   /api/assisted-install/v2/infra-envs           200
    GET PATCH DELETE      …/infra-envs/{id}                             200 201 204
    GET                   …/infra-envs/{id}/downloads/files             200
    GET                   …/infra-envs/{id}/downloads/minimal-initrd    200 204
    GET                   …/infra-envs/{id}/downloads/image-url         200

The statuses are assisted-service's, whose PATCH answers 201 too.
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import attrs
from twisted.logger import Logger

from image_service.errors import InvalidParameter, MethodNotAllowed, NotFound
from image_service.images.reference import ISOS, Kind
from image_service.standalone.content import discovery_config, ramdisk
from image_service.standalone.infra_env import InfraEnv, read_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from image_service.concurrency.threads import InThread
    from image_service.standalone.store import Store

P = ParamSpec("P")
T = TypeVar("T")

_COLLECTION = "/api/assisted-install/v2/infra-envs"
_ID = "(?P<infra_env_id>[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12})"
_FILES = {Kind.FULL_ISO: "full.iso", Kind.MINIMAL_ISO: "minimal.iso"}


@attrs.frozen
class ApiRequest:
    """What a handler needs of an HTTP request.

    Args:
        method: HEAD is told as GET.
        path: percent-encoded, without the query.
        query: the last value of each parameter.
        body: content.
    """

    method: str
    path: str
    query: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    body: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class ApiAnswer:
    """What becomes an HTTP response.

    Args:
        status: HTTP status.
        body: content.
        content_type: of the content.
        modified: becomes Last-Modified; None: there is none.
        fields: further header fields.
    """

    status: int = 200
    body: bytes = attrs.field(default=b"", repr=False)
    content_type: str = "application/json"
    modified: datetime | None = None
    fields: tuple[tuple[str, str], ...] = ()


class Api:
    """The infra-envs and their downloads.

    Args:
        store: where infra-envs are kept.
        in_thread: where the store is called.
        clock: seconds since 1970.
        image_service_base_url: gives the URL, without a slash at its end, that images are below.
    """

    _log = Logger()

    def __init__(
        self,
        store: Store,
        in_thread: InThread,
        clock: Callable[[], float],
        image_service_base_url: Callable[[], str],
    ) -> None:
        self._store = store
        self._in_thread = in_thread
        self._clock = clock
        self._image_service_base_url = image_service_base_url
        one = f"{_COLLECTION}/{_ID}"
        self._routes: tuple[
            tuple[re.Pattern[str], Mapping[str, Callable[..., Awaitable[ApiAnswer]]]], ...
        ] = (
            (re.compile(f"{_COLLECTION}/?"), {"GET": self._list, "POST": self._register}),
            (re.compile(one), {"GET": self._show, "PATCH": self._update, "DELETE": self._deregister}),
            (re.compile(f"{one}/downloads/files"), {"GET": self._file}),
            (re.compile(f"{one}/downloads/minimal-initrd"), {"GET": self._minimal_initrd}),
            (re.compile(f"{one}/downloads/image-url"), {"GET": self._image_url}),
        )

    async def answer(self, request: ApiRequest) -> ApiAnswer:
        """Answer a request.

        Args:
            request: it has been authorised.

        Returns:
            the answer of a success.

        Raises:
            ImageServiceError: everything else.
        """
        for pattern, handlers in self._routes:
            match = pattern.fullmatch(request.path)
            if match is None:
                continue
            handler = handlers.get(request.method)
            if handler is None:
                raise MethodNotAllowed(
                    f"only {', '.join(handlers)} here", fields=(("Allow", ", ".join(_with_head(handlers))),)
                )
            return await handler(request, **match.groupdict())
        raise NotFound("there is no such resource")

    async def find(self, infra_env_id: str) -> InfraEnv:
        """Get an infra-env; raises ``NotFound``."""
        return await self._in_thread(partial(self._store.find, infra_env_id))

    async def register(self, fields: Mapping[str, Any], infra_env_id: str | None = None) -> InfraEnv:
        """Register an infra-env.

        Args:
            fields: as ``read_fields`` gives them.
            infra_env_id: None: a random one.

        Returns:
            the infra-env.
        """
        infra_env = InfraEnv.register(fields, self._now(), infra_env_id)
        await self._in_thread(partial(self._store.add, infra_env))
        self._log.info("infra-env {infra_env} is registered", infra_env=infra_env.id)
        return infra_env

    def image_url(self, infra_env: InfraEnv) -> str:
        """The URL of an infra-env's image."""
        version, architecture = infra_env.openshift_version, infra_env.cpu_architecture
        file = _FILES[infra_env.image_type]
        return f"{self._image_service_base_url()}/byid/{infra_env.id}/{version}/{architecture}/{file}"

    async def _register(self, request: ApiRequest) -> ApiAnswer:
        infra_env = await self.register(await self._read_fields(request.body, registering=True))
        location = ("Location", f"{_COLLECTION}/{infra_env.id}")
        return attrs.evolve(self._told(infra_env, 201), fields=(location,))

    async def _list(self, request: ApiRequest) -> ApiAnswer:
        del request  # has nothing to say
        infra_envs = await self._in_thread(self._store.list_all)
        return _json([self._tell(infra_env) for infra_env in infra_envs])

    async def _show(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        del request  # same
        return self._told(await self.find(infra_env_id))

    async def _update(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        fields = await self._read_fields(request.body, registering=False)
        infra_env = await self._in_thread(partial(self._store.update, infra_env_id, fields, self._now()))
        self._log.info("infra-env {infra_env} is updated", infra_env=infra_env_id, fields=sorted(fields))
        return self._told(infra_env, 201)

    async def _deregister(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        del request  # same
        await self._in_thread(partial(self._store.remove, infra_env_id))
        self._log.info("infra-env {infra_env} is deregistered", infra_env=infra_env_id)
        return ApiAnswer(204)

    async def _file(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        name = request.query.get("file_name")
        if name != "discovery.ign":
            raise InvalidParameter("file_name must be discovery.ign")
        kind = request.query.get("discovery_iso_type", Kind.FULL_ISO.value)
        if kind not in {iso.value for iso in ISOS}:
            raise InvalidParameter(f"discovery_iso_type must be {', '.join(iso.value for iso in ISOS)}")
        infra_env = await self.find(infra_env_id)
        return ApiAnswer(200, discovery_config(infra_env), modified=infra_env.updated_at)

    async def _minimal_initrd(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        del request  # same
        infra_env = await self.find(infra_env_id)
        content = ramdisk(infra_env)
        if content is None:
            return ApiAnswer(204)
        return ApiAnswer(200, content, "application/octet-stream", modified=infra_env.updated_at)

    async def _image_url(self, request: ApiRequest, infra_env_id: str) -> ApiAnswer:
        del request  # same
        return _json({"url": self.image_url(await self.find(infra_env_id))})

    async def _read_fields(self, body: bytes, *, registering: bool) -> dict[str, Any]:
        """In a thread: a tree of some MiB takes the parser seconds."""
        return await self._in_thread(partial(read_fields, body, registering=registering))

    def _told(self, infra_env: InfraEnv, status: int = 200) -> ApiAnswer:
        return _json(self._tell(infra_env), status)

    def _tell(self, infra_env: InfraEnv) -> dict[str, object]:
        return infra_env.to_json(self.image_url(infra_env))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)


def _json(document: object, status: int = 200) -> ApiAnswer:
    return ApiAnswer(status, json.dumps(document, indent=2).encode() + b"\n")


def _with_head(methods: Mapping[str, object]) -> list[str]:
    return [*methods, "HEAD"] if "GET" in methods else list(methods)
