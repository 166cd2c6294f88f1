from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
import yaml

from image_service.core.families.coreos.stream_metadata import (
    Release,
    StreamArtifact,
    parse_offer,
    parse_stream,
    select_releases,
)
from image_service.core.families.coreos.stream_mirror import (
    PublishedFile,
    PublishedRelease,
    PublishedStream,
    render_config_map,
    render_stream,
)
from tests.core.families.coreos.streams import SHA256, fixture

BASE = "https://images.example:8443/some/path"
PUBLISHED = datetime(2026, 7, 21, 14, 7, 12, tzinfo=UTC)


def validate(document: object) -> None:
    """Validate against the schema of stream metadata, including dates."""
    schema = json.loads(fixture("stream.schema.json"))
    checker = jsonschema.FormatChecker(formats=["date-time"])
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(document)


def as_published(release: Release) -> PublishedRelease:
    """Return a release as a complete mirror publishes it."""

    def file(artifact: StreamArtifact) -> PublishedFile:
        return PublishedFile(artifact.name, artifact.sha256)

    parts = {"kernel": release.kernel, "initramfs": release.initramfs, "rootfs": release.rootfs}
    return PublishedRelease(
        release.architecture,
        release.version,
        release.published,
        file(release.iso),
        {name: file(artifact) for name, artifact in parts.items() if artifact},
        release.original,
    )


def of_fedora() -> list[PublishedRelease]:
    document = parse_stream(fixture("fcos-stable.json"))
    architectures = json.loads(fixture("fcos-stable.json"))["architectures"]
    return [as_published(release) for release in select_releases(document, architectures)]


def artifacts(document: Any) -> list[dict[str, str]]:
    """Yield every artifact of a document, as coreos-installer finds them."""
    return [
        artifact
        for architecture in document["architectures"].values()
        for platform in architecture["artifacts"].values()
        for form in platform["formats"].values()
        for artifact in form.values()
    ]


@pytest.mark.parametrize("name", ["fcos-stable.json", "rhcos-4.21-subset.json"])
def test_schema_accepts_real_metadata(name: str) -> None:
    validate(json.loads(fixture(name)))


def test_schema_refuses_invalid_dates() -> None:
    document = json.loads(render_stream("stable", BASE, of_fedora()))
    document["metadata"]["last-modified"] = "yesterday"
    with pytest.raises(jsonschema.ValidationError):
        validate(document)


def test_locations_of_fedora_are_replaced_by_ours() -> None:
    published = json.loads(fixture("fcos-stable.json"))
    document = json.loads(render_stream("stable", BASE, of_fedora()))
    validate(document)
    assert document["stream"] == "stable"
    assert document["metadata"] == {"last-modified": "2026-07-21T14:07:12Z", "generator": "image-service"}
    assert set(document["architectures"]) == set(published["architectures"])
    for architecture, ours in document["architectures"].items():
        theirs = published["architectures"][architecture]["artifacts"]["metal"]
        assert ours["artifacts"]["metal"]["release"] == theirs["release"]
        formats = ours["artifacts"]["metal"]["formats"]
        for form in ("iso", "pxe"):
            for part, artifact in formats[form].items():
                original = theirs["formats"][form][part]
                name = original["location"].rpartition("/")[2]
                assert artifact["sha256"] == original["sha256"]
                location = f"{BASE}/streams/stable/{theirs['release']}/{architecture}/{name}"
                assert artifact["location"] == location


@pytest.mark.parametrize("name", ["fcos-stable.json", "rhcos-4.21-subset.json"])
def test_every_artifact_has_a_signature_url(name: str) -> None:
    releases = select_releases(parse_stream(fixture(name)), ["x86_64"])
    found = artifacts(json.loads(render_stream("a", BASE, [as_published(release) for release in releases])))
    ours = [each for each in found if urlsplit(each["location"]).netloc == "images.example:8443"]
    assert len(ours) == 4
    assert len(found) > 4
    for artifact in found:
        assert artifact["signature"] == f"{artifact['location']}.sig"


@pytest.mark.parametrize("name", ["fcos-stable.json", "rhcos-4.21-subset.json"])
def test_real_images_and_artifacts_that_are_not_served_are_passed_on(name: str) -> None:
    published = json.loads(fixture(name))["architectures"]["x86_64"]
    releases = select_releases(parse_stream(fixture(name)), ["x86_64"])
    document = json.loads(render_stream("a", BASE, [as_published(release) for release in releases]))
    validate(document)
    ours = document["architectures"]["x86_64"]
    for found in (published, ours):
        for form in ("iso", "pxe"):
            del found["artifacts"]["metal"]["formats"][form]
    for platform in published["artifacts"].values():
        for form in platform["formats"].values():
            for artifact in form.values():
                artifact.setdefault("signature", f"{artifact['location']}.sig")
    assert ours == published


def with_original(original: dict[str, Any]) -> dict[str, Any]:
    """Return what a mirror says about the architecture of a release, beside its ISO."""
    release = PublishedRelease("x86_64", "1", PUBLISHED, PublishedFile("a.iso", SHA256), {}, original)
    (found,) = json.loads(render_stream("stable", BASE, [release]))["architectures"].values()
    assert found["artifacts"]["metal"]["formats"].pop("iso")["disk"]["location"].startswith(BASE)
    assert isinstance(found, dict)
    return found


def disk(location: str, **members: object) -> dict[str, Any]:
    return {"disk": {"location": location, "sha256": SHA256, **members}}


RAW = "https://origin.example/raw.xz"


@pytest.mark.parametrize(
    ("artifact", "expected"),
    [
        (disk(RAW), disk(RAW, signature=f"{RAW}.sig")),
        (disk(RAW, signature=""), disk(RAW, signature=f"{RAW}.sig")),
        (disk(f"{RAW}?a=1"), disk(f"{RAW}?a=1", signature=f"{RAW}.sig?a=1")),
        (disk(RAW, signature=f"{RAW}.asc"), disk(RAW, signature=f"{RAW}.asc")),
        (
            disk(RAW, **{"uncompressed-sha256": SHA256}),
            disk(RAW, signature=f"{RAW}.sig", **{"uncompressed-sha256": SHA256}),
        ),
    ],
)
def test_artifact_is_passed_on_with_a_signature_url(artifact: object, expected: object) -> None:
    original = {"artifacts": {"metal": {"release": "1", "formats": {"raw.xz": artifact}}}}
    assert with_original(original)["artifacts"]["metal"]["formats"] == {"raw.xz": expected}


@pytest.mark.parametrize(
    "artifacts",
    [
        1,
        {"aws": 1},
        {"aws": {"release": "1", "formats": []}},
        {"aws": {"release": 1, "formats": {"vmdk": disk(RAW)}}},
        {"aws": {"formats": {"vmdk": disk(RAW)}}},
        {"aws": {"release": "1", "formats": {"vmdk": disk("file:///etc/passwd")}}},
        {"aws": {"release": "1", "formats": {"vmdk": disk(RAW, sha256="1")}}},
        {"aws": {"release": "1", "formats": {"vmdk": {"disk": None}}}},
    ],
)
def test_artifacts_that_are_not_valid_are_left_out(artifacts: object) -> None:
    assert with_original({"artifacts": artifacts})["artifacts"] == {"metal": {"release": "1", "formats": {}}}


def test_images_are_passed_on_as_they_are() -> None:
    images = {"aws": {"regions": {"eu-west-1": {"release": "1", "image": "ami-1"}}}}
    found = with_original({"images": images, "rhel-coreos-extensions": {"a": 1}, "unknown": 1})
    assert (found["images"], found["rhel-coreos-extensions"]) == (images, {"a": 1})
    assert "unknown" not in found


def test_rendered_metadata_is_read_back() -> None:
    document = parse_stream(render_stream("stable", BASE, of_fedora()))
    releases = select_releases(document, [release.architecture for release in of_fedora()])
    assert [as_published(release) for release in releases] == of_fedora()


def test_release_without_pxe_files_has_the_iso_only() -> None:
    release = PublishedRelease("s390x", "1", PUBLISHED, PublishedFile("a.iso", SHA256), {})
    document = json.loads(render_stream("stable", BASE, [release]))
    validate(document)
    assert [*document["architectures"]["s390x"]["artifacts"]["metal"]["formats"]] == ["iso"]


def test_date_is_that_of_the_newest_release_and_output_is_deterministic() -> None:
    old = PublishedRelease("s390x", "1", PUBLISHED, PublishedFile("a.iso", SHA256), {})
    new = PublishedRelease("x86_64", "2", PUBLISHED + timedelta(days=1), PublishedFile("b.iso", SHA256), {})
    rendered = render_stream("stable", BASE, [old, new])
    assert json.loads(rendered)["metadata"]["last-modified"] == "2026-07-22T14:07:12Z"
    assert render_stream("stable", BASE, [new, old]) == rendered


def test_config_map_has_the_name_and_keys_of_openshift() -> None:
    config_map = yaml.safe_load(
        render_config_map(BASE, [PublishedStream("rhcos-4.21", "rhcos-4.21", of_fedora())])
    )
    assert (config_map["apiVersion"], config_map["kind"]) == ("v1", "ConfigMap")
    assert config_map["metadata"]["name"] == "coreos-bootimages"
    assert config_map["metadata"]["namespace"] == "openshift-machine-config-operator"
    assert all(isinstance(value, str) for value in config_map["metadata"]["annotations"].values())
    assert set(config_map["data"]) == {"releaseVersion", "stream", "streams"}
    assert all(isinstance(value, str) for value in config_map["data"].values())
    document = json.loads(render_stream("rhcos-4.21", BASE, of_fedora()))
    assert json.loads(config_map["data"]["stream"]) == document
    assert json.loads(config_map["data"]["streams"]) == {"rhcos-4.21": document}


def test_release_that_looks_like_a_number_stays_text() -> None:
    releases = [
        PublishedRelease("s390x", "1.0", PUBLISHED + timedelta(days=1), PublishedFile("a.iso", SHA256), {}),
        PublishedRelease("x86_64", "0.9", PUBLISHED, PublishedFile("b.iso", SHA256), {}),
    ]
    config_map = yaml.safe_load(render_config_map(BASE, [PublishedStream("a", "a", releases)]))
    assert config_map["data"]["releaseVersion"] == "1.0"


def test_config_map_of_two_streams_is_golden_and_read_back() -> None:
    images = {"gcp": {"release": "10.2", "project": "rhcos-cloud", "name": "rhcos-10-2-gcp-x86-64"}}
    streams = [
        PublishedStream(
            f"4.22-rhel-{number}",
            f"rhel-{number}",
            [
                PublishedRelease(
                    "x86_64",
                    version,
                    PUBLISHED,
                    PublishedFile(f"rhcos-{version}-live-iso.x86_64.iso", SHA256),
                    {},
                    original,
                )
            ],
        )
        for number, version, original in (
            (9, "9.8.20260715-0", {}),
            (10, "10.2.20260715-0", {"images": images}),
        )
    ]
    rendered = render_config_map("https://images.example", streams, "4.22.0")
    assert rendered == (Path(__file__).parent / "coreos-bootimages.yaml").read_bytes()
    for number, is_default in ((9, True), (10, False)):
        offer = parse_offer(rendered, f"rhel-{number}")
        assert (offer.document["stream"], offer.is_default) == (f"4.22-rhel-{number}", is_default)
