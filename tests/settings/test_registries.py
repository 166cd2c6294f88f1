from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.base_images import CatalogSettings
from image_service.settings.os_images import parse_os_images
from image_service.settings.settings import Settings
from image_service.settings.warnings import find_warnings
from tests.registry_origin import auth_entry

if TYPE_CHECKING:
    from collections.abc import Mapping

ENTRY = {"openshift_version": "4.19", "version": "9.6.1-0", "cpu_architecture": "x86_64"}
DIGEST = f"sha256:{'0' * 64}"


def faults(**members: object) -> tuple[str, ...]:
    with pytest.raises(ValueError, match="entry 0") as caught:
        parse_os_images(json.dumps([{**ENTRY, **members}]))
    return caught.value.args


def settings_of(environ: Mapping[str, str]) -> Settings:
    return Settings.from_environment({"DATA_DIR": "/tmp", **environ}, standalone=True)


@pytest.mark.parametrize(
    "members",
    [
        {"url": "oci://quay.io/coreos/iso:1"},
        {"url": "oci://quay.io/coreos/iso:1", "remote": True},
        {"url": f"oci://quay.io/coreos/iso@{DIGEST}#/coreos/coreos-x86_64.iso"},
        {"url": f"release://quay.io/ocp/release@{DIGEST}#rhel-10"},
        {"url": "oci://quay.io/coreos/disk#/disk/*", "type": "metal-disk"},
    ],
)
def test_urls_of_registries(members: dict[str, object]) -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, **members}]))
    assert image.url == members["url"]
    assert image.local_path is None


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"url": "oci://user:top-secret@quay.io/a"}, "url must be oci://host"),
        ({"url": "oci://quay.io/UPPER"}, "url must have a repository"),
        ({"url": "oci://quay.io/a@sha256:0"}, "url must have a digest"),
        ({"url": "oci://quay.io/a?top-secret", "remote": True}, "url must be oci://host"),
        ({"url": "release://quay.io/a#/coreos/x.iso"}, "url must be release://host"),
        ({"url": "release://quay.io/a", "remote": True}, 'must be without "remote"'),
        ({"url": "ftp://quay.io/a"}, "oci://host[:port]/repository"),
    ],
)
def test_wrong_urls_are_refused(members: dict[str, object], expected: str) -> None:
    (fault,) = faults(**members)
    assert expected in fault
    assert "top-secret" not in fault


@pytest.mark.parametrize(
    ("url", "remote", "is_fault"),
    [
        ("oci://quay.io/a", False, True),
        (f"release://quay.io/a@{DIGEST}#rhel-9", False, True),
        ("oci://quay.io/a#/x.iso", False, False),
        ("https://quay.io/x.iso", False, False),
    ],
)
def test_signature_must_have_a_place(url: str, *, remote: bool, is_fault: bool) -> None:
    images = parse_os_images(json.dumps([{**ENTRY, "url": url, "remote": remote}]))
    found = list(CatalogSettings(images=images, signing_keys=Path("keys")).contradictions({}))
    assert bool(found) is is_fault


def test_files_are_read_at_the_start(tmp_path: Path) -> None:
    first, second, conf = tmp_path / "a.json", tmp_path / "b.json", tmp_path / "registries.conf"
    first.write_text(json.dumps({"auths": {"a": auth_entry()}}))
    second.write_text(json.dumps({"auths": {"b": auth_entry()}}))
    conf.write_text('[[registry]]\nlocation = "a"')
    environ = {
        "REGISTRY_AUTH_FILE": f"{first}, {second}",
        "CONTAINERS_REGISTRIES_CONF": str(conf),
        "REGISTRY_CERTS_DIR": str(tmp_path),
        "INSECURE_REGISTRIES": "Registry.Lab:5000,[::1]:5000",
    }
    found = settings_of(environ).registries
    assert found.auth_files == (first, second)
    assert found.registries_conf == conf
    assert found.certs_dirs == (tmp_path,)
    assert found.insecure == ("registry.lab:5000", "[::1]:5000")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("REGISTRY_AUTH_FILE", "top-secret", "must be JSON"),
        ("REGISTRY_AUTH_FILE", '{"auths": {"a": {"auth": "top-secret"}}}', "the entry for a must have"),
        ("CONTAINERS_REGISTRIES_CONF", "[registries.search]", "version 2"),
        ("CONTAINERS_REGISTRIES_CONF", "kind: top-secret", "document 1: kind must be one of"),
        ("REGISTRY_CERTS_DIR", "", "must be a directory"),
    ],
)
def test_files_that_are_wrong_are_faults(tmp_path: Path, name: str, content: str, reason: str) -> None:
    (tmp_path / "file").write_text(content)
    with pytest.raises(ConfigurationError) as caught:
        settings_of({name: str(tmp_path / "file")})
    assert name in caught.value.detail
    assert reason in caught.value.detail
    assert "top-secret" not in caught.value.detail


def test_insecure_registries_are_named_in_a_warning() -> None:
    settings = settings_of({"INSECURE_REGISTRIES": "registry.lab:5000"})
    found = list(find_warnings(settings, "https://images.example", standalone=True))
    assert [each for each in found if "can impersonate registry.lab:5000" in each]
