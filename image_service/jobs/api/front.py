"""The APIs of a listener: each request is authenticated and goes to the API of its path."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

import attrs
from twisted.internet.defer import DeferredLock

from image_service.core.errors import NotFound
from image_service.server.web_api.messages import problem_response
from image_service.server.web_api.resource import UNCHECKED_BYTES, ApiResource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from image_service.core.errors import ImageServiceError
    from image_service.jobs.dispatch.upload_slots import UploadSlots
    from image_service.jobs.principal import Principal
    from image_service.jobs.tenants.authenticator import Authenticator
    from image_service.server.web_api.authentication import RequestGuard
    from image_service.server.web_api.messages import ApiRequest, ApiResponse
    from image_service.server.web_api.request_content import ReceivedContent

_PUBLIC = re.compile(r"/(openapi(\.json)?|errors(/[^/]*)?)")


class ServedApi(Protocol):
    """An API of the jobs role.

    Args:
        base_paths: under which it is served, without a final slash; errors carry the first.
        max_body_bytes: of a request, unless its content is streamed.
    """

    base_paths: tuple[str, ...]
    max_body_bytes: int

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to an authenticated request, whose `principal` is a `Principal`."""

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error."""

    def is_streamed(self, method: str, path: str) -> bool:
        """Return True if the content of such a request is streamed."""

    def authorization_of(self, request: ApiRequest) -> str | None:
        """Return the value of Authorization by which a request is authenticated; None: it has none."""


class SignedApi(Protocol):
    """An API that authenticates its requests itself, by their signatures."""

    paths: frozenset[str]
    max_body_bytes: int

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to a request, which has no principal."""

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error."""


@attrs.frozen
class ApiFront:
    """Passes requests to APIs.

    Args:
        authenticator: finds the principal of a request; the document and the errors of an API are public.
        signed_api: None: there is none. The heads of its requests are not checked: web pages cannot
            sign.
        large_requests: slots of requests with large content, which is in memory; None: they need none.
    """

    _authenticator: Authenticator
    _apis: Sequence[ServedApi]
    _signed_api: SignedApi | None = None
    _large_requests: UploadSlots | None = None
    _carrying_out: DeferredLock = attrs.field(factory=DeferredLock, init=False)

    @property
    def max_body_bytes(self) -> int:
        """The most that any API takes; each has its own limit."""
        return max(api.max_body_bytes for api in (*self._apis, self._signed_api) if api is not None)

    def resource(self, guard: RequestGuard) -> ApiResource:
        """Return the resource of a listener."""
        signed_paths = () if self._signed_api is None else self._signed_api.paths
        return ApiResource(
            attrs.evolve(guard, unchecked_paths=signed_paths, is_last=False),
            self.respond,
            render_error=self._render_error,
            is_streamed=self._is_streamed,
            admit=self._admit,
        )

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response of the API that a path belongs to."""
        if (signed_api := self._find_signed(request.path)) is not None:
            return await signed_api.respond(request)
        api, base_path = self._find(request.path)
        if api is None:
            raise NotFound("no such resource")
        if request.method == "GET" and _PUBLIC.fullmatch(request.path, len(base_path)):
            return await api.respond(request)
        request = attrs.evolve(request, principal=await self._authenticate(request, api))
        if len(request.body) <= UNCHECKED_BYTES:
            return await api.respond(request)
        await self._carrying_out.acquire()  # it takes several times the memory of its content
        try:
            return await api.respond(request)
        finally:
            self._carrying_out.release()

    @asynccontextmanager
    async def _admit(self, request: ApiRequest, content: ReceivedContent) -> AsyncIterator[int]:
        """Give the limit in bytes of the content of a request; only known clients send much, in turn."""
        if (signed_api := self._find_signed(request.path)) is not None:
            yield signed_api.max_body_bytes
            return
        api, _ = self._find(request.path)
        if api is None:
            raise NotFound("no such resource")
        principal = await self._authenticate(request, api)
        slots, tenant = self._large_requests, principal.tenant
        async with slots.slot(tenant, tenant, content) if slots else nullcontext():
            yield api.max_body_bytes

    async def _authenticate(self, request: ApiRequest, api: ServedApi) -> Principal:
        authorization = api.authorization_of(request)
        principal = await self._authenticator.authenticate(authorization, is_local=request.is_local)
        request.record_authenticated()
        return principal

    def _render_error(self, error: ImageServiceError, path: str) -> ApiResponse:
        api = self._find_signed(path) or self._find(path)[0]
        return problem_response(error) if api is None else api.render_error(error)

    def _is_streamed(self, method: str, path: str) -> bool:
        api, _ = self._find(path)
        return api is not None and api.is_streamed(method, path)

    def _find_signed(self, path: str) -> SignedApi | None:
        """Return the signed API if a path is one of its resources."""
        return self._signed_api if self._signed_api and path in self._signed_api.paths else None

    def _find(self, path: str) -> tuple[ServedApi | None, str]:
        """Return the API of a path and the base path that it has there."""
        for api in self._apis:
            for base_path in api.base_paths:
                if path.startswith(f"{base_path}/"):
                    return api, base_path
        return None, ""
