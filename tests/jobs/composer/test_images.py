"""The image catalog of the composer API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.jobs.model import ImageType
from tests.jobs.composer.composing import BASE_DISK, ORG_1, ORG_2
from tests.jobs.metadata.composing import make_image

if TYPE_CHECKING:
    from tests.jobs.composer.composing import Composer, ComposerReply

UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"


def number(reply: ComposerReply) -> tuple[int, str]:
    return reply.status, reply.document["id"]


def test_base_disks_and_images_of_the_tenant_are_listed(composer: Composer) -> None:
    images = [make_image(1), make_image(2), make_image(3)]
    for image in (*images, make_image(4, "org-2")):
        composer.images.add(image)
    ids = [BASE_DISK.image_id, *(image.id for image in images)]
    listed = composer("GET", "/images").document
    assert [each["id"] for each in listed["items"]] == ids
    assert (listed["kind"], listed["page"], listed["size"], listed["total"]) == ("ImageList", 0, 4, 4)
    for size in range(1, 5):
        pages = [
            composer("GET", "/images", query={"size": str(size), "page": str(page)}).document["items"]
            for page in range(5)
        ]
        assert [each["id"] for page in pages for each in page] == ids


def test_image_is_found_by_its_id_and_aliases(composer: Composer) -> None:
    image = make_image(1)
    composer.images.add(image)
    for name in (image.id, image.id.upper(), image.instance_alias, image.volume_alias):
        shown = composer("GET", f"/images/{name}").document
        assert (shown["id"], shown["instance_id"]) == (image.id, image.instance_alias)
        assert shown["sha256"] == image.artifact.sha256
        assert composer("GET", f"/images/{name}/download").body == image.instance_alias.encode()
        for method, path in (("GET", ""), ("GET", "/download"), ("DELETE", "")):
            reply = composer(method, f"/images/{name}{path}", principal=ORG_2)
            assert number(reply) == (404, "404")


def test_base_disk_has_an_alias_that_stays(composer: Composer) -> None:
    assert BASE_DISK.instance_alias == "i-3b2122974c6053ce9"
    for principal in (ORG_1, ORG_2):
        path = f"/images/{BASE_DISK.instance_alias}"
        assert composer("GET", path, principal=principal).document["source"] == "base"
        assert composer("GET", f"{path}/download").body == BASE_DISK.instance_alias.encode()
    assert number(composer("DELETE", f"/images/{BASE_DISK.image_id}")) == (409, "409")


@pytest.mark.parametrize("name", [UNKNOWN_ID, "i-0123456789abcdef0", "x", "%00"])
def test_unknown_image_is_not_found(composer: Composer, name: str) -> None:
    assert number(composer("GET", f"/images/{name}")) == (404, "404")


def test_deleted_import_leaves_an_object_to_delete(composer: Composer) -> None:
    image = make_image(1, source="import:1")
    composer.images.add(image)
    reply = composer("DELETE", f"/images/{image.instance_alias}")
    assert (reply.status, reply.document["kind"]) == (200, "ImageDeleteStatus")
    assert number(composer("GET", f"/images/{image.id}")) == (404, "404")
    assert composer.rows.jobs.find_discarded(10) == [image.artifact.key]


def test_deleting_a_composed_image_deletes_its_compose(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    image = make_image(1, source=f"compose:{compose_id}")
    composer.images.add(image)
    assert composer("DELETE", f"/images/{image.id}").status == 200
    assert number(composer("GET", f"/composes/{compose_id}")) == (404, "15")
    assert number(composer("GET", f"/images/{image.id}")) == (404, "404")
