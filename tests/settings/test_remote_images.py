"""The members of OS_IMAGES that remote images have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from image_service.settings.base_images import CatalogSettings
from image_service.settings.os_images import parse_os_images
from image_service.settings.settings import Settings

ENTRY = {
    "openshift_version": "4.19",
    "cpu_architecture": "x86_64",
    "version": "9.6.1-0",
    "url": "https://mirror.example/rhcos.iso",
}
DIGESTS = {"digests": "https://mirror.example/rhcos.digests?key=top-secret", "digests_sha256": "AB" * 32}


def faults(**members: object) -> list[str]:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the callers compare all of it
        parse_os_images(json.dumps([{**ENTRY, **members}]))
    return list(refusal.value.args)


def test_remote_image_has_digests() -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "remote": True, **DIGESTS}]))
    assert image.remote
    assert image.digests_url == DIGESTS["digests"]
    assert image.digests_sha256 == "ab" * 32
    assert "top-secret" not in repr(image)
    (local,) = parse_os_images(json.dumps([{**ENTRY, "remote": False}]))
    assert not local.remote


def test_remote_image_may_be_in_s3() -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "remote": True, "url": "s3://bucket/a/key.iso"}]))
    assert image.url == "s3://bucket/a/key.iso"
    assert image.local_path is None


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"remote": "true"}, "remote must be true or false, without quotes"),
        ({"remote": True, "url": "file:///base.iso"}, "url of a remote image must be s3://bucket/key"),
        ({"remote": True, "url": "s3://bucket"}, "url of a remote image must be s3://bucket/key"),
        ({"url": "s3://bucket/key"}, 'or s3://bucket/key with "remote": true'),
        ({"remote": True, "digests": "file:///x"}, "digests and digests_sha256 must be there both"),
        ({"remote": True, "digests_sha256": "ab" * 32}, "digests and digests_sha256 must be there both"),
        ({"remote": True, **DIGESTS, "digests_sha256": "x"}, "digests_sha256 must be 64 hexadecimal digits"),
        ({"remote": True, **DIGESTS, "digests": 1}, "digests must be a file:///path"),
        (DIGESTS, 'digests need "remote": true'),
    ],
)
def test_wrong_member_is_refused(members: dict[str, object], expected: str) -> None:
    (fault,) = faults(**members)
    assert fault.startswith("entry 0: ")
    assert expected in fault
    assert "top-secret" not in fault


def test_entries_of_one_image_are_all_remote_or_none() -> None:
    text = json.dumps([{**ENTRY, "remote": True}, {**ENTRY, "openshift_version": "4.20"}])
    with pytest.raises(ValueError, match="have 2 different remotes; one image must have one remote"):
        parse_os_images(text)


def test_signing_keys_need_digests() -> None:
    images = parse_os_images(json.dumps([{**ENTRY, "remote": True}]))
    (fault,) = CatalogSettings(images=images, signing_keys=Path("keys")).contradictions({})
    assert fault.startswith("SIGNING_KEYS: the remote images rhcos-full-iso-9.6.1-0-x86_64.iso of OS_IMAGES")
    signed = parse_os_images(json.dumps([{**ENTRY, "remote": True, **DIGESTS}]))
    assert list(CatalogSettings(images=signed, signing_keys=Path("keys")).contradictions({})) == []


def test_digest_lists_get_the_credentials_of_downloads(tmp_path: Path) -> None:
    text = json.dumps([{**ENTRY, "remote": True, **DIGESTS}])
    environ = {"DATA_DIR": str(tmp_path), "OS_IMAGES": text}
    settings = Settings.from_environment(environ, standalone=True)
    assert settings.source_urls == (ENTRY["url"], DIGESTS["digests"])


def test_credentials_of_s3_are_not_shown(tmp_path: Path) -> None:
    credentials = {"AWS_ACCESS_KEY_ID": "key-of-s3", "AWS_SECRET_ACCESS_KEY": "secret-of-s3"}
    settings = Settings.from_environment({"DATA_DIR": str(tmp_path), **credentials}, standalone=True)
    assert (settings.s3.access_key_id, settings.s3.secret_access_key) == ("key-of-s3", "secret-of-s3")
    assert "of-s3" not in repr(settings)
