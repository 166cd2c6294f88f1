"""The operations on the image catalog; all are ours."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Conflict
from image_service.jobs.api.api_error import ApiError
from image_service.jobs.composer import errors, replies
from image_service.jobs.composer.paging import PAGE, parse_page
from image_service.jobs.model import ComposeBase
from image_service.server.web_api.messages import json_response
from image_service.server.web_api.operations import ApiOperation

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import InThread
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.artifacts.image_catalog import ImageCatalog
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.composer.service import ComposeService
    from image_service.jobs.model import Json
    from image_service.server.web_api.messages import ApiRequest, ApiResponse

_ONE = "/images/{image_id}"


@attrs.frozen
class ImageRoutes:
    """The operations on images: each sees those of the request's tenant, and the base disks.

    Args:
        in_thread: runs calls of the catalog in a thread.
    """

    _catalog: ImageCatalog
    _service: ComposeService
    _contents: Contents
    _in_thread: InThread

    @property
    def operations(self) -> tuple[ApiOperation, ...]:
        """All of them."""
        return (
            ApiOperation(
                "GET",
                "/images",
                "getImageList",
                "list disk images: base disks, then those of the tenant, oldest first",
                self._list,
                reply="ImageList",
                query=PAGE,
            ),
            ApiOperation("GET", _ONE, "getImage", "show a disk image", self._show, reply="CatalogImage"),
            ApiOperation(
                "DELETE",
                _ONE,
                "deleteImage",
                "delete a disk image; with one that was composed, its compose",
                self._delete,
                reply="ImageDeleteStatus",
            ),
            ApiOperation(
                "GET",
                f"{_ONE}/download",
                "getImageDownload",
                "download a disk image, or a range of it",
                self._download,
                other_statuses=(206, 304),
                content_types=(replies.CONTENT_TYPE,),
            ),
        )

    async def _list(self, request: ApiRequest) -> ApiResponse:
        page = parse_page(request.query)
        find = partial(self._catalog.find_page, request.principal.tenant, page.offset, page.size)
        images, total = await self._in_thread(find)
        items = [_describe(image) for image in images]
        return json_response(replies.describe_page("ImageList", items, page.number, total))

    async def _show(self, request: ApiRequest, image_id: str) -> ApiResponse:
        return json_response(_describe(await self._find(request, image_id)))

    async def _delete(self, request: ApiRequest, image_id: str) -> ApiResponse:
        image = await self._find(request, image_id)
        if isinstance(image, ComposeBase):
            raise Conflict("it is a base image, which the settings of the service name")
        await self._service.delete_image(image)
        return json_response(replies.describe_object("ImageDeleteStatus", image.id, f"/images/{image.id}"))

    async def _download(self, request: ApiRequest, image_id: str) -> ApiResponse:
        image = await self._find(request, image_id)
        return await self._contents.respond(self._contents.open_catalog_image(image), request)

    async def _find(self, request: ApiRequest, image_id: str) -> CatalogImage | ComposeBase:
        """Return an image, by its id or its alias in EC2's API; raises ApiError."""
        find = partial(self._catalog.find, request.principal.tenant, image_id.lower())
        image = await self._in_thread(find)
        if image is None:
            raise ApiError(number=errors.UNKNOWN_IMAGE)
        return image


def _describe(image: CatalogImage | ComposeBase) -> Json:
    if isinstance(image, ComposeBase):
        return replies.describe_base_image(image)
    return replies.describe_image(image)
