from __future__ import annotations

import json

from image_service.catalog.lifecycle.status import BaseImageState, ImageStatus, render_statuses
from image_service.settings.os_images import OsImage

ENTRY = OsImage("9.6.1-0", "x86_64", "full-iso", ("4.19",), "https://origin.test/base.iso")
KEYS = [
    *("version", "openshift_version", "cpu_architecture", "type", "state", "reason"),
    *("bytes_done", "bytes_total", "size", "sha256", "retry_at", "url"),
]


def told(*statuses: ImageStatus) -> list[dict[str, object]]:
    document = json.loads(render_statuses(statuses))
    assert document.keys() == {"images"}
    images: list[dict[str, object]] = document["images"]
    return images


def test_all_that_is_known_is_told() -> None:
    ready = ImageStatus(ENTRY, BaseImageState.READY, "", 7, 7, 7, "ab" * 32)
    assert told(ready) == [
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
    assert list(told(ready)[0]) == KEYS


def test_a_failure_has_its_reason_and_the_next_try() -> None:
    (failed,) = told(
        ImageStatus(ENTRY, BaseImageState.FAILED, "cable cut", 3, None, retry_at=1_700_000_000.9)
    )
    assert (failed["state"], failed["reason"]) == ("failed", "cable cut")
    assert (failed["bytes_done"], failed["bytes_total"], failed["size"]) == (3, None, None)
    assert failed["retry_at"] == "2023-11-14T22:13:20Z"


def test_each_openshift_version_of_an_image_is_told_as_in_the_configuration() -> None:
    entry = OsImage("1", "x86_64", "full-iso", ("4.19", "4.18"), "file:///a%20b.iso")
    images = told(ImageStatus(entry, BaseImageState.WAITING), ImageStatus(ENTRY, BaseImageState.WAITING))
    assert [image["openshift_version"] for image in images] == ["4.19", "4.18", "4.19"]
    assert images[0]["url"] == "file:///a%20b.iso"


def test_no_credential_of_a_url_is_told() -> None:
    url = "https://user:top@secret@origin.test:8443/a/base.iso?X-Sig=top-secret#top-secret"
    (image,) = told(ImageStatus(OsImage("1", "x86_64", "full-iso", ("4",), url), BaseImageState.WAITING))
    assert image["url"] == "https://origin.test:8443/a/base.iso"


def test_there_may_be_none() -> None:
    assert told() == []
