"""The image catalog. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from image_service.database.database import Database
    from image_service.jobs.model import CatalogImage


class ImageRepository:
    """Finished disk images, for EC2's API.

    Args:
        database: see ``open_database``.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        raise NotImplementedError

    def add(self, image: CatalogImage) -> None:
        """Add an image, unless one of its source is there."""
        raise NotImplementedError

    def find(self, tenant: str | None, name: str) -> CatalogImage | None:
        """Return an image by its id or an alias; None: there is none, or it is of another tenant."""
        raise NotImplementedError

    def find_all(self, tenant: str | None) -> list[CatalogImage]:
        """Return the images of a tenant, oldest first; None: of all."""
        raise NotImplementedError

    def delete(self, image_id: str) -> None:
        """Remove an image from the catalog."""
        raise NotImplementedError
