from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.images.reference import Kind
from image_service.settings.os_images import ISO_TYPES, parse_os_images, precedence

ENTRY = {
    "openshift_version": "4.19",
    "cpu_architecture": "x86_64",
    "version": "9.6.1-0",
    "url": "https://mirror.example/rhcos.iso?signature=top-secret",
}


def faults(text: str) -> list[str]:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the callers compare all of it
        parse_os_images(text)
    return list(refusal.value.args)


def test_entry_is_parsed_and_its_url_not_shown() -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "sha512": 1, "anything": None}]))
    assert (image.version, image.cpu_architecture, image.image_type) == ("9.6.1-0", "x86_64", "full-iso")
    assert image.openshift_versions == ("4.19",)
    assert image.url == ENTRY["url"]
    assert image.local_path is None
    assert image.file_name == "rhcos-full-iso-9.6.1-0-x86_64.iso"
    assert "top-secret" not in repr(image)


def test_types_are_kinds_of_iso() -> None:
    assert {Kind(name) for name in ISO_TYPES} == {Kind.FULL_ISO, Kind.DISCONNECTED_ISO}


@pytest.mark.parametrize("url", ["file:///a%20b/c.iso", "file://localhost/a%20b/c.iso"])
def test_file_url_is_unescaped(url: str) -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "url": url}]))
    assert image.local_path == Path("/a b/c.iso")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "must be JSON: Expecting value"),
        ("{}", "must be a JSON list with at least one entry"),
        ("[]", "must be a JSON list with at least one entry"),
        ('["x"]', "entry 0: must be an object"),
    ],
)
def test_text_that_is_no_list_of_objects_is_refused(text: str, expected: str) -> None:
    (fault,) = faults(text)
    assert fault.startswith(expected)


@pytest.mark.parametrize("name", list(ENTRY))
def test_missing_member_is_refused(name: str) -> None:
    without = {key: value for key, value in ENTRY.items() if key != name}
    (fault,) = faults(json.dumps([ENTRY, without]))
    assert fault.startswith(f"entry 1: {name} is missing; it must be ")

    for wrong in (None, 4.19, ["x"]):
        (fault,) = faults(json.dumps([{**ENTRY, name: wrong}]))
        assert fault == f"entry 0: {name} must be a string, in double quotes"


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *itertools.product(
            ["version", "openshift_version"],
            ["", "..", ".hidden", "-x", "a/b", "a b", "a%41", "a+b", "a~b", "a,b", "a\n", "ä", "x" * 101],
        ),
        *itertools.product(["cpu_architecture"], ["x86-64", "x86_64\n", "..", "AMD64", "i386", "vax", ""]),
        ("type", "minimal-iso"),
        ("type", None),
        ("type", []),
        *itertools.product(
            ["url"],
            [
                "rhcos.iso",
                "ftp://h/x",
                "s3://bucket/x",
                "http://",
                "http:///x",
                "http://h:0/x",
                "http://h:port/x",
                "http://[::1/x",
                "http://user:pw@h/x",
                "http://h/x#f",
                "http://h/a b",
                "http://h/ä",
                "http://h/\r\nx",
                "file://host/x",
                "file:x",
                "file:///x?y",
                "file:///x%00y",
            ],
        ),
    ],
)
def test_malformed_member_is_refused(name: str, wrong: object) -> None:
    (fault,) = faults(json.dumps([{**ENTRY, name: wrong}]))
    assert fault.startswith(f"entry 0: {name} must be ")
    assert "pw" not in fault


def test_all_faults_of_all_entries_are_reported() -> None:
    found = faults(json.dumps([{**ENTRY, "version": "", "url": ""}, ENTRY, 7, {**ENTRY, "type": "x"}]))
    assert [line.split(" must")[0] for line in found] == [
        "entry 0: url",
        "entry 0: version",
        "entry 2:",
        "entry 3: type",
    ]


def test_entries_of_one_image_are_merged() -> None:
    versions = ["4.9", "4.18.0-ec.3", "4.18", "4.18.0-rc.1", "4.18.0-ec.10"]
    images = parse_os_images(json.dumps([{**ENTRY, "openshift_version": version} for version in versions]))
    (image,) = images
    assert image.openshift_versions == ("4.18", "4.18.0-rc.1", "4.18.0-ec.10", "4.18.0-ec.3", "4.9")


def test_other_architecture_type_or_build_is_another_image() -> None:
    others = [{"cpu_architecture": "aarch64"}, {"type": "disconnected-iso"}, {"version": "9.6.2-0"}, {}]
    images = parse_os_images(
        json.dumps([{**ENTRY, **other, "url": f"http://h/{i}"} for i, other in enumerate(others)])
    )
    assert len({image.file_name for image in images}) == 4
    assert [image.url for image in images] == [f"http://h/{i}" for i in range(4)]


@pytest.mark.parametrize(
    ("name", "expected"), [("amd64", "x86_64"), ("arm64", "aarch64"), ("s390x", "s390x")]
)
def test_architecture_has_the_name_of_rpm(name: str, expected: str) -> None:
    images = parse_os_images(json.dumps([{**ENTRY, "cpu_architecture": each} for each in (name, expected)]))
    assert [image.cpu_architecture for image in images] == [expected]
    assert images[0].file_name.endswith(f"-{expected}.iso")


def test_two_urls_for_one_image_are_refused() -> None:
    (fault,) = faults(
        json.dumps([ENTRY, {**ENTRY, "url": "http://elsewhere/x"}, {**ENTRY, "type": "full-iso"}])
    )
    assert (
        fault
        == "entries of rhcos-full-iso-9.6.1-0-x86_64.iso have 2 different urls; one image must have one url"
    )


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        ("4.9", "4.10"),
        ("4.18.0-ec.0", "4.18"),
        ("4.18.0-ec.0", "4.18.0"),
        ("4.18.0-ec.9", "4.18.0-ec.10"),
        ("4.18.0-ec.9", "4.18.0-rc.0"),
        ("4.18", "4.18.1"),
        ("4.17.30", "4.18.0-ec.0"),
        ("4.9", "5"),
        ("4.18-multi.x", "4.18"),
    ],
)
def test_precedence_orders_versions(lower: str, higher: str) -> None:
    assert precedence(lower) < precedence(higher)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))))
def test_precedence_orders_releases_by_number(releases: list[tuple[int, int, int]]) -> None:
    texts = [".".join(map(str, release)) for release in releases]
    assert sorted(texts, key=precedence) == [".".join(map(str, release)) for release in sorted(releases)]


@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)))
def test_precedence_orders_any_texts(texts: list[str]) -> None:
    ordered = sorted(texts, key=precedence)
    assert sorted(ordered) == sorted(texts)
    backwards = texts[::-1]
    assert sorted(backwards, key=precedence) == ordered


def test_digest_of_any_entry_is_the_image_s() -> None:
    entries = [ENTRY, {**ENTRY, "openshift_version": "4.18", "sha256": "AB" * 32}]
    (image,) = parse_os_images(json.dumps(entries))
    assert image.sha256 == "ab" * 32
    assert parse_os_images(json.dumps([ENTRY]))[0].sha256 is None


def test_two_digests_of_one_image_are_refused() -> None:
    entries = [{**ENTRY, "sha256": digit * 64} for digit in "ab"]
    with pytest.raises(
        ValueError, match=r"have 2 different sha256s; one image must have one sha256"
    ) as refusal:
        parse_os_images(json.dumps(entries))
    assert len(refusal.value.args) == 1


@pytest.mark.parametrize("digest", ["", "ab", "xy" * 32, "ab" * 33, 1, None])
def test_malformed_digest_is_refused(digest: object) -> None:
    with pytest.raises(ValueError, match="entry 0: sha256 must be 64 hexadecimal digits, or absent"):
        parse_os_images(json.dumps([{**ENTRY, "sha256": digest}]))


def test_metal_disk_is_no_iso() -> None:
    disk, iso = parse_os_images(json.dumps([{**ENTRY, "type": "metal-disk"}, ENTRY]))
    assert (disk.is_iso, disk.file_name) == (False, "rhcos-metal-disk-9.6.1-0-x86_64.img")
    assert (iso.is_iso, iso.file_name) == (True, "rhcos-full-iso-9.6.1-0-x86_64.iso")


def test_metal_disk_cannot_be_remote() -> None:
    assert faults(json.dumps([{**ENTRY, "type": "metal-disk", "remote": True}])) == [
        "entry 0: remote must be false, or absent, for type metal-disk: disk images are fetched whole"
    ]


REGISTRY_ENTRY = {**ENTRY, "url": "oci://registry.example/coreos/iso:1", "remote": True, "verify": True}
DIGESTS = {"digests": "https://mirror.example/digests", "digests_sha256": "0" * 64}


def test_layer_of_a_registry_can_be_verified_as_a_whole() -> None:
    (image,) = parse_os_images(json.dumps([REGISTRY_ENTRY]))
    assert image.verify
    (image,) = parse_os_images(json.dumps([{**REGISTRY_ENTRY, "verify": False}]))
    assert not image.verify
    fault = 'verify needs "remote": true and an oci:// url, whose registry names the digest'
    for members in ({"remote": False}, {"url": ENTRY["url"]}):
        assert faults(json.dumps([{**REGISTRY_ENTRY, **members}])) == [f"entry 0: {fault}"]
    assert faults(json.dumps([{**REGISTRY_ENTRY, "verify": "yes"}])) == [
        "entry 0: verify must be true or false, without quotes, or absent"
    ]
    assert faults(json.dumps([{**REGISTRY_ENTRY, **DIGESTS}])) == [
        "entry 0: verify must be absent with digests: each block is compared with them"
    ]
