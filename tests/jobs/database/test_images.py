"""The image catalog and the registered workers, in each database."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import RowNotAuthentic, Unavailable
from image_service.jobs.database.tables import IMAGES, open_database
from image_service.jobs.database.workers import WorkerRepository
from tests.jobs.database.composing import NOW, Rows, make_image

if TYPE_CHECKING:
    from pathlib import Path


def test_image_is_found_by_its_id_and_aliases(rows: Rows) -> None:
    images, image = rows.images, make_image(1)
    images.add(image)
    for name in (image.id, image.instance_alias, image.volume_alias):
        assert images.find("org-1", name) == image
        assert images.find(None, name) == image
        assert images.find("org-2", name) is None
    assert images.find(None, "i-0123456789abcdef0") is None


def test_source_has_one_image(rows: Rows) -> None:
    images, image = rows.images, make_image(1)
    images.add(image)
    images.add(image)
    images.add(attrs.evolve(image, id=str(uuid4())))
    assert images.find_page("org-1", 0, 9) == ([image], 1)


def test_image_with_the_object_of_another_is_refused_and_can_be_deleted(rows: Rows) -> None:
    own, victim = make_image(1, "org-2"), make_image(2)
    for image in (own, victim):
        rows.images.add(image)
    taken = sa.select(IMAGES.c.artifact).where(IMAGES.c.id == victim.id).scalar_subquery()
    change = sa.update(IMAGES).where(IMAGES.c.id == own.id).values(artifact=taken)
    rows.database.transact(lambda connection: connection.execute(change).close())
    (changed,), _ = rows.images.find_page("org-2", 0, 9)
    with pytest.raises(RowNotAuthentic, match=own.id):
        rows.images.check(changed)
    (unchanged,), _ = rows.images.find_page("org-1", 0, 9)
    rows.images.check(unchanged)
    assert rows.images.delete(own.id)


@pytest.mark.parametrize("column", ["artifact", "name", "layout"])
def test_image_that_cannot_be_read_hides_no_other(tmp_path: Path, column: str) -> None:
    with closing(open_database(None, tmp_path)) as database:  # PostgreSQL refuses these values
        images, damaged, other = Rows(database).images, make_image(1), make_image(2)
        for image in (damaged, other):
            images.add(image)
        values: dict[str, Any] = {column: sa.literal_column("x'00ff'")}
        change = sa.update(IMAGES).where(IMAGES.c.id == damaged.id).values(values)
        database.transact(lambda connection: connection.execute(change).close())
        found, total = images.find_page("org-1", 0, 9)
        assert ({image.id for image in found}, total) == ({damaged.id, other.id}, 2)
        assert other in found
        with pytest.raises(RowNotAuthentic):
            images.check(next(image for image in found if image.id == damaged.id))
        assert images.delete(damaged.id)


def test_images_of_a_tenant_are_listed_oldest_first(rows: Rows) -> None:
    images = rows.images
    second, first, foreign = make_image(2), make_image(1), make_image(3, "org-2")
    for image in (second, first, foreign):
        images.add(image)
    assert images.find_page("org-1", 0, 9) == ([first, second], 2)
    assert images.find_page("org-2", 0, 9) == ([foreign], 1)


def test_workers_are_known_until_they_are_silent(rows: Rows) -> None:
    workers = WorkerRepository(rows.database, rows.clock)
    workers.add("w1", "org-1", "x86_64")
    workers.add("w2", "org-1", "x86_64")
    workers.add("w3", "org-2", "aarch64")
    rows.clock.advance(10)
    assert workers.see("w1", "org-1")
    assert not workers.see("w1", "org-2")
    assert workers.count(NOW) == {("org-1", "x86_64"): 2, ("org-2", "aarch64"): 1}
    assert workers.count(NOW + timedelta(seconds=1)) == {("org-1", "x86_64"): 1}
    workers.remove(NOW + timedelta(seconds=1))
    assert not workers.see("w2", "org-1")
    assert workers.see("w1", "org-1")


def test_tenant_registers_a_limited_number_of_workers(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("image_service.jobs.database.workers.MAX_WORKERS_OF_TENANT", 2)
    workers = WorkerRepository(rows.database, rows.clock)
    for name in ("w1", "w2"):
        workers.add(name, "org-1", "x86_64")
    with pytest.raises(Unavailable, match="2 workers"):
        workers.add("w3", "org-1", "aarch64")
    assert not workers.see("w3", "org-1")
    workers.add("w3", "org-2", "x86_64")
    rows.clock.advance(10)
    workers.see("w2", "org-1")
    workers.remove(NOW + timedelta(seconds=1))
    workers.add("w4", "org-1", "x86_64")
