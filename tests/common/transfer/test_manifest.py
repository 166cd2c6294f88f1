"""The validator of import manifests, beside a naive oracle, and manifests that it must refuse."""

from __future__ import annotations

import tracemalloc

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.transfer.manifest import (
    IMAGE_FORMATS,
    ManifestPart,
    parse_import_manifest,
    render_import_manifest,
)
from image_service.common.transfer.xml_values import MAX_PARTS
from image_service.core.errors import FormatError
from tests.common.transfer.manifests import SECRET, make_manifest

SIZE = 1000
MANIFEST = make_manifest("https://store.example", SIZE, 400)
TEXT = render_import_manifest(MANIFEST)


@given(st.integers(1, 10_000), st.integers(100, 10_000), st.sampled_from([*IMAGE_FORMATS]))
def test_rendered_manifest_is_parsed_to_the_same(size: int, part_bytes: int, format_name: str) -> None:
    manifest = attrs.evolve(make_manifest("https://a.example/<&>", size, part_bytes), format_name=format_name)
    assert parse_import_manifest(render_import_manifest(manifest)) == manifest


def test_namespaces_of_urls_and_all_of_them_are_listed() -> None:
    urls = dict(MANIFEST.urls())
    assert len(urls) == 1 + 3 * 3
    assert urls["delete-url of part 2"] == MANIFEST.parts[2].delete_url
    assert SECRET not in repr(MANIFEST)


def is_contiguous(parts: list[tuple[int, int, int]], count: int, size: int) -> bool:
    """Tell naively whether each byte of the image is in one part, in order."""
    covered = [byte for _, start, end in parts for byte in range(start, end + 1)]
    indices = [index for index, _, _ in parts]
    nonempty = all(end >= start for _, start, end in parts)
    return (
        covered == list(range(size))
        and indices == list(range(len(parts)))
        and count == len(parts)
        and nonempty
    )


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=4),
    st.integers(0, 5),
    st.integers(1, 13),
)
def test_ranges_are_accepted_as_the_oracle_does(
    parts: list[tuple[int, int, int]], count: int, size: int
) -> None:
    made = tuple(
        ManifestPart(index, start, end + 1 - start, "", *3 * ["https://a.example/"])
        for index, start, end in parts
    )
    manifest = attrs.evolve(MANIFEST, size=size, parts=made)
    text = render_import_manifest(manifest).replace(
        f'count="{len(parts)}"'.encode(), f'count="{count}"'.encode()
    )
    if is_contiguous(parts, count, size):
        assert parse_import_manifest(text) == manifest
    else:
        with pytest.raises(FormatError):
            parse_import_manifest(text)


@given(st.data())
def test_mutated_manifest_is_a_format_error_or_a_manifest(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(TEXT)))
    end = data.draw(st.integers(start, min(len(TEXT), start + 20)))
    text = TEXT[:start] + data.draw(st.binary(max_size=20)) + TEXT[end:]
    try:
        manifest = parse_import_manifest(text)
    except FormatError:
        return
    assert manifest.file_size == sum(part.length for part in manifest.parts) == manifest.size


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (b"2010-11-15", b"2010-11-16", "version is not 2010-11-15"),
        (b"RAW", b"VDI", "file-format must be one of RAW, VMDK, VHD, QCOW2, VHDX, OVA"),
        (b"<importer>", b"<import2>", "not well-formed"),
        (b"<size>1000", b"<size>1001", "parts have 1000 bytes, but its size is 1001"),
        (b"<size>1000", b"<size>-1", "size is not a number"),
        (b"<size>1000", b"<size>9223372036854775808", "size is not a number of at most 18 digits"),
        (b"<size>1000", b"<size>" + "\u0661".encode(), "size is not a number"),
        (b"<volume-size>1<", b"<volume-size>0<", "volume-size is not from 1"),
        (b"<volume-size>1<", b"<volume-size>99999999<", "volume-size is not from 1"),
        (b'count="3"', b'count="1000000"', f"count of 1000000 is not from 1 to {MAX_PARTS}"),
        (b'count="3"', b'count="2"', "count is 2, but it has 3 parts"),
        (b'index="1"', b'index="2"', "part 1 has another index"),
        (b'start="400"', b'start="401"', "part 1 is of bytes 401 to 799; it must begin at 400"),
        (b'start="400"', b'start="399"', "it must begin at 400"),
        (b'end="399"', b'end="-1"', "end of part 0 is not a number"),
        (b"<key>key 1</key>", b"", "0 elements key"),
        (b"<key>key 1</key>", b"<key>a</key><key>b</key>", "2 elements key"),
        (b"<key>key 1</key>", b"<key><b/></key>", "elements in key"),
        (b"</manifest>", b"<import/></manifest>", "2 elements import"),
        (b'"UTF-8"', b'"UTF-99"', "not well-formed"),
        (b"<manifest>", b"<manifest " + b"a" * 2000 + b'="">', "tag of more than 1024 characters"),
    ],
)
def test_invalid_manifest_is_refused_with_the_reason(before: bytes, after: bytes, told: str) -> None:
    assert before in TEXT
    with pytest.raises(FormatError) as caught:
        parse_import_manifest(TEXT.replace(before, after))
    assert told in caught.value.detail
    assert SECRET not in caught.value.detail


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "utf-8-sig"])
def test_manifest_is_checked_in_the_characters_of_its_encoding(encoding: str) -> None:
    declared = "UTF-16" if "16" in encoding else encoding.removesuffix("-sig")
    text = TEXT.decode().replace("UTF-8", declared)
    assert parse_import_manifest(text.encode(encoding)) == parse_import_manifest(TEXT)
    letter = "a" if encoding == "iso-8859-1" else "\u3c3e"  # its bytes in UTF-16 are those of < and >
    long_tag = text.replace("<manifest>", f'<manifest {letter * 1100}="">', 1)
    with pytest.raises(FormatError, match="tag of more than 1024 characters"):
        parse_import_manifest(long_tag.encode(encoding))


@pytest.mark.parametrize("encoding", ["cp037", "utf-7", "idna", "rot13"])
def test_other_encodings_are_refused(encoding: str) -> None:
    with pytest.raises(FormatError, match="unknown encoding"):
        parse_import_manifest(TEXT.replace(b"UTF-8", encoding.encode()))


LAUGHS = b"".join(b'<!ENTITY l%d "%s">' % (depth + 1, (b"&l%d;" % depth) * 10) for depth in range(9))
PROLOGUE = b'<?xml version="1.0" encoding="UTF-8"?>\n'


@pytest.mark.parametrize(
    "doctype",
    [
        b'<!DOCTYPE manifest [<!ENTITY l0 "lol">' + LAUGHS + b"]>",
        b'<!DOCTYPE manifest [<!ENTITY l9 SYSTEM "file:///etc/passwd">]>',
        b'<!DOCTYPE manifest SYSTEM "http://127.0.0.1:9/manifest.dtd">',
    ],
    ids=["laughs", "external", "dtd"],
)
def test_entities_are_refused(doctype: bytes) -> None:
    text = TEXT.replace(PROLOGUE, PROLOGUE + doctype).replace(b"key 1", b"&l9;")
    with pytest.raises(FormatError, match="document type declaration or entities"):
        parse_import_manifest(text)


@pytest.mark.parametrize(
    ("start", "repeated", "times"),
    [
        (b"<manifest>", b"<a/>", 2_000_000),
        (b"<manifest>", b"<a>", 2_000_000),
        (b"<manifest>", b"x", 17 * 2**20),
        (b"<manifest ", b'a="" ', 2_000_000),
    ],
    ids=["elements", "depth", "size", "attributes"],
)
def test_huge_manifest_is_refused_in_bounded_memory(start: bytes, repeated: bytes, times: int) -> None:
    text = start + repeated * times
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse_import_manifest(text)
        assert tracemalloc.get_traced_memory()[1] < 128 * 2**20
    finally:
        tracemalloc.stop()
