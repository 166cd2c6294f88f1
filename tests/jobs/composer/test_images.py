"""The image catalog of the composer API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.jobs.model import ComposeOrigin, ComposeState, ImageType
from tests.jobs.composer.composing import BASE_DISK, ORG_1, ORG_2, compose_request
from tests.jobs.database.composing import make_compose, make_image

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
    assert composer.rows.objects.find_discarded(10) == [image.artifact.key]


def test_deleting_a_composed_image_deletes_its_compose(composer: Composer) -> None:
    compose_id = composer.compose(ImageType.VSPHERE)
    image = make_image(1, source=f"compose:{compose_id}")
    composer.images.add(image)
    assert composer("DELETE", f"/images/{image.id}").status == 200
    assert number(composer("GET", f"/composes/{compose_id}")) == (404, "15")
    assert number(composer("GET", f"/images/{image.id}")) == (404, "404")


def of_image(alias: str, image_type: ImageType = ImageType.VSPHERE, **members: object) -> dict[str, object]:
    return {**compose_request(image_type, **members), "distribution": alias}


def test_compose_of_an_image_keeps_the_image(composer: Composer) -> None:
    image = make_image(1, source="import:1", format="qcow2")
    composer.images.add(image)
    reply = composer("POST", "/compose", of_image(image.instance_alias))
    assert reply.status == 201, reply
    assert number(composer("DELETE", f"/images/{image.id}")) == (409, "409")
    composer.rows.composes.finish(reply.document["id"], ComposeState.FAILURE)
    assert composer("DELETE", f"/images/{image.id}").status == 200
    assert number(composer("POST", "/compose", of_image(image.instance_alias))) == (400, "4")


def test_base_disk_is_a_distribution_by_its_alias(composer: Composer) -> None:
    reply = composer("POST", "/compose", of_image(BASE_DISK.instance_alias))
    assert reply.status == 201, reply
    manifest = composer("GET", f"/composes/{reply.document['id']}/manifests").document["manifests"][0]
    assert manifest["steps"][0]["arguments"]["version"] == BASE_DISK.version


def test_image_has_one_architecture_and_only_disks(composer: Composer) -> None:
    image = make_image(1, source="import:1", format="qcow2")
    composer.images.add(image)
    other = composer("POST", "/compose", of_image(image.instance_alias, architecture="aarch64"))
    assert number(other) == (400, "5")
    iso = composer("POST", "/compose", of_image(image.instance_alias, ImageType.LIVE_INSTALLER))
    assert number(iso) == (400, "6")
    foreign = composer("POST", "/compose", of_image(image.instance_alias), ORG_2)
    assert number(foreign) == (400, "4")


def test_imports_and_exports_are_no_composes(composer: Composer) -> None:
    compose, _ = composer.rows.add(make_compose(origin=ComposeOrigin.EXPORT, image_type=None))
    assert composer("GET", "/composes/").document == []
    assert composer("GET", "/composes/", query={"size": "9"}).document["total"] == 0
    assert number(composer("GET", f"/composes/{compose.id}")) == (404, "15")
    assert number(composer("DELETE", f"/composes/{compose.id}")) == (404, "15")
