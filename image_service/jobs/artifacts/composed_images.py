"""Images that are composed while they are read, and not stored."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.lru import ENTRY_BYTES, LruCache
from image_service.core.errors import NotFound
from image_service.core.families.coreos.family import ROOTFS_URL
from image_service.core.families.coreos.kargs import KernelArgument, Operation
from image_service.core.images.canvas import derived_minimal_canvas, full_canvas, spliced_minimal_canvas
from image_service.core.images.compose import compose as compose_iso
from image_service.core.images.customization import Customization
from image_service.core.images.pxe_archive import compose_pxe_archive
from image_service.jobs.model import ComposeBase, ImageType
from image_service.server.http.respond import Representation

if TYPE_CHECKING:
    from image_service.common.concurrency.process_parts import InThread
    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.core.images.canvas import Canvas
    from image_service.jobs.artifacts.bases import Bases
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.model import Compose, ImageCustomization
    from image_service.server.catalog.derived.derived_images import DerivedImages

CACHE_BYTES = 8 * 1024 * 1024
"""Of all composed images in memory, which contain their customizations unencrypted."""
_EXTENT_BYTES = 112  # an extent of a file, and where it starts


@attrs.frozen
class ImageOfBase:
    """A composed image, and the live ISO that it is made of."""

    base: BaseImage
    representation: Representation


class ComposedImages:
    """Lays customizations over live ISOs.

    Args:
        derived: minimal ISOs of bases that contain no recipe of one.
        composes: have the customization of each image.
    """

    def __init__(
        self, in_thread: InThread, bases: Bases, derived: DerivedImages, composes: ComposeRepository
    ) -> None:
        self._in_thread = in_thread
        self._bases = bases
        self._derived = derived
        self._composes = composes
        self._cache: LruCache[tuple[str, str, str], ImageOfBase] = LruCache(CACHE_BYTES, _held_bytes)

    async def get(self, compose: Compose) -> ImageOfBase:
        """Return the image of a compose, and its base.

        Raises:
            NotFound: its customization was erased, or the base has no file that the image needs.
            Unavailable: the base, or the minimal ISO derived from it, is not ready.
            BaseImageError: the catalog refused the base.
            Unprocessable: the customization does not fit it.
            RowNotAuthentic: its customization was changed in the database.
            StoreFailed: the database does not answer.
        """
        base = self.base_of(compose)
        key = compose.tenant, compose.id, base.sha256
        composed = self._cache.get(key)
        if composed is None or composed.base is not base:  # the base was opened again
            customization = await self._in_thread(partial(self._composes.customization, compose))
            if customization is None:
                raise NotFound("the customization of this image was erased")
            image = await self._in_thread(partial(self._compose, compose, base, customization))
            composed = self._cache[key] = ImageOfBase(base, Representation(image))
        return composed

    def base_of(self, compose: Compose) -> BaseImage:
        """Return the live ISO of a compose; see `get`."""
        return self._bases.live_iso(_base(compose))

    def _compose(self, compose: Compose, base: BaseImage, content: ImageCustomization) -> BootImage:
        arguments = tuple(KernelArgument(Operation.APPEND, argument) for argument in content.arguments)
        customization = Customization(content.ignition or b"", arguments, compose.created_at)
        file_name = f"{compose.id}-{compose.plan.file_name}"
        if compose.image_type is ImageType.PXE_TAR_XZ:
            return compose_pxe_archive(base, customization, file_name)
        if compose.image_type is ImageType.LIVE_INSTALLER:
            return compose_iso(full_canvas(base), customization, file_name)
        has_url = any(argument.startswith(ROOTFS_URL) for argument in content.arguments)
        canvas = self._minimal_canvas(base, "" if has_url else self._bases.rootfs_url(_base(compose)))
        return compose_iso(canvas, customization, file_name)

    def _minimal_canvas(self, base: BaseImage, rootfs_url: str) -> Canvas:
        if base.coreos.minimal:
            return spliced_minimal_canvas(base, rootfs_url)
        return derived_minimal_canvas(base, self._derived.get_minimal_iso(base), rootfs_url)


def _base(compose: Compose) -> ComposeBase:
    """Return the base of a composed image, which the arguments of its first step name."""
    return ComposeBase.from_arguments(compose.plan.steps[0].arguments)


def _held_bytes(composed: ImageOfBase) -> int:
    extents = composed.representation.image.extents
    return ENTRY_BYTES + extents.literal_bytes + _EXTENT_BYTES * len(extents.extents)
