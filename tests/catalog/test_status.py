from __future__ import annotations

import json

from image_service.catalog.lifecycle.status import BaseImageState, ImageStatus, render_statuses
from image_service.settings.os_images import OsImage

ENTRY = OsImage("9.6.1-0", "x86_64", "full-iso", ("4.19",), "https://origin.test/base.iso")
KEYS = [
    *("version", "openshift_version", "cpu_architecture", "type", "state", "reason"),
    *("bytes_done", "bytes_total", "size", "sha256", "retry_at", "url"),
]


def rendered(*statuses: ImageStatus) -> list[dict[str, object]]:
    document = json.loads(render_statuses(statuses))
    assert document.keys() == {"images"}
    images: list[dict[str, object]] = document["images"]
    return images


def test_ready_image_is_rendered_with_all_members() -> None:
    ready = ImageStatus(ENTRY, BaseImageState.READY, "", 7, 7, 7, "ab" * 32)
    assert rendered(ready) == [
        {
            "version": "9.6.1-0",
            "openshift_version": "4.19",
            "cpu_architecture": "x86_64",
            "type": "full-iso",
            "state": "ready",
            "reason": None,
            "bytes_done": 7,
            "bytes_total": 7,
            "size": 7,
            "sha256": "ab" * 32,
            "retry_at": None,
            "url": "https://origin.test/base.iso",
        }
    ]
    assert list(rendered(ready)[0]) == KEYS


def test_failed_image_has_reason_and_retry_time() -> None:
    (failed,) = rendered(
        ImageStatus(ENTRY, BaseImageState.FAILED, "cable cut", 3, None, retry_at=1_700_000_000.9)
    )
    assert (failed["state"], failed["reason"]) == ("failed", "cable cut")
    assert (failed["bytes_done"], failed["bytes_total"], failed["size"]) == (3, None, None)
    assert failed["retry_at"] == "2023-11-14T22:13:20Z"


def test_each_openshift_version_has_an_object() -> None:
    entry = OsImage("1", "x86_64", "full-iso", ("4.19", "4.18"), "file:///a%20b.iso")
    images = rendered(ImageStatus(entry, BaseImageState.WAITING), ImageStatus(ENTRY, BaseImageState.WAITING))
    assert [image["openshift_version"] for image in images] == ["4.19", "4.18", "4.19"]
    assert images[0]["url"] == "file:///a%20b.iso"


def test_urls_are_rendered_without_credentials() -> None:
    url = "https://user:top@secret@origin.test:8443/a/base.iso?X-Sig=top-secret#top-secret"
    (image,) = rendered(ImageStatus(OsImage("1", "x86_64", "full-iso", ("4",), url), BaseImageState.WAITING))
    assert image["url"] == "https://origin.test:8443/a/base.iso"


def test_no_images_render_as_an_empty_list() -> None:
    assert rendered() == []
