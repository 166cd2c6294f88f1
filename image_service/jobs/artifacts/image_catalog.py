"""The image catalog: the images of a tenant, and the base disks, which belong to all tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from image_service.jobs.artifacts.bases import Bases
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.database.images import ImageRepository
    from image_service.jobs.model import ComposeBase


@attrs.frozen
class ImageCatalog:
    """Finds disk images that can be downloaded, composed from and exported.

    Each method blocks, and raises StoreFailed if the database does not answer.

    Args:
        bases: whose disks are images, too.
    """

    _images: ImageRepository
    _bases: Bases

    def find(self, tenant: str, name: str) -> CatalogImage | ComposeBase | None:
        """Return an image by its id or an alias; None: there is none, or it is of another tenant."""
        for base in self._base_disks():
            if name in {base.image_id, base.instance_alias}:
                return base
        return self._images.find(tenant, name)

    def find_page(self, tenant: str, offset: int, limit: int) -> tuple[list[CatalogImage | ComposeBase], int]:
        """Return base disks, then images of a tenant, oldest first, and how many there are in all."""
        bases = self._base_disks()
        shown = bases[offset : offset + limit]
        images, total = self._images.find_page(tenant, max(offset - len(bases), 0), limit - len(shown))
        return [*shown, *images], len(bases) + total

    def delete(self, image: CatalogImage) -> None:
        """Delete an image that was imported; Conflict: a compose that has not ended uses it."""
        self._images.delete(image.id)

    def _base_disks(self) -> list[ComposeBase]:
        return list(dict.fromkeys(base for base, _ in self._bases.all_disks()))
