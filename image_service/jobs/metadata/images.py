"""The image catalog. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.jobs.metadata.tables import IMAGES
from image_service.jobs.metadata.values import IMAGE_COLUMNS, row_of, to_image

if TYPE_CHECKING:
    from image_service.database.database import Database
    from image_service.jobs.model import CatalogImage


class ImageRepository:
    """Finished disk images, for EC2's API. Deleting a compose deletes its image.

    Args:
        database: see ``open_database``.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, image: CatalogImage) -> None:
        """Add an image, unless there is one with its source."""
        row = {**row_of(image), "alias": image.instance_alias.partition("-")[2]}
        insert = self._database.insert(IMAGES).values(row).on_conflict_do_nothing()
        self._database.transact(lambda connection: connection.execute(insert).close())

    def find(self, tenant: str | None, name: str) -> CatalogImage | None:
        """Return an image by its id or an alias; None: there is none, or it is of another tenant."""
        prefix, _, digits = name.partition("-")
        is_alias = prefix in {"i", "vol"}
        images = self._find(tenant, IMAGES.c.alias == digits if is_alias else IMAGES.c.id == name)
        return images[0] if images else None

    def find_all(self, tenant: str | None) -> list[CatalogImage]:
        """Return the images of a tenant, oldest first; None: of all."""
        return self._find(tenant)

    def _find(self, tenant: str | None, *conditions: sa.ColumnElement[bool]) -> list[CatalogImage]:
        select = sa.select(*IMAGE_COLUMNS).where(*conditions).order_by(IMAGES.c.created_at, IMAGES.c.id)
        if tenant is not None:
            select = select.where(IMAGES.c.tenant == tenant)
        rows = self._database.transact(lambda connection: connection.execute(select).mappings().all())
        return [to_image(row) for row in rows]
