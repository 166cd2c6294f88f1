"""The image catalog and the registered workers, in each database."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import RowNotAuthentic, Unavailable
from image_service.jobs.database.tables import IMAGES
from image_service.jobs.database.workers import WorkerRepository
from tests.jobs.database.composing import NOW, make_image

if TYPE_CHECKING:
    from tests.jobs.database.composing import Rows


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
