"""A read-only OCI registry (distribution spec 1.1) of finished composes: each is an artifact with one layer.

    GET  /v2/                                200
    GET  /v2/_catalog                        200: the newest composes of the tenant that have an image
    GET  /v2/composes/{id}/tags/list         200
    GET  /v2/composes/{id}/manifests/{name}  200: by the only tag, or by digest
    GET  /v2/composes/{id}/blobs/{digest}    200, 206

Nothing is stored for it: the layer is the image as its download has it.
"""

from __future__ import annotations

import json
from base64 import b64decode
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import attrs

from image_service.common.registry.manifests import (
    EMPTY_CONFIG,
    EMPTY_TYPE,
    MANIFEST_TYPE,
    BlobDescriptor,
    artifact_layer_type,
    render_artifact,
)
from image_service.core.errors import NotFound, Unauthorized
from image_service.jobs.composer.compose_routes import COMPOSE_ID
from image_service.jobs.composer.paging import MAX_SIZE
from image_service.jobs.database.composes import ComposeFilter
from image_service.jobs.model import ComposeOrigin, ComposeState
from image_service.server.web_api.messages import ApiResponse, problem_response
from image_service.server.web_api.operations import ApiOperation, routes
from image_service.server.web_api.router import ApiRouter

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.errors import ImageServiceError
    from image_service.jobs.artifacts.contents import Content, Contents
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.server.web_api.messages import ApiRequest

_BASE_PATH = "/v2"
_TAG = "latest"
_VERSION = ("Docker-Distribution-API-Version", "registry/2.0")
_CHALLENGE = ("WWW-Authenticate", 'Basic realm="image-service"')
_REPOSITORY = "/composes/{compose_id}"


class RegistryApi:
    """The registry; each tenant sees its own composes only."""

    base_paths: tuple[str, ...] = (_BASE_PATH,)
    max_body_bytes: int = 0

    def __init__(self, composes: ComposeRepository, contents: Contents, in_thread: InThread) -> None:
        self._composes = composes
        self._contents = contents
        self._in_thread = in_thread
        self.operations = (
            ApiOperation("GET", "/", "getRegistry", "check the credentials", self._show_root),
            ApiOperation("GET", "/_catalog", "getCatalog", "list repositories", self._list_repositories),
            ApiOperation("GET", f"{_REPOSITORY}/tags/list", "getTags", "list tags", self._list_tags),
            ApiOperation(
                "GET", f"{_REPOSITORY}/manifests/{{name}}", "getManifest", "show a manifest", self._manifest
            ),
            ApiOperation("GET", f"{_REPOSITORY}/blobs/{{digest}}", "getBlob", "send a blob", self._blob),
        )
        self._router = ApiRouter(routes(_BASE_PATH, self.operations))

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to an authenticated request, whose `principal` is a `Principal`."""
        if request.principal is None:  # of the paths that are public in other APIs
            raise NotFound("no such resource")
        return await self._router.respond(request)

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error; clients of registries know Basic, whose password is the token."""
        if isinstance(error, Unauthorized):
            error = Unauthorized(error.detail, fields=(_CHALLENGE,))
        return problem_response(error)

    def is_streamed(self, method: str, path: str) -> bool:
        """Return False: requests have no content."""
        del method, path
        return False

    def authorization_of(self, request: ApiRequest) -> str | None:
        """Return the field of a request, with the password of Basic as a bearer token."""
        authorization = request.headers.get("authorization")
        scheme, _, value = (authorization or "").partition(" ")
        if scheme.lower() != "basic":
            return authorization
        text = ""
        with suppress(ValueError):
            text = b64decode(value.strip(), validate=True).decode("ascii")
        return f"Bearer {text.partition(':')[2]}"

    async def _show_root(self, request: ApiRequest) -> ApiResponse:
        del request
        return _page(b"{}", "application/json")

    async def _list_repositories(self, request: ApiRequest) -> ApiResponse:
        wanted = ComposeFilter(
            request.principal.tenant, states=(ComposeState.SUCCESS,), origin=ComposeOrigin.COMPOSER
        )
        composes, _ = await self._in_thread(partial(self._composes.find_page, wanted, limit=MAX_SIZE))
        names = [f"composes/{compose.id}" for compose in composes]
        return _page(json.dumps({"repositories": sorted(names)}).encode(), "application/json")

    async def _list_tags(self, request: ApiRequest, compose_id: str) -> ApiResponse:
        await self._open(request, compose_id)
        tags = {"name": f"composes/{compose_id}", "tags": [_TAG]}
        return _page(json.dumps(tags).encode(), "application/json")

    async def _manifest(self, request: ApiRequest, compose_id: str, name: str) -> ApiResponse:
        manifest = _render_manifest(await self._open(request, compose_id))
        digest = f"sha256:{sha256(manifest).hexdigest()}"
        if name not in {_TAG, digest}:
            raise NotFound(f"there is no such manifest; the only tag is {_TAG}")
        return _page(manifest, MANIFEST_TYPE, digest)

    async def _blob(self, request: ApiRequest, compose_id: str, digest: str) -> ApiResponse:
        content = await self._open(request, compose_id)
        if digest == EMPTY_CONFIG.digest:
            return _page(b"{}", EMPTY_TYPE, digest)
        if digest != f"sha256:{content.sha256}":
            raise NotFound("there is no such blob; digests are of SHA-256")
        response = await self._contents.respond(content, request)
        return attrs.evolve(response, fields=(*response.fields, ("Docker-Content-Digest", digest)))

    async def _open(self, request: ApiRequest, compose_id: str) -> Content:
        """Open the image of a compose of the request's tenant; its digest is known."""
        compose = None
        if COMPOSE_ID.fullmatch(compose_id):
            find = partial(self._composes.find, compose_id, request.principal.tenant)
            compose = await self._in_thread(find)
        facts = compose and (compose.origin, compose.state)
        if compose is None or facts != (ComposeOrigin.COMPOSER, ComposeState.SUCCESS):
            raise NotFound("there is no such repository; one is composes/ID of a compose that has an image")
        content = await self._contents.open_image(compose)
        if content.sha256 is None:
            raise NotFound("the digest of this image is not known, because it is composed while it is read")
        return content


def _render_manifest(content: Content) -> bytes:
    """Return the manifest of an image."""
    name = content.representation.image.file_name
    media_type, annotations = artifact_layer_type(name)
    layer = BlobDescriptor(media_type, f"sha256:{content.sha256}", content.size, annotations)
    return render_artifact(media_type, layer)


def _page(content: bytes, media_type: str, digest: str = "") -> ApiResponse:
    fields = (_VERSION, *((("Docker-Content-Digest", digest),) if digest else ()))
    return ApiResponse(body=content, content_type=media_type, fields=fields)
