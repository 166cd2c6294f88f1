from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.images.reference import Kind
from image_service.settings.os_images import TYPES, parse_os_images, precedence

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


def test_reads_an_entry() -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "sha512": 1, "anything": None}]))
    assert (image.version, image.cpu_architecture, image.image_type) == ("9.6.1-0", "x86_64", "full-iso")
    assert image.openshift_versions == ("4.19",)
    assert image.url == ENTRY["url"]
    assert image.local_path is None
    assert image.file_name == "rhcos-full-iso-9.6.1-0-x86_64.iso"
    assert "top-secret" not in repr(image)


def test_knows_types_that_are_kinds() -> None:
    assert {Kind(name) for name in TYPES} == {Kind.FULL_ISO, Kind.DISCONNECTED_ISO}


@pytest.mark.parametrize("url", ["file:///a%20b/c.iso", "file://localhost/a%20b/c.iso"])
def test_unescapes_a_file_url(url: str) -> None:
    (image,) = parse_os_images(json.dumps([{**ENTRY, "url": url}]))
    assert image.local_path == Path("/a b/c.iso")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be JSON: Expecting value"),
        ("{}", "must be a JSON list with at least one entry"),
        ("[]", "must be a JSON list with at least one entry"),
        ('["x"]', "entry 0: must be an object"),
    ],
)
def test_refuses_what_is_no_list_of_objects(text: str, says: str) -> None:
    (told,) = faults(text)
    assert told.startswith(says)


@pytest.mark.parametrize("name", list(ENTRY))
def test_requires_each_member(name: str) -> None:
    without = {key: value for key, value in ENTRY.items() if key != name}
    (told,) = faults(json.dumps([ENTRY, without]))
    assert told.startswith(f"entry 1: {name} is missing; it must be ")

    for wrong in (None, 4.19, "", ["x"]):
        (told,) = faults(json.dumps([{**ENTRY, name: wrong}]))
        assert told.startswith(f"entry 0: {name} must be ")


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *itertools.product(
            ["version", "openshift_version"],
            ["..", ".hidden", "-x", "a/b", "a b", "a%41", "a+b", "a~b", "a,b", "a\n", "ä", "x" * 101],
        ),
        *itertools.product(["cpu_architecture"], ["x86-64", "x86.64", "..", "_x", "a/b", "x\n", "x" * 33]),
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
            ],
        ),
    ],
)
def test_refuses(name: str, wrong: object) -> None:
    (told,) = faults(json.dumps([{**ENTRY, name: wrong}]))
    assert told.startswith(f"entry 0: {name} must be ")
    assert "pw" not in told


def test_tells_every_fault_of_every_entry() -> None:
    told = faults(json.dumps([{**ENTRY, "version": "", "url": ""}, ENTRY, 7, {**ENTRY, "type": "x"}]))
    assert [line.split(" must")[0] for line in told] == [
        "entry 0: url",
        "entry 0: version",
        "entry 2:",
        "entry 3: type",
    ]


def test_merges_entries_of_one_image() -> None:
    versions = ["4.9", "4.18.0-ec.3", "4.18", "4.18.0-rc.1", "4.18.0-ec.10"]
    images = parse_os_images(json.dumps([{**ENTRY, "openshift_version": version} for version in versions]))
    (image,) = images
    assert image.openshift_versions == ("4.18", "4.18.0-rc.1", "4.18.0-ec.10", "4.18.0-ec.3", "4.9")


def test_keeps_other_architectures_types_and_builds_apart() -> None:
    others = [{"cpu_architecture": "aarch64"}, {"type": "disconnected-iso"}, {"version": "9.6.2-0"}, {}]
    images = parse_os_images(
        json.dumps([{**ENTRY, **other, "url": f"http://h/{i}"} for i, other in enumerate(others)])
    )
    assert len({image.file_name for image in images}) == 4
    assert [image.url for image in images] == [f"http://h/{i}" for i in range(4)]


def test_refuses_two_urls_for_one_image() -> None:
    (told,) = faults(
        json.dumps([ENTRY, {**ENTRY, "url": "http://elsewhere/x"}, {**ENTRY, "type": "full-iso"}])
    )
    assert (
        told
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
def test_orders_versions(lower: str, higher: str) -> None:
    assert precedence(lower) < precedence(higher)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))))
def test_orders_releases_by_number(releases: list[tuple[int, int, int]]) -> None:
    texts = [".".join(map(str, release)) for release in releases]
    assert sorted(texts, key=precedence) == [".".join(map(str, release)) for release in sorted(releases)]


@given(st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True)))
def test_orders_any_versions(texts: list[str]) -> None:
    ordered = sorted(texts, key=precedence)
    assert sorted(ordered) == sorted(texts)
    backwards = texts[::-1]
    assert sorted(backwards, key=precedence) == ordered


def test_takes_a_digest_of_any_entry_of_an_image() -> None:
    entries = [ENTRY, {**ENTRY, "openshift_version": "4.18", "sha256": "AB" * 32}]
    (image,) = parse_os_images(json.dumps(entries))
    assert image.sha256 == "ab" * 32
    assert parse_os_images(json.dumps([ENTRY]))[0].sha256 is None


def test_refuses_two_digests_of_one_image() -> None:
    entries = [{**ENTRY, "sha256": digit * 64} for digit in "ab"]
    with pytest.raises(
        ValueError, match=r"have 2 different sha256s; one image must have one sha256"
    ) as refusal:
        parse_os_images(json.dumps(entries))
    assert len(refusal.value.args) == 1


@pytest.mark.parametrize("digest", ["", "ab", "xy" * 32, "ab" * 33, 1, None])
def test_refuses_what_is_no_digest(digest: object) -> None:
    with pytest.raises(ValueError, match="entry 0: sha256 must be 64 hexadecimal digits, or absent"):
        parse_os_images(json.dumps([{**ENTRY, "sha256": digest}]))
