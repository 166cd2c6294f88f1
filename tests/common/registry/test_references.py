from __future__ import annotations

import pytest

from image_service.common.registry.references import (
    ImageReference,
    RegistryFile,
    is_registry_url,
    parse_registry_url,
)
from image_service.core.errors import FormatError

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("oci://quay.io/coreos/iso", ImageReference("quay.io", "coreos/iso", "latest")),
        ("oci://quay.io/coreos/iso:4.20", ImageReference("quay.io", "coreos/iso", "4.20")),
        ("oci://localhost:5000/iso", ImageReference("localhost:5000", "iso", "latest")),
        ("oci://[::1]:5000/iso:a", ImageReference("[::1]:5000", "iso", "a")),
        ("oci://Quay.IO:443/a", ImageReference("quay.io", "a", "latest")),
        (f"oci://quay.io/a@{DIGEST}", ImageReference("quay.io", "a", digest=DIGEST)),
        (f"oci://quay.io/a:tag@{DIGEST}", ImageReference("quay.io", "a", digest=DIGEST)),
        (
            f"oci://quay.io/a@sha512:{'0' * 128}",
            ImageReference("quay.io", "a", digest=f"sha512:{'0' * 128}"),
        ),
        (
            "oci://quay.io/a__b/c--d/e.f_g:T_1.-",
            ImageReference("quay.io", "a__b/c--d/e.f_g", "T_1.-"),
        ),
    ],
)
def test_names(url: str, expected: ImageReference) -> None:
    assert parse_registry_url(url) == RegistryFile(expected)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("oci://h/r:t#/coreos/coreos-x86_64.iso", "coreos/coreos-x86_64.iso"),
        ("oci://h/r:t#disk.iso", "disk.iso"),
        ("oci://h/r:t#/disk/*", "disk/*"),
        ("oci://h/r:t#/a%20b", "a b"),
        ("oci://h/r:t#", ""),
    ],
)
def test_paths(url: str, path: str) -> None:
    found = parse_registry_url(url)
    assert (found.path, found.is_release) == (path, False)


def test_release_names_a_stream() -> None:
    found = parse_registry_url(f"release://quay.io/ocp/release@{DIGEST}#rhel-10")
    assert (found.is_release, found.path) == (True, "rhel-10")
    assert str(found) == f"release://quay.io/ocp/release@{DIGEST}#rhel-10"


@pytest.mark.parametrize(
    "url",
    [
        "oci://",
        "oci://quay.io",
        "oci://quay.io/",
        "oci:///a",
        "oci://user:secret@quay.io/a",
        "oci://quay.io/a?secret",
        "oci://quay.io/A",
        "oci://quay.io/a//b",
        "oci://quay.io/../a",
        "oci://quay.io/a:",
        "oci://quay.io/a:-t",
        f"oci://quay.io/a:{'t' * 129}",
        "oci://quay.io/a@sha256:0",
        f"oci://quay.io/a@md5:{'0' * 32}",
        f"oci://quay.io/a@sha256:{'A' * 64}",
        "oci://quay.io:99999/a",
        "oci://[::1/a",
        "oci://quay.io/a b",
        "oci://quay.io/a#/b/../c",
        "oci://quay.io/a#//b",
        "oci://quay.io/a#/*/b",
        "oci://quay.io/a#/b/*.iso",
        "oci://quay.io/a#/b%00",
        "release://quay.io/a#/coreos/coreos-x86_64.iso",
        "https://quay.io/a",
    ],
)
def test_what_is_refused_is_not_repeated(url: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse_registry_url(url)
    assert "must" in caught.value.detail
    assert "secret" not in caught.value.detail


@pytest.mark.parametrize(
    ("url", "expected"),
    [("oci://x", True), ("release://x", True), ("OCI://x", False), ("https://oci/", False), ("", False)],
)
def test_schemes(url: str, *, expected: bool) -> None:
    assert is_registry_url(url) is expected
