from __future__ import annotations

import json
from pathlib import Path

import pytest

from image_service.settings.base_images import CatalogSettings, StreamSettings
from image_service.settings.stream_sources import StreamSource, parse_coreos_streams

ENTRY = {
    "stream": "stable",
    "url": "https://builds.example/streams/stable.json?token=top-secret",
    "architectures": ["x86_64", "aarch64"],
    "keep": 3,
}


def faults(*entries: object) -> list[str]:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the callers compare all of it
        parse_coreos_streams(json.dumps(entries))
    return list(refusal.value.args)


def test_entry_is_parsed_and_its_url_not_shown() -> None:
    (source,) = parse_coreos_streams(json.dumps([{**ENTRY, "unknown": None}]))
    assert source == StreamSource("stable", str(ENTRY["url"]), ("x86_64", "aarch64"), 3)
    assert "top-secret" not in repr(source)


def test_architectures_have_the_names_of_rpm() -> None:
    (source,) = parse_coreos_streams(json.dumps([{**ENTRY, "architectures": ["amd64", "arm64", "s390x"]}]))
    assert source.architectures == ("x86_64", "aarch64", "s390x")


def test_stream_of_a_config_map_is_parsed() -> None:
    entry = {
        "stream": "4.22-rhel-10",
        "url": "file:///srv/boot%20images.yaml",
        "architectures": ["s390x"],
        "config_map_stream": "rhel-10",
        "openshift_version": "4.22",
        "mirror": ["metal/raw.xz", "qemu-secex/qcow2.gz"],
    }
    (source,) = parse_coreos_streams(json.dumps([entry]))
    assert (source.key, source.openshift_version) == ("rhel-10", "4.22")
    assert source.mirror == ("metal/raw.xz", "qemu-secex/qcow2.gz")
    assert source.local_path == Path("/srv/boot images.yaml")


def test_two_releases_are_kept_by_default() -> None:
    entry = {name: value for name, value in ENTRY.items() if name != "keep"}
    (source,) = parse_coreos_streams(json.dumps([entry]))
    assert source.keep == 2


@pytest.mark.parametrize("text", ["{}", "[]", '"x"'])
def test_text_that_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must be a JSON list with at least one entry$"):
        parse_coreos_streams(text)


def test_malformed_json_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^must be JSON: "):
        parse_coreos_streams("[")


@pytest.mark.parametrize(
    ("member", "value", "expected"),
    [
        ("stream", None, "stream must be a string, in double quotes"),
        ("stream", 39, "stream must be a string, in double quotes"),
        ("stream", "a/b", "stream must be at most 100"),
        ("stream", "rhel/9", "stream must be at most 100"),
        ("config_map_stream", None, "config_map_stream must be a string, in double quotes"),
        ("config_map_stream", "", "config_map_stream must be at most 100"),
        ("openshift_version", 4.22, "openshift_version must be a string, in double quotes"),
        ("openshift_version", "4 22", "openshift_version must be at most 100"),
        ("mirror", "metal/raw.xz", "mirror must be a list of artifacts such as metal/raw.xz"),
        ("mirror", ["raw.xz"], "mirror must be a list"),
        ("mirror", ["metal/iso"], "mirror must be a list"),
        ("mirror", ["metal/../raw"], "mirror must be a list"),
        ("mirror", [1], "mirror must be a list"),
        ("url", "file://host/etc/streams.yaml", "url must be a file:///path, http"),
        ("url", "s3://bucket/streams.json", "url must be a file:///path, http"),
        ("url", "https://user:top-secret@builds.example/", "url must be a file:///path, http"),
        ("url", 1, "url must be a file:///path, http"),
        ("url", "https://builds..example/", "url must have a host name of at most 253"),
        ("architectures", [], "architectures must be a list"),
        ("architectures", "x86_64", "architectures must be a list"),
        ("architectures", ["x86-64"], "architectures: each must be one of x86_64,"),
        ("architectures", [1], "architectures: each must be one of x86_64,"),
        ("architectures", ["x86_64", "aarch64", "amd64"], "architectures: each must be there once"),
        ("keep", 0, "keep must be a whole number from 1 to 100"),
        ("keep", 101, "keep must be a whole number from 1 to 100"),
        ("keep", True, "keep must be a whole number"),
        ("keep", "2", "keep must be a whole number"),
    ],
)
def test_fault_names_entry_and_member_but_no_url(member: str, value: object, expected: str) -> None:
    (fault,) = faults(ENTRY, {**ENTRY, "stream": "next", member: value})
    assert fault.startswith(f"entry 1: {expected}")
    assert "top-secret" not in fault


def test_all_faults_are_reported_at_once() -> None:
    assert len(faults({}, 1, {**ENTRY, "keep": 0})) == 5


def test_duplicate_stream_is_refused() -> None:
    assert faults(ENTRY, ENTRY) == ["2 entries have the stream stable"]


def test_release_payload_is_a_source() -> None:
    entry = {**ENTRY, "url": "release://quay.example/ocp/release:5.0", "config_map_stream": "rhel-10"}
    (source,) = parse_coreos_streams(json.dumps([entry]))
    assert (source.url, source.key, source.local_path) == (entry["url"], "rhel-10", None)
    named = "entry 0: url in a registry must be that of a release payload"
    for url in ("release://quay.example/ocp/release:5.0#rhel-9", "oci://quay.example/ocp/release:5.0"):
        (fault,) = faults({**entry, "url": url})
        assert fault.startswith(named)
    assert faults({**entry, "url": "release://quay.example/Upper"})[0].startswith("entry 0: url must have")


def test_release_payload_has_no_signatures() -> None:
    sources = parse_coreos_streams(json.dumps([{**ENTRY, "url": "release://quay.example/release:5.0"}]))
    catalog = CatalogSettings(signing_keys=Path("keys"))
    assert list(StreamSettings(sources=sources).contradictions_with(catalog)) == [
        "SIGNING_KEYS: stable of COREOS_STREAMS come from release payloads, which have no OpenPGP signatures"
    ]
    assert not list(StreamSettings(sources=sources).contradictions_with(CatalogSettings()))
