from __future__ import annotations

import copy
import json
import tracemalloc
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.core.errors import StreamMetadataInvalid
from image_service.core.families.coreos.stream_metadata import (
    MAX_DOCUMENT_BYTES,
    Release,
    StreamArtifact,
    StreamDisk,
    offered_members,
    parse_offer,
    parse_stream,
    select_releases,
)
from image_service.core.families.coreos.stream_mirror import PublishedFile, PublishedRelease, render_stream
from tests.core.families.coreos.streams import SHA256, config_map, fixture, stream, text

if TYPE_CHECKING:
    from collections.abc import Callable

METAL = ("architectures", "x86_64", "artifacts", "metal")
ISO = (*METAL, "formats", "iso", "disk")
ISO_PATH = "$.architectures.x86_64.artifacts.metal.formats.iso.disk"
FCOS = "https://builds.coreos.fedoraproject.org/prod/streams/stable/builds/44.20260707.3.1"
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def faults(document: object, *architectures: str) -> list[str]:
    with pytest.raises(StreamMetadataInvalid) as refusal:
        select_releases(parse_stream(text(document)), architectures or ("x86_64",))
    return refusal.value.detail.split("\n")


def changed(path: tuple[str, ...], change: Callable[[dict[str, Any], str], object]) -> dict[str, Any]:
    """Return the valid document with one member changed."""
    document = stream()
    node = document
    for name in path[:-1]:
        node = node[name]
    change(node, path[-1])
    return document


def with_value(path: tuple[str, ...], value: object) -> dict[str, Any]:
    return changed(path, lambda node, name: node.__setitem__(name, value))


def without(path: tuple[str, ...]) -> dict[str, Any]:
    return changed(path, lambda node, name: node.__delitem__(name))


def test_metadata_of_fedora_is_read() -> None:
    document = parse_stream(fixture("fcos-stable.json"))
    aarch64, x86_64 = select_releases(document, ["aarch64", "x86_64"])
    assert (aarch64.architecture, x86_64.architecture) == ("aarch64", "x86_64")
    assert x86_64.version == "44.20260707.3.1"
    assert x86_64.published == datetime(2026, 7, 21, 14, 7, 12, tzinfo=UTC)
    location = f"{FCOS}/x86_64/fedora-coreos-44.20260707.3.1-live-iso.x86_64.iso"
    assert x86_64.iso.location == location
    assert x86_64.iso.signature == f"{location}.sig"
    published = json.loads(fixture("fcos-stable.json"))["architectures"]["x86_64"]["artifacts"]["metal"]
    assert x86_64.iso.sha256 == published["formats"]["iso"]["disk"]["sha256"]
    for name in ("kernel", "initramfs", "rootfs"):
        artifact = getattr(x86_64, name)
        assert {
            "location": artifact.location,
            "signature": artifact.signature,
            "sha256": artifact.sha256,
        } == published["formats"]["pxe"][name]


def test_metadata_of_openshift_without_signatures_is_read() -> None:
    (release,) = select_releases(parse_stream(fixture("rhcos-4.21-subset.json")), ["x86_64"])
    assert release.version == "9.8.20260428-0"
    assert release.iso.name == "rhcos-9.8.20260428-0-live-iso.x86_64.iso"
    assert release.iso.signature is None
    assert release.rootfs is not None
    assert release.rootfs.signature is None


def test_every_architecture_of_real_metadata_can_be_selected() -> None:
    document = parse_stream(fixture("fcos-stable.json"))
    architectures = json.loads(fixture("fcos-stable.json"))["architectures"]
    assert [release.architecture for release in select_releases(document, architectures)] == [*architectures]


def test_unused_members_are_ignored() -> None:
    document = stream() | {"unknown": 1}
    document["architectures"]["x86_64"]["artifacts"] |= {"aws": 1}
    document["architectures"]["x86_64"]["images"] = 1
    document["architectures"]["s390x"] = "rubbish"
    (release,) = select_releases(parse_stream(text(document)), ["x86_64"])
    assert release == select_releases(stream(), ["x86_64"])[0]


@pytest.mark.parametrize(
    "path", [METAL[:2], METAL[:3], METAL, (*METAL, "formats"), (*METAL, "formats", "iso")]
)
@pytest.mark.parametrize("value", ["absent", None])
def test_architecture_without_an_iso_is_left_out(path: tuple[str, ...], value: object) -> None:
    document = without(path) if value else with_value(path, None)
    document["architectures"]["aarch64"] = stream("44.1.2.3", "aarch64")["architectures"]["aarch64"]
    (release,) = select_releases(parse_stream(text(document)), ["x86_64", "aarch64"])
    assert release.architecture == "aarch64"


def test_empty_signature_is_none() -> None:
    document = stream()
    formats = document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]
    for artifact in (formats["iso"]["disk"], formats["pxe"]["kernel"]):
        artifact["signature"] = ""
    (release,) = select_releases(parse_stream(text(document)), ["x86_64"])
    assert release.kernel is not None
    assert release.rootfs is not None
    assert release.iso.signature is release.kernel.signature is None
    assert release.rootfs.signature is not None


@pytest.mark.parametrize(
    ("date", "expected"),
    [
        ("2026-07-21T16:07:12+02:00", "2026-07-21T14:07:12+00:00"),
        ("2026-07-20T23:37:12.999-14:30", "2026-07-21T14:07:12+00:00"),
        ("2026-07-21T14:07:12-00:00", "2026-07-21T14:07:12+00:00"),
        ("2026-07-21T14:07:12.123456789Z", "2026-07-21T14:07:12+00:00"),
    ],
)
def test_dates_are_in_utc(date: str, expected: str) -> None:
    document = with_value(("metadata", "last-modified"), date)
    (release,) = select_releases(parse_stream(text(document)), ["x86_64"])
    assert release.published.isoformat() == expected


@pytest.mark.parametrize(
    "date",
    [
        "2026-07-21T14:07:12",
        "2026-07-21T14:07:12+0200",
        "2026-07-21T14:07:12+24:00",
        "0001-01-01T00:00:00+01:00",
    ],
)
def test_dates_without_a_zone_or_beyond_the_calendar_are_refused(date: str) -> None:
    assert faults(with_value(("metadata", "last-modified"), date))[0].startswith(
        "$.metadata.last-modified: must"
    )


def rhel(number: int) -> dict[str, Any]:
    return stream(f"{number}.8.20260715-0", "x86_64", "s390x")


@pytest.mark.parametrize("as_yaml", [False, True], ids=["json", "yaml"])
def test_streams_of_a_config_map_are_found_by_name(*, as_yaml: bool) -> None:
    published = config_map({"rhel-9": rhel(9), "rhel-10": rhel(10)}, default="rhel-9", as_yaml=as_yaml)
    for name, number, is_default in (("rhel-9", 9, True), ("rhel-10", 10, False)):
        offer = parse_offer(published, name)
        assert (offer.document, offer.is_default) == (rhel(number), is_default)


def test_config_map_of_one_stream_has_no_list() -> None:
    offer = parse_offer(config_map({}, default=rhel(9)), "any")
    assert (offer.document, offer.is_default) == (rhel(9), True)


@pytest.mark.parametrize("key", ["", "centos-10"])
def test_only_stream_is_the_default_one(key: str) -> None:
    offer = parse_offer(config_map({key: rhel(10)}), "centos-10")
    assert (offer.document, offer.is_default) == (rhel(10), True)


def test_stream_metadata_is_an_offer() -> None:
    offer = parse_offer(text(stream()), "any")
    assert (offer.document, offer.is_default) == (stream(), True)


@pytest.mark.parametrize(
    ("published", "says"),
    [
        (
            config_map({"rhel-9": rhel(9), "rhel-10": rhel(10)}),
            'has no stream okd; there are "rhel-9", "rhel-10"',
        ),
        (config_map({"rhel-9": rhel(9), "": rhel(10)}), "has no stream okd"),
        (config_map({"okd": 1}), "data.streams.okd: must be an object"),
        (
            config_map({"okd": {**rhel(9), "metadata": {}}}),
            "data.streams.okd.metadata.last-modified: is missing",
        ),
        (config_map({"okd": rhel(9)}, default={}), "data.stream.stream: is missing"),
        (b'{"kind": "ConfigMap"}', "data.stream: is missing"),
        (b'{"kind": "ConfigMap", "data": {"stream": "["}}', "data.stream: must be JSON"),
        (b'{"kind": "ConfigMap", "data": {"streams": "[]"}}', "data.streams: must be an object"),
        (b'{"kind": "ConfigMap", "data": {"stream": {}}}', "data of a ConfigMap must be an object of texts"),
        (b"kind: ConfigMap\ndata: [", "must be JSON in UTF-8, or a ConfigMap in YAML"),
        (b"kind: ConfigMaps\n", "must be JSON in UTF-8, or a ConfigMap in YAML"),
        (b"kind: ConfigMap\nx: " + b"[" * 100_000, "must be JSON in UTF-8, or a ConfigMap in YAML"),
        (
            b"kind: ConfigMap\nx: " + b"[x," * 9_999 + b"]" * 9_999,
            "must be JSON in UTF-8, or a ConfigMap in YAML",
        ),
        (b"kind: ConfigMap\nx: !!python/object/apply:os.getcwd []", "data.stream: is missing"),
        (b"kind: ConfigMap\nx: 2026-13-01T00:00:00Z", "data.stream: is missing"),
        (b"kind: ConfigMap\nx: 1" + b":1" * 500_000, "data.stream: is missing"),
        (b"kind: ConfigMap\ndata:\n  stream: 0x7fffffffffffffff", "data.stream: must be JSON"),
        (b"kind: ConfigMap\ndata:\n  stream: .inf", "data.stream: must be JSON"),
        (b"\xff ConfigMap", "must be JSON in UTF-8, or a ConfigMap in YAML"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_config_maps_are_refused(published: bytes, says: str) -> None:
    with pytest.raises(StreamMetadataInvalid) as refusal:
        parse_offer(published, "okd")
    assert says in refusal.value.detail


@pytest.mark.parametrize("missing", [("signature",), ("kernel", "initramfs", "rootfs")])
def test_optional_members_may_be_missing(missing: tuple[str, ...]) -> None:
    document = stream()
    formats = document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]
    for name in missing:
        formats["iso"]["disk"].pop(name, None)
        formats["pxe"].pop(name, None)
    (release,) = select_releases(parse_stream(text(document)), ["x86_64"])
    assert (release.iso.signature is None) == (missing == ("signature",))
    assert (release.kernel is None) == ("kernel" in missing)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("stream",), 1, "$.stream: must be a string"),
        (("metadata",), [], "$.metadata: must be an object"),
        (("metadata", "last-modified"), "yesterday", "$.metadata.last-modified: must be a date as RFC 3339"),
        (("metadata", "last-modified"), "2026-13-01T00:00:00Z", "$.metadata.last-modified: must be a date"),
        (("architectures",), [], "$.architectures: must be an object"),
        (METAL[:2], 1, "$.architectures.x86_64: must be an object"),
        (METAL[:3], 1, "$.architectures.x86_64.artifacts: must be an object"),
        ((*METAL, "release"), 44, "$.architectures.x86_64.artifacts.metal.release: must be a string"),
        ((*METAL, "release"), "../44", "$.architectures.x86_64.artifacts.metal.release: must be at most 100"),
        ((*METAL, "formats", "iso"), {}, f"{ISO_PATH}: is missing"),
        (ISO, None, f"{ISO_PATH}: must be an object"),
        ((*ISO, "sha256"), SHA256.upper(), f"{ISO_PATH}.sha256: must be 64 lower-case"),
        ((*ISO, "sha256"), SHA256 + "\n", f"{ISO_PATH}.sha256: must be 64 lower-case"),
        ((*ISO, "signature"), " ", f"{ISO_PATH}.signature: must be an http:// or https:// URL"),
        ((*ISO, "signature"), "x.sig", f"{ISO_PATH}.signature: must be an http:// or https:// URL"),
        (
            (*METAL, "formats", "pxe", "rootfs", "sha256"),
            None,
            "$.architectures.x86_64.artifacts.metal.formats.pxe.rootfs.sha256: must be a string",
        ),
    ],
)
def test_fault_has_the_path_of_its_member(path: tuple[str, ...], value: object, says: str) -> None:
    (told,) = faults(with_value(path, value))
    assert told.startswith(says)


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://origin.example/a.iso",
        "//origin.example/a.iso",
        "a.iso",
        "https://user:secret@origin.example/a.iso",
        "https://origin.example/a.iso#b",
        "https://origin.example/",
        "https://origin.example/a/..",
        "https://origin.example/.hidden",
        "https://origin.example/a%2Fb",
        "https://origin.example/a b",
        f"https://origin.example/{'a' * 2048}",
    ],
)
def test_invalid_location_is_refused_without_quoting_it(location: str) -> None:
    (told,) = faults(with_value((*ISO, "location"), location))
    assert told.startswith(f"{ISO_PATH}.location: must be an http:// or https:// URL")
    assert location not in told


@pytest.mark.parametrize(
    "path", [("stream",), ("metadata",), ("metadata", "last-modified"), (*ISO, "sha256")]
)
def test_missing_member_is_named(path: tuple[str, ...]) -> None:
    assert faults(without(path)) == [f"$.{'.'.join(path)}: is missing"]


def test_faults_of_all_architectures_are_listed() -> None:
    document = stream("44.1.2.3", "x86_64", "aarch64", "s390x")
    for architecture in ("x86_64", "aarch64"):
        del document["architectures"][architecture]["artifacts"]["metal"]["release"]
    assert faults(document, "x86_64", "s390x", "aarch64") == [
        "$.architectures.x86_64.artifacts.metal.release: is missing",
        "$.architectures.aarch64.artifacts.metal.release: is missing",
    ]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"", "$: must be JSON in UTF-8"),
        (b"\xff\xfe\xfd", "$: must be JSON in UTF-8"),
        (b"[" * 100_000, "$: must be JSON in UTF-8"),
        (b"[]", "$: must be an object"),
        (b" " * (MAX_DOCUMENT_BYTES + 1), f"$: has {MAX_DOCUMENT_BYTES + 1} bytes"),
    ],
)
def test_anything_but_metadata_is_refused(written: bytes, says: str) -> None:
    with pytest.raises(StreamMetadataInvalid) as refusal:
        parse_stream(written)
    assert refusal.value.detail.startswith(says)


@given(st.data())
def test_random_members_give_releases_or_a_fault(data: st.DataObject) -> None:
    document = stream()
    node: dict[str, Any] = document
    while True:
        name = data.draw(st.sampled_from(sorted(node)))
        if not isinstance(node[name], dict) or data.draw(st.booleans()):
            break
        node = node[name]
    node[name] = data.draw(JSON)
    found = ["x86_64"]
    with suppress(StreamMetadataInvalid):
        releases = select_releases(parse_stream(text(document)), ["x86_64"])
        found = [release.architecture for release in releases]
        offered_members(document)
    assert found in (["x86_64"], [])


def test_documents_with_equal_offers_have_equal_offered_members() -> None:
    earlier = stream()
    later = copy.deepcopy(earlier)
    later["metadata"]["last-modified"] = "2026-07-22T00:00:00Z"
    later["architectures"]["x86_64"]["images"] = {"aws": {"regions": {}}}
    assert offered_members(later) == offered_members(earlier)
    later["architectures"]["x86_64"]["artifacts"]["gcp"] = {"release": "44.1.2.3"}
    assert offered_members(later) == offered_members(earlier)
    later["architectures"]["x86_64"]["artifacts"]["metal"]["release"] = "44.1.2.4"
    assert offered_members(later) != offered_members(earlier)
    assert offered_members(stream("44.1.2.3", "x86_64", "aarch64")) != offered_members(earlier)


def test_artifact_name_is_the_last_path_segment() -> None:
    artifact = StreamArtifact("https://origin.example/a/b.iso?token=c/d.iso", SHA256)
    assert artifact.name == "b.iso"


def test_releases_compare_by_value() -> None:
    first, second = (select_releases(stream(), ["x86_64"])[0] for _ in range(2))
    assert isinstance(first, Release)
    assert first == second


def disk_file(name: str) -> StreamArtifact:
    return StreamArtifact(f"https://origin.example/{name}", SHA256)


def with_disks(**platforms: object) -> dict[str, Any]:
    document = stream("44.1.2.3")
    document["architectures"]["x86_64"]["artifacts"].update(platforms)
    return document


def offer(name: str, *formats: str, release: str = "44.1.2.3") -> dict[str, Any]:
    members = {"location": f"https://origin.example/{name}", "sha256": SHA256}
    return {"release": release, "formats": {each: {"disk": members} for each in formats}}


def test_disk_images_of_platforms_are_read() -> None:
    document = with_disks(
        qemu=offer("qemu", "qcow2.xz"), vmware=offer("vmware", "ova"), gcp=offer("gcp", "tar.gz")
    )
    metal = document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]
    metal |= offer("metal", "raw.xz")["formats"] | offer("4k", "4k.raw.xz")["formats"]
    (release,) = select_releases(document, ["x86_64"])
    assert release.disks == (
        StreamDisk("metal", "raw", disk_file("metal")),
        StreamDisk("qemu", "qcow2", disk_file("qemu")),
        StreamDisk("vmware", "ova", disk_file("vmware")),
    )


@pytest.mark.parametrize(
    "member",
    [
        offer("qemu", "qcow2.xz", release="44.1.2.2"),
        offer("qemu", "qcow2.zip"),
        offer("a/../", "qcow2"),
        {"release": "44.1.2.3"},
        {"release": 7, "formats": {}},
        {"release": "44.1.2.3", "formats": {"qcow2": {"disk": None}}},
        [],
        None,
    ],
    ids=[
        "another release",
        "unknown format",
        "no file name",
        "no formats",
        "number",
        "null",
        "list",
        "no qemu",
    ],
)
def test_unusable_disk_image_is_left_out(member: object) -> None:
    (release,) = select_releases(with_disks(qemu=member), ["x86_64"])
    assert release.disks == ()


def test_disk_images_of_a_real_stream_are_read() -> None:
    (release,) = select_releases(parse_stream(fixture("fcos-stable.json")), ["x86_64"])
    assert [(disk.platform, disk.format) for disk in release.disks] == [
        ("metal", "raw"),
        ("qemu", "qcow2"),
        ("vmware", "ova"),
        ("azure", "vhd"),
        ("aws", "vmdk"),
        ("openstack", "qcow2"),
    ]


# Hostile documents


def hostile(member: bytes) -> bytes:
    """Return a valid document with one more member."""
    return text(stream())[:-1] + b', "x": ' + member + b"}"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (hostile(b"[" * 500 + b"]" * 500), "$: must have at most 64 levels of objects and arrays"),
        (hostile(b"[" * 64 + b"]" * 64), "$: must have at most 64 levels of objects and arrays"),
        (hostile(b'{"a": 1, "b": 2, "a": 1}'), '$: must not have the member "a" twice in an object'),
        (hostile(b'{"\\u0000\\n": 1, "\\u0000\\n": 2}'), '$: must not have the member "\\u0000\\n" twice'),
        (
            hostile(b"{" + b",".join(b'"%d": 0' % number for number in [*range(90_000), 7]) + b"}"),
            '$: must not have the member "7" twice',
        ),
        (hostile(b"[" + b"[]," * 100_000 + b"0]"), "$: must have at most 100000 values"),
        (hostile(b"NaN"), "$: must not have the number NaN"),
        (hostile(b"-Infinity"), "$: must not have the number -Infinity"),
        (hostile(b"1e999"), "$: must not have a number as large as 1e999"),
        (hostile(b"9" * 5000), "$: must be JSON in UTF-8"),
        (hostile(b"1")[:-1], "$: must be JSON in UTF-8"),
        (b'{"stream": "a", "stream": "b"}', '$: must not have the member "stream" twice'),
    ],
    ids=range(12),
)
def test_hostile_documents_are_refused_with_the_reason(written: bytes, says: str) -> None:
    for parse in (parse_stream, lambda written: parse_offer(written, "okd")):
        with pytest.raises(StreamMetadataInvalid) as refusal:
            parse(written)
        assert refusal.value.detail.startswith(says)
        assert len(refusal.value.detail) < 200


def test_hostile_document_takes_little_memory() -> None:
    written = hostile(b"[" + b'{"":0},' * 1_000_000 + b"0]")
    tracemalloc.start()
    with pytest.raises(StreamMetadataInvalid):
        parse_offer(written, "okd")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * 2**20


def test_many_stream_names_make_a_short_message() -> None:
    published = config_map({f"{'x' * 200}{number}": {} for number in range(1000)})
    with pytest.raises(StreamMetadataInvalid) as refusal:
        parse_offer(published, "okd")
    assert refusal.value.detail.endswith(" and 990 more")
    assert len(refusal.value.detail) < 1200


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", -1),
        ("size", 2**63),
        ("size", 1e300),
        ("uncompressed-sha256", {"..": "/etc/passwd"}),
        ("../../x", "\0\x1b[31m\ud800"),
        ("x" * 4096, None),
    ],
    ids=range(6),
)
def test_unused_members_are_passed_on_whatever_they_are(name: str, value: object) -> None:
    document = stream()
    document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"][name] = value
    (release,) = select_releases(parse_stream(text(document)), ["x86_64"])
    published = PublishedRelease(
        "x86_64",
        release.version,
        release.published,
        PublishedFile(release.iso.name, SHA256),
        {},
        release.original,
    )
    rendered = json.loads(render_stream("stable", "https://mirror.example", [published]))
    disk = rendered["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]
    assert disk["location"].startswith("https://mirror.example/streams/stable/")


ODD_NAMES = [
    *(
        "..",
        ".",
        "",
        "%2e%2e",
        "a%2Fb",
        "a%00",
        "a\0b",
        "a\nb",
        "a\x1b[2J",
        "ä",
        "\u202egpj.exe",
        "a b",
        "a?b#",
    ),
    *("-rf", "~root", "x" * 4096, "a\\b", "a;b", "a'b", "a|b"),
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_file_names_are_refused_and_other_architectures_stand(name: str) -> None:
    document = stream("44.1.2.3", "x86_64", "s390x")
    document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]["iso"]["disk"]["location"] = (
        f"https://origin.example/files/{name}"
    )
    (told,) = faults(document, "x86_64", "s390x")
    assert told.startswith(f"{ISO_PATH}.location: must be")
    assert name not in told or name in {"", "."}
    (other,) = select_releases(parse_stream(text(document)), ["s390x"])
    assert other.architecture == "s390x"


@pytest.mark.parametrize("name", [*ODD_NAMES, "44/1", "../44", "44" * 51])
def test_odd_versions_are_refused(name: str) -> None:
    (told,) = faults(with_value((*METAL, "release"), name))
    assert told.startswith("$.architectures.x86_64.artifacts.metal.release: must be at most 100 characters")


def test_files_of_one_name_are_refused_and_case_tells_them_apart() -> None:
    document = stream()
    formats = document["architectures"]["x86_64"]["artifacts"]["metal"]["formats"]
    kernel = formats["pxe"]["kernel"]
    kernel["location"] = "https://other.example/LIVE.ISO"
    formats["iso"]["disk"]["location"] = "https://origin.example/live.iso"
    select_releases(parse_stream(text(document)), ["x86_64"])
    kernel["location"] = "https://other.example/live.iso"
    (told,) = faults(document)
    assert told == (
        "$.architectures.x86_64.artifacts.metal.formats: two of iso, kernel, initramfs, rootfs have the file"
        " name live.iso"
    )
