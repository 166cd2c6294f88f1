"""The image catalog. Every call blocks: not for the reactor's thread.

A transaction that begins to use an image, or deletes it, first locks its row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from image_service.jobs.database.repository import Repository
from image_service.jobs.database.statements import IMAGES_IN_USE, delete_image, utc_now
from image_service.jobs.database.tables import ARTIFACTS, IMAGES
from image_service.jobs.database.values import IMAGE_COLUMNS, row_of, to_image
from image_service.jobs.image_ids import IMAGE, INSTANCE, SNAPSHOT, VOLUME, alias_digits

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from image_service.common.database.database import Database
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.database.sealing import RowCipher

_IS_IMPORTED = IMAGES.c.source.startswith("import:")
_SELECT = sa.select(*IMAGE_COLUMNS).order_by(IMAGES.c.created_at, IMAGES.c.id)


class ImageRepository(Repository):
    """Finished disk images. The image of a compose is deleted with it; an imported one has no compose."""

    def __init__(self, database: Database, cipher: RowCipher, now: Callable[[], datetime] = utc_now) -> None:
        super().__init__(database, now)
        self._cipher = cipher

    def add(self, image: CatalogImage) -> None:
        """Add an image, unless there is one with its source."""
        stored = sa.select(ARTIFACTS.c.kept_bytes).where(ARTIFACTS.c.key == image.artifact.key)
        row = {
            **row_of(image),
            "artifact": self._cipher.tag_artifact(image.tenant, image.id, image.artifact),
            "alias": alias_digits(image.id),
            "key": image.artifact.key,
            "kept_bytes": sa.func.coalesce(stored.scalar_subquery(), image.artifact.size),
        }
        insert = self._database.insert(IMAGES).values(row).on_conflict_do_nothing()
        self._database.transact(lambda connection: connection.execute(insert).close())

    def find(self, tenant: str | None, name: str) -> CatalogImage | None:
        """Return an image by its id or an alias; None: there is none, or it is of another tenant."""
        is_alias = name.startswith((INSTANCE, VOLUME, IMAGE, SNAPSHOT))
        wanted = IMAGES.c.alias == name.partition("-")[2] if is_alias else IMAGES.c.id == name
        select = _SELECT.where(wanted)
        if tenant is not None:
            select = select.where(IMAGES.c.tenant == tenant)
        row = self._database.transact(lambda connection: connection.execute(select).mappings().first())
        return None if row is None else to_image(row)

    def check(self, image: CatalogImage) -> None:
        """Raise RowNotAuthentic if the artifact of an image was changed in the database."""
        self._cipher.check_artifact(image.tenant, image.id, image.artifact)

    def find_page(self, tenant: str, offset: int, limit: int) -> tuple[list[CatalogImage], int]:
        """Return images of a tenant, oldest first, and how many it has in all."""
        of_tenant = IMAGES.c.tenant == tenant
        page = _SELECT.where(of_tenant).offset(offset).limit(limit)
        count = sa.select(sa.func.count()).select_from(IMAGES).where(of_tenant)

        def work(connection: sa.Connection) -> tuple[list[CatalogImage], int]:
            images = [to_image(row) for row in connection.execute(page).mappings()]
            return images, connection.execute(count).scalar_one()

        return self._database.transact(work)

    def find_imported(self, before: datetime, limit: int) -> list[str]:
        """Return ids of images that were imported before that time and are not in use, oldest first."""
        is_wanted = _IS_IMPORTED & (IMAGES.c.created_at < before) & IMAGES.c.id.not_in(IMAGES_IN_USE)
        select = sa.select(IMAGES.c.id).where(is_wanted).order_by(IMAGES.c.created_at).limit(limit)
        return list(self._database.transact(lambda connection: connection.scalars(select).all()))

    def delete(self, image_id: str) -> bool:
        """Delete an image, and discard its object; False: there is none.

        Raises:
            Conflict: a job of a compose that has not ended reads it.
        """
        now = self._now()
        return self._database.transact(
            lambda connection: delete_image(self._database, connection, now, IMAGES.c.id == image_id)
        )
