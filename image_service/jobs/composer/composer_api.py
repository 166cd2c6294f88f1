"""The composer API: its routes, its OpenAPI document and its errors.

    POST        /compose                                                            201
    GET         /composes/                                                          200
    GET DELETE  /composes/{id}                                                      200
    POST        /composes/{id}/cancel                                               200
    GET         /composes/{id}/{metadata,logs,manifests,sboms,provenance,download}  200
    GET         /images                                                             200
    GET DELETE  /images/{id}                                                        200
    GET         /images/{id}/download                                               200
    GET         /distributions, /distributions/{name}                               200
    GET         /errors, /errors/{id}                                               200
    GET         /openapi                                                            200

`cancel`, `provenance`, images and the parameters of the list are ours, the others osbuild-composer's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.common.openapi.document import ApiDescription, openapi_document
from image_service.jobs.composer.errors import BASE_PATH, COMPOSER_ERRORS
from image_service.jobs.composer.reply_schemas import REPLY_SCHEMAS
from image_service.jobs.composer.request_bodies import REQUEST_SCHEMAS
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.operations import ApiOperation, routes
from image_service.server.web_api.router import ApiRouter

if TYPE_CHECKING:
    from image_service.core.errors import ImageServiceError
    from image_service.jobs.composer.compose_routes import ComposeRoutes
    from image_service.jobs.composer.image_routes import ImageRoutes
    from image_service.jobs.composer.reference_routes import ReferenceRoutes
    from image_service.jobs.model import Json
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

_DESCRIPTION = ApiDescription(
    "image-service composer API",
    "2",
    "Makes customized CoreOS images, as osbuild-composer's cloud API does.",
    (BASE_PATH,),
)


class ComposerApi:
    """The composer API."""

    base_paths: tuple[str, ...] = (BASE_PATH,)

    def __init__(self, composes: ComposeRoutes, images: ImageRoutes, reference: ReferenceRoutes) -> None:
        self.max_body_bytes: int = composes.max_body_bytes
        show = ApiOperation(
            "GET", "/openapi", "getOpenapi", "show this document", self._show_openapi, reply="OpenAPI"
        )
        self.operations = (*composes.operations, *images.operations, *reference.operations, show)
        schemas = {**REQUEST_SCHEMAS, **REPLY_SCHEMAS, "OpenAPI": {"type": "object"}}
        self.document: Json = openapi_document(_DESCRIPTION, self.operations, schemas)
        alias = {re.escape(f"{BASE_PATH}/openapi.json"): {"GET": self._show_openapi}}
        self._router = ApiRouter({**routes(BASE_PATH, self.operations), **alias})

    async def respond(self, request: ApiRequest) -> ApiResponse:
        """Return the response to an authenticated request, whose `principal` is a `Principal`."""
        return await self._router.respond(request)

    def render_error(self, error: ImageServiceError) -> ApiResponse:
        """Return the response for an error."""
        return COMPOSER_ERRORS.render(error)

    def is_streamed(self, method: str, path: str) -> bool:
        """Return False: requests are small."""
        del method, path
        return False

    def authorization_of(self, request: ApiRequest) -> str | None:
        """Return the field of a request."""
        return request.headers.get("authorization")

    async def _show_openapi(self, request: ApiRequest) -> ApiResponse:
        del request  # not needed
        return json_response(self.document)
