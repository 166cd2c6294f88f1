from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from image_service.common.registry.manifests import ImageIndex, ImageManifest, parse_manifest
from image_service.core.errors import FormatError

if TYPE_CHECKING:
    from collections.abc import Mapping

OCI = "application/vnd.oci.image.manifest.v1+json"
OCI_INDEX = "application/vnd.oci.image.index.v1+json"
TAR = "application/vnd.oci.image.layer.v1.tar"
DOCKER_TAR = "application/vnd.docker.image.rootfs.diff.tar.gzip"
RAW = "application/octet-stream"


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


def layer(number: int, media_type: str = RAW, **annotations: str) -> dict[str, Any]:
    names = {"title": "org.opencontainers.image.title", "unpack": "io.deis.oras.content.unpack"}
    return {
        "mediaType": media_type,
        "digest": digest(number),
        "size": number,
        "annotations": {names[name]: value for name, value in annotations.items()},
    }


def manifest_of(*layers: Mapping[str, Any]) -> ImageManifest:
    parsed = parse_manifest(json.dumps({"schemaVersion": 2, "mediaType": OCI, "layers": layers}).encode())
    assert isinstance(parsed, ImageManifest)
    return parsed


def index_of(*platforms: str | None) -> ImageIndex:
    manifests = []
    for number, platform in enumerate(platforms):
        entry = layer(number, OCI)
        if platform is not None:
            os, _, architecture = platform.partition("/")
            entry["platform"] = {"os": os, "architecture": architecture}
        manifests.append(entry)
    parsed = parse_manifest(json.dumps({"schemaVersion": 2, "manifests": manifests}).encode(), OCI_INDEX)
    assert isinstance(parsed, ImageIndex)
    return parsed


@pytest.mark.parametrize(
    ("layers", "path", "expected"),
    [
        ([layer(1)], "", 1),
        ([layer(1, "application/vnd.kubevirt.disk.raw+zstd")], "", 1),
        ([layer(1, TAR, title="a.iso")], "", 1),  # what oras gives a file without a media type
        ([layer(1, title="a.iso"), layer(2, title="a.iso.sig")], "a.iso.sig", 2),
        ([layer(1, f"{TAR}+gzip"), layer(2, title="a.iso")], "", 2),
        ([layer(1, f"{TAR}+gzip"), layer(2, title="a.iso")], "disk/a.img", None),
        ([layer(1, f"{TAR}+zstd")], "disk/a.img", None),
        ([layer(1, DOCKER_TAR)], "disk/a.img", None),
        ([layer(1, f"{TAR}+gzip", title="disk", unpack="true")], "disk/a.img", None),
    ],
)
def test_layer_that_is_the_file(layers: list[Any], path: str, expected: int | None) -> None:
    found = manifest_of(*layers).find_file(path)
    assert (None if found is None else found.size) == expected


@pytest.mark.parametrize(
    ("layers", "path", "reason"),
    [
        ([], "", "has 0 files"),
        ([layer(1, DOCKER_TAR)], "", "is a container image"),
        ([layer(1, title="a.iso"), layer(2, title="b.iso")], "", "has 2 files.*'a.iso', 'b.iso'"),
        ([layer(1, title="a.iso")], "c.iso", "no file 'c.iso'; it has 'a.iso'"),
    ],
)
def test_no_such_file(layers: list[Any], path: str, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        manifest_of(*layers).find_file(path)


def test_upper_layers_go_first() -> None:
    manifest = manifest_of(layer(1, DOCKER_TAR), layer(2, DOCKER_TAR), layer(3, title="a"))
    assert [each.size for each in manifest.file_systems] == [2, 1]


@pytest.mark.parametrize(
    ("platforms", "architecture", "expected"),
    [
        (["linux/amd64", "linux/arm64"], "aarch64", 1),
        (["linux/amd64", "linux/s390x", "linux/ppc64le"], "ppc64le", 2),
        (["unknown/unknown", "linux/amd64"], "x86_64", 1),
        (["windows/amd64", "linux/amd64"], "x86_64", 1),
        (["linux/riscv64"], "riscv64", 0),
        (["linux/x86_64"], "x86_64", 0),  # what oras was told by a person
        (["linux/amd64", "linux/amd64"], "x86_64", 0),
        ([None], "x86_64", 0),
    ],
)
def test_platforms(platforms: list[str | None], architecture: str, expected: int) -> None:
    assert index_of(*platforms).select(architecture).size == expected


@pytest.mark.parametrize(
    ("platforms", "reason"),
    [
        (["linux/arm64", "linux/s390x"], "nothing for linux/amd64; it has linux/arm64, linux/s390x"),
        ([None, None], "it has no platform"),
        ([], "it has no platform"),
        (["unknown/unknown"], "it has no platform"),
        (["windows/amd64"], "it has windows/amd64"),
        (["linux/a\nb", "linux/arm64"], "it has linux/unknown, linux/arm64"),
    ],
)
def test_no_such_platform(platforms: list[str | None], reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        index_of(*platforms).select("x86_64")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "not an object"),
        (b'{"schemaVersion": 1}', "newer tool"),
        (b'{"schemaVersion": 2}', "is not an image"),
        (b'{"schemaVersion": 2, "mediaType": "application/x"}', "'application/x', which is not an image"),
        (b'{"schemaVersion": 2, "layers": [], "manifests": []}', "at once"),
        (b'{"schemaVersion": 2, "layers": {}}', "not a list"),
        (b'{"schemaVersion": 2, "layers": [1]}', r"layers\[0\] of the manifest is not an object"),
        (b'{"schemaVersion": 2, "layers": [{"digest": "sha256:0", "size": 1}]}', "no digest"),
        (b'{"schemaVersion": 2, "layers": [{"digest": 5, "size": 1}]}', "no digest"),
        *(
            (
                json.dumps({"schemaVersion": 2, "layers": [{"digest": digest(1), "size": size}]}).encode(),
                "no size",
            )
            for size in (-1, True, "1", None, 1.5, 2**63)
        ),
        (
            json.dumps(
                {"schemaVersion": 2, "layers": [{"digest": digest(1), "size": 1, "mediaType": 1}]}
            ).encode(),
            "no media type",
        ),
    ],
)
def test_what_is_no_manifest(content: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        parse_manifest(content)


def test_index_in_the_place_of_an_image_is_not_taken_for_one() -> None:
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "layers": []}).encode()
    with pytest.raises(FormatError, match="manifests of the manifest is not a list"):
        parse_manifest(content, OCI)
