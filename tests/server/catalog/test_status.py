from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import attrs
import pytest

from image_service.server.catalog.lifecycle.status import (
    BaseImageState,
    ImageStatus,
    describe_unready,
    render_statuses,
)
from image_service.settings.os_images import OsImage

ENTRY = OsImage("9.6.1-0", "x86_64", "full-iso", ("4.19",), "https://origin.test/base.iso")
SINCE = datetime(2026, 1, 2, 3, 4, 5, 600, tzinfo=UTC)
KEYS = [
    *("version", "openshift_version", "cpu_architecture", "type", "family", "state", "state_since", "reason"),
    *("bytes_done", "bytes_total", "size", "sha256", "remote", "verified", "retry_at", "url"),
]


def rendered(*statuses: ImageStatus) -> list[dict[str, object]]:
    document = json.loads(render_statuses(statuses))
    assert document.keys() == {"images", "superseded"}
    images: list[dict[str, object]] = document["images"]
    return images


def test_ready_image_is_rendered_with_all_members() -> None:
    ready = ImageStatus(ENTRY, BaseImageState.READY, "", 7, 7, 7, "ab" * 32, family="coreos", since=SINCE)
    assert rendered(ready) == [
        {
            "version": "9.6.1-0",
            "openshift_version": "4.19",
            "cpu_architecture": "x86_64",
            "type": "full-iso",
            "family": "coreos",
            "state": "ready",
            "state_since": "2026-01-02T03:04:05Z",
            "reason": None,
            "bytes_done": 7,
            "bytes_total": 7,
            "size": 7,
            "sha256": "ab" * 32,
            "remote": False,
            "verified": None,
            "retry_at": None,
            "url": "https://origin.test/base.iso",
        }
    ]
    assert list(rendered(ready)[0]) == KEYS


def test_failed_image_has_reason_and_retry_time() -> None:
    (failed,) = rendered(
        ImageStatus(ENTRY, BaseImageState.FAILED, "cable cut", 3, None, retry_seconds=3600.0)
    )
    assert (failed["state"], failed["reason"]) == ("failed", "cable cut")
    assert (failed["bytes_done"], failed["bytes_total"], failed["size"]) == (3, None, None)
    retry_at = datetime.strptime(str(failed["retry_at"]), "%Y-%m-%dT%H:%M:%S%z")
    assert timedelta(minutes=50) < retry_at - datetime.now(UTC) <= timedelta(hours=1)


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


READY = ImageStatus(ENTRY, BaseImageState.READY, size=7)
DERIVING = ImageStatus(ENTRY, BaseImageState.DERIVING, size=7)
WAITING = ImageStatus(ENTRY, BaseImageState.WAITING)
FAILED = ImageStatus(ENTRY, BaseImageState.FAILED, "cable cut")
NAME = "rhcos-full-iso-9.6.1-0-x86_64.iso"


@pytest.mark.parametrize(
    ("statuses", "sentence"),
    [
        ([], "no base images yet: no release of COREOS_STREAMS is known; see the log"),
        ([DERIVING], f"0 of 1 base image is ready; {NAME} is deriving; see /images"),
        ([READY, READY], "2 of 2 base images are ready; see /images"),
        ([WAITING], f"0 of 1 base image is ready; {NAME} is waiting; see /images"),
        (
            [READY, FAILED, WAITING],
            f"1 of 3 base images is ready; {NAME} is failed: cable cut; {NAME} is waiting; see /images",
        ),
        (
            [attrs.evolve(READY, state=BaseImageState.DEGRADED, reason="x"), READY, FAILED],
            f"2 of 3 base images are ready; {NAME} is failed: cable cut; see /images",
        ),
        (
            [WAITING] * 5,
            f"0 of 5 base images are ready; {'; '.join([f'{NAME} is waiting'] * 3)}; 2 more; see /images",
        ),
    ],
)
def test_unready_service_says_which_images_and_why(statuses: list[ImageStatus], sentence: str) -> None:
    assert describe_unready(statuses) == sentence
    public = describe_unready(statuses, is_public=True)
    assert sentence.startswith(public)
    assert NAME not in public


def test_reason_of_an_unready_service_is_short_and_without_credentials() -> None:
    reason = f"cannot fetch https://user:s3cr3t@mirror.test/an.iso?sig=s3cr3t: {'very ' * 100}long"
    sentence = describe_unready([attrs.evolve(FAILED, reason=reason)] * 100)
    assert "s3cr3t" not in sentence
    assert len(sentence) < 1000
