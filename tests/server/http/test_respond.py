from __future__ import annotations

import email
import email.policy
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.common.files.local_file import LocalFile
from image_service.core.extents import ExtentMap, FileExtent, Literal, Zeros, apply_overlays
from image_service.core.images.boot_image import BootImage
from image_service.server.http.respond import Representation
from tests.core.images.building import base_file, build, contents, maps_over, overlays_for, read
from tests.server.http.reading import body_of, fields_of, parts_of, problem_of, span_of

if TYPE_CHECKING:
    from image_service.server.http.response import Response

MODIFIED = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
DATE = "Wed, 04 Mar 2026 05:06:07 GMT"
EARLIER = format_datetime(MODIFIED - timedelta(seconds=1), usegmt=True)
ETAG = '"0123456789abcdef"'
EXTENTS = ExtentMap(
    (Literal(bytes(range(256)) * 30), Zeros(320), Literal(b"end of image" * 166 + b"12345678"))
)
BYTES = read(EXTENTS.extents)
SIZE = 10_000


def representation(extents: ExtentMap = EXTENTS, modified: datetime | None = MODIFIED) -> Representation:
    return Representation(BootImage(extents, ETAG, modified, "id-discovery.iso"))


IMAGE = representation()


def ask(method: str = "GET", **fields: str) -> Response:
    headers = {name.replace("_", "-"): value for name, value in fields.items()}
    return IMAGE.respond(method, MappingProxyType(headers))


# The fields that each answer has, and none beside them.
SUCCESS = {
    "etag": ETAG,
    "cache-control": "private, no-cache",
    "vary": "User-Agent",
    "content-disposition": 'attachment; filename="id-discovery.iso"',
    "last-modified": DATE,
    "accept-ranges": "bytes",
    "x-accel-buffering": "no",
    "content-type": "application/octet-stream",
}
NAMES = {
    200: {*SUCCESS, "content-length"},
    206: {*SUCCESS, "content-length", "content-range"},
    304: {"etag", "cache-control", "vary"},
    412: {"etag", "cache-control", "content-type", "content-length"},
    416: {"etag", "cache-control", "content-type", "content-length", "content-range"},
}

# The table of RFC 9110 edge cases that real servers get wrong, row by row:
# method, Range, conditions, status, the slices of the image that come back.
WEAK, OTHER, LATER = f"W/{ETAG}", '"x"', "Fri, 04 Mar 2033 05:06:07 GMT"
WHOLE = [(0, SIZE)]
TABLE = [
    ("a suffix longer than the image is all of it", "GET", f"bytes=-{SIZE + 1}", {}, 206, WHOLE),
    ("a suffix longer than the image is all of it", "GET", f"bytes=-{10**25}", {}, 206, WHOLE),
    ("an empty suffix is unsatisfiable", "GET", "bytes=-0", {}, 416, []),
    ("an unknown unit is ignored", "GET", "foo=0-1", {}, 200, WHOLE),
    ("416 tells the size", "GET", f"bytes={SIZE}-", {}, 416, []),
    ("416 tells the size", "GET", "bytes=20000-20001,30000-", {}, 416, []),
    ("of a mixed set the satisfiable are served", "GET", "bytes=20000-,5-9", {}, 206, [(5, 10)]),
    ("of a mixed set the satisfiable are served", "GET", "bytes=0-1,-0,5-9", {}, 206, [(0, 2), (5, 10)]),
    ("last before first is invalid", "GET", "bytes=9-8", {}, 200, WHOLE),
    ("last before first is invalid", "GET", "bytes=0-1,9-8", {}, 200, WHOLE),
    (
        "several ranges are a multipart",
        "GET",
        "bytes=90-99,0-0,-1",
        {},
        206,
        [(90, 100), (0, 1), (9999, SIZE)],
    ),
    ("overlapping ranges are joined", "GET", "bytes=0-99,50-149", {}, 206, [(0, 150)]),
    ("touching ranges are joined", "GET", "bytes=0-0,1-1,2-2", {}, 206, [(0, 3)]),
    ("too many ranges are ignored", "GET", "bytes=" + 17 * "0-,", {}, 200, WHOLE),
    ("too many ranges are ignored", "GET", f"bytes={','.join(map(str, range(-40, 0, 2)))}", {}, 200, WHOLE),
    ("If-Range by the tag applies", "GET", "bytes=0-1", {"if-range": ETAG}, 206, [(0, 2)]),
    ("If-Range is compared strongly", "GET", "bytes=0-1", {"if-range": WEAK}, 200, WHOLE),
    ("If-Range by another tag", "GET", "bytes=0-1", {"if-range": OTHER}, 200, WHOLE),
    ("If-Range by another tag", "GET", "bytes=-0", {"if-range": OTHER}, 200, WHOLE),
    ("If-Range by the exact date applies", "GET", "bytes=0-1", {"if-range": DATE}, 206, [(0, 2)]),
    ("If-Range by another date", "GET", "bytes=0-1", {"if-range": EARLIER}, 200, WHOLE),
    ("If-Range by another date", "GET", "bytes=0-1", {"if-range": LATER}, 200, WHOLE),
    ("If-Match before Range", "GET", "bytes=0-1", {"if-match": OTHER}, 412, []),
    ("If-Match before Range", "GET", "bytes=-0", {"if-match": OTHER}, 412, []),
    ("If-Match that holds", "GET", "bytes=5-", {"if-match": ETAG}, 206, [(5, SIZE)]),
    ("If-Unmodified-Since before Range", "GET", "bytes=0-1", {"if-unmodified-since": EARLIER}, 412, []),
    ("If-Unmodified-Since that holds", "GET", "bytes=0-1", {"if-unmodified-since": DATE}, 206, [(0, 2)]),
    ("a tag is not a date", "GET", "bytes=0-1", {"if-unmodified-since": WEAK}, 206, [(0, 2)]),
    ("If-None-Match first", "GET", None, {"if-none-match": OTHER, "if-modified-since": DATE}, 200, WHOLE),
    ("If-None-Match first", "GET", None, {"if-none-match": ETAG, "if-modified-since": EARLIER}, 304, []),
    ("304 beats Range", "GET", "bytes=0-1", {"if-none-match": ETAG}, 304, []),
    ("304 beats Range", "GET", "bytes=-0", {"if-modified-since": DATE}, 304, []),
    ("304 beats Range", "GET", "bytes=0-1", {"if-none-match": WEAK, "if-range": ETAG}, 304, []),
    ("Range on HEAD is ignored", "HEAD", "bytes=0-1", {}, 200, WHOLE),
    ("Range on HEAD is ignored", "HEAD", "bytes=-0", {"if-range": ETAG}, 200, WHOLE),
    ("a clamped range is as long as what is there", "GET", f"bytes=9990-{SIZE}", {}, 206, [(9990, SIZE)]),
    ("a clamped range is as long as what is there", "GET", "bytes=0-134217727", {}, 206, WHOLE),
    ("an error keeps nothing of the success", "HEAD", None, {"if-match": OTHER}, 412, []),
]


@pytest.mark.parametrize(
    ("method", "wanted", "conditions", "status", "slices"),
    [row[1:] for row in TABLE],
    ids=[row[0] for row in TABLE],
)
def test_status_follows_the_rfc_9110_table(
    method: str,
    wanted: str | None,
    conditions: dict[str, str],
    status: int,
    slices: list[tuple[int, int]],
) -> None:
    response = IMAGE.respond(method, conditions if wanted is None else {**conditions, "range": wanted})
    fields = fields_of(response)
    assert response.status == status
    assert set(fields) == NAMES[status] - ({"content-range"} if len(slices) > 1 else set())
    if status == 416:
        assert fields["content-range"] == f"bytes */{SIZE}"
    elif len(slices) > 1:
        assert fields["content-length"] == str(response.length)
        parts = parts_of(response)
        assert [span_of(part["content-range"]) for part, _ in parts] == [(*span, SIZE) for span in slices]
        assert [data for _, data in parts] == [BYTES[start:stop] for start, stop in slices]
    elif slices:
        ((start, stop),) = slices
        assert fields["content-length"] == str(stop - start)
        assert body_of(response) == (b"" if method == "HEAD" else BYTES[start:stop])
        assert status == 200 or fields["content-range"] == f"bytes {start}-{stop - 1}/{SIZE}"


@given(st.data(), contents)
def test_any_ranges_over_any_overlays_equal_the_image(data: st.DataObject, content: bytes) -> None:
    with base_file(content) as file:
        below, bytes_below = data.draw(maps_over(file, content))
        overlays = data.draw(overlays_for(below.size))
        expected = build(bytes_below, overlays)
        image = representation(apply_overlays(below, overlays))
        for _ in range(4):
            asked = data.draw(
                st.lists(st.tuples(*[st.integers(0, len(expected))] * 2), min_size=1, max_size=8)
            )
            spans = [(min(pair), max(pair)) for pair in asked]
            field = "bytes=" + ",".join(f"{first}-{last}" for first, last in spans)
            check_parts(image.respond("GET", {"range": field}), spans, expected)


def check_parts(response: Response, spans: list[tuple[int, int]], expected: bytes) -> None:
    wanted = {offset for first, last in spans for offset in range(first, last + 1) if offset < len(expected)}
    if not wanted:
        assert response.status == 416
        return
    assert response.status == 206
    fields = fields_of(response)
    assert fields["content-length"] == str(response.length)
    single = "content-range" in fields
    parts = [(fields, body_of(response))] if single else parts_of(response)
    assert single or len(parts) > 1
    sent: list[int] = []
    for part, body in parts:
        start, stop, size = span_of(part["content-range"])
        assert size == len(expected)
        assert body == expected[start:stop]
        assert part["content-type"] == "application/octet-stream"
        sent += range(start, stop)
    assert len(sent) == len(set(sent))
    assert set(sent) == wanted


@given(st.lists(st.integers(1, SIZE - 1), unique=True, max_size=12))
def test_consecutive_ranges_join_to_the_image(cuts: list[int]) -> None:
    """What aria2 does."""
    edges = [0, *sorted(cuts), SIZE]
    answers = [ask(range=f"bytes={start}-{stop - 1}", if_range=ETAG) for start, stop in pairwise(edges)]
    assert {answer.status for answer in answers} == {206}
    assert b"".join(map(body_of, answers)) == BYTES
    assert {fields_of(answer)["etag"] for answer in answers} == {ETAG}


def test_multipart_is_parsed_by_the_stdlib() -> None:
    response = ask(range="bytes=0-259,7600-8100,-8")
    head = b"Content-Type: %b\r\n\r\n" % fields_of(response)["content-type"].encode()
    message = email.message_from_bytes(head + body_of(response), policy=email.policy.HTTP)
    assert message.get_content_type() == "multipart/byteranges"
    assert not message.defects
    parts = list(message.iter_parts())
    assert [part["Content-Range"] for part in parts] == [
        f"bytes 0-259/{SIZE}",
        f"bytes 7600-8100/{SIZE}",
        f"bytes 9992-9999/{SIZE}",
    ]
    assert [part.get_payload(decode=True) for part in parts] == [BYTES[:260], BYTES[7600:8101], BYTES[-8:]]


def test_multipart_is_deterministic() -> None:
    one, other = ask(range="bytes=0-1,5-6"), ask(range="bytes=0-1,5-6")
    assert (one.fields, body_of(one)) == (other.fields, body_of(other))


def test_boundary_does_not_occur_in_the_image() -> None:
    """It depends on the ETag and the ranges, so no image composed before can contain it."""
    boundaries = {fields_of(ask(range=f"bytes=0-1,{n}-{n}"))["content-type"] for n in range(5, 15)}
    assert len(boundaries) == 10


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"range": "bytes=0-1"},
        {"range": "bytes=-0"},
        {"range": "bytes=0-1,5-6"},
        {"range": "bytes=0-1", "if-range": '"x"'},
    ],
)
def test_head_equals_the_get_of_the_whole_without_content(headers: dict[str, str]) -> None:
    get, head = IMAGE.respond("GET", {}), IMAGE.respond("HEAD", headers)
    assert head.status == get.status == 200
    assert head.fields == get.fields
    assert (head.body, head.length) == ((), 0)


@pytest.mark.parametrize(
    "headers",
    [
        {"if-match": '"x"'},
        {"if-match": ETAG},
        {"if-none-match": ETAG},
        {"if-none-match": '"x"'},
        {"if-modified-since": DATE},
        {"if-unmodified-since": EARLIER},
    ],
)
def test_head_has_status_and_fields_of_a_conditional_get(headers: dict[str, str]) -> None:
    get, head = IMAGE.respond("GET", headers), IMAGE.respond("HEAD", headers)
    assert (head.status, head.fields, head.code) == (get.status, get.fields, get.code)
    assert (head.body, head.length) == ((), 0)


@pytest.mark.parametrize(
    ("method", "headers"),
    [("GET", {}), ("HEAD", {}), ("GET", {"range": "bytes=0-1"}), ("GET", {"range": "bytes=0-1,4-5"})],
)
def test_accept_ranges_is_spelled_as_qemu_compares_it(method: str, headers: dict[str, str]) -> None:
    assert b"\r\nAccept-Ranges: bytes\r\n" in b"\r\n" + IMAGE.respond(method, headers).fields


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    "coding", ["gzip", "gzip, deflate, br, zstd", "*", "identity;q=0, gzip", "identity;q=0, *;q=0", ""]
)
def test_no_response_has_a_content_coding(method: str, coding: str) -> None:
    for fields in ({}, {"range": "bytes=0-99"}):
        plain, asked = ask(method, **fields), ask(method, accept_encoding=coding, **fields)
        assert (asked.status, asked.fields, asked.length) == (plain.status, plain.fields, plain.length)
        assert not {"content-encoding", "transfer-encoding"} & set(fields_of(asked))


@pytest.mark.parametrize(
    "headers", [{}, {"range": "bytes=0-1"}, {"range": "bytes=0-1,4-5"}, {"if-none-match": ETAG}]
)
def test_customized_image_is_private_revalidated_and_storable(headers: dict[str, str]) -> None:
    assert fields_of(IMAGE.respond("GET", headers))["cache-control"] == "private, no-cache"


def test_success_has_these_fields() -> None:
    assert fields_of(ask()) == SUCCESS | {"content-length": str(SIZE)}
    assert body_of(ask()) == BYTES
    assert fields_of(ask(range="bytes=1-2")) == SUCCESS | {
        "content-length": "2",
        "content-range": f"bytes 1-2/{SIZE}",
    }


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"if_match": '"x"'}, 412, "precondition-failed"),
        ({"range": "bytes=-0"}, 416, "range-not-satisfiable"),
    ],
)
def test_412_and_416_are_problems_with_the_etag_and_no_store(
    fields: dict[str, str], status: int, code: str
) -> None:
    response = ask(**fields)
    assert response.code == code
    problem = problem_of(response)
    assert (problem["status"], problem["code"]) == (status, code)
    assert fields_of(response)["etag"] == ETAG
    assert fields_of(response)["cache-control"] == "no-store"


def test_image_without_a_date_has_no_last_modified() -> None:
    image = representation(modified=None)
    for headers in ({}, {"range": "bytes=0-1"}, {"range": "bytes=0-1,4-5"}):
        assert "last-modified" not in fields_of(image.respond("GET", headers))
    assert image.respond("GET", {"if-modified-since": DATE}).status == 200
    assert image.respond("GET", {"if-unmodified-since": EARLIER}).status == 200
    assert image.respond("GET", {"range": "bytes=0-1", "if-range": DATE}).status == 200


def test_sizes_beyond_4_gib_are_supported() -> None:
    size = 6 * 2**30
    file = LocalFile(-1, size, "never opened")
    image = representation(ExtentMap((FileExtent(file, 0, size),)))
    assert fields_of(image.respond("HEAD", {}))["content-length"] == str(size)
    response = image.respond("GET", {"range": f"bytes={5 * 2**30}-"})
    assert fields_of(response)["content-range"] == f"bytes {5 * 2**30}-{size - 1}/{size}"
    assert response.body == (FileExtent(file, 5 * 2**30, 2**30),)
    assert response.length == 2**30


def test_response_holds_extents_and_no_copy_of_the_image() -> None:
    """Memory does not grow with the range."""
    whole = ask()
    assert whole.body is EXTENTS.extents
    assert all(one is other for one, other in zip(ask(range="bytes=0-").body, EXTENTS.extents, strict=True))


def test_file_name_cannot_break_its_field() -> None:
    with pytest.raises(ValueError, match="Content-Disposition"):
        Representation(BootImage(EXTENTS, ETAG, None, "x\r\nSet-Cookie: a=b"))


# Types, for firmware and for caches.

UEFI = {"user-agent": "UefiHttpBoot/1.0"}
ISO_TYPE, OTHER_TYPE = "application/vnd.efi-iso", "application/octet-stream"


def netboot_file(*, public: bool = False) -> Representation:
    return Representation(BootImage(EXTENTS, ETAG, MODIFIED, "x.img", is_iso=False, is_public=public))


@pytest.mark.parametrize(
    ("user_agent", "expected"),
    [
        ("UefiHttpBoot/1.0", ISO_TYPE),
        ("UefiHttpBoot/2.0 (x)", ISO_TYPE),
        ("UefiHttpBoot", OTHER_TYPE),
        ("uefihttpboot/1.0", OTHER_TYPE),
        ("curl/8.0 UefiHttpBoot/1.0", OTHER_TYPE),
        ("curl/8.0", OTHER_TYPE),
        ("", OTHER_TYPE),
    ],
)
@pytest.mark.parametrize(
    ("method", "headers"),
    [("GET", {}), ("HEAD", {}), ("GET", {"range": "bytes=0-1"}), ("GET", {"if-none-match": '"x"'})],
)
def test_uefi_http_boot_gets_the_iso_content_type(
    method: str, headers: dict[str, str], user_agent: str, expected: str
) -> None:
    response = IMAGE.respond(method, {**headers, "user-agent": user_agent})
    assert fields_of(response)["content-type"] == expected
    netboot = netboot_file().respond(method, {**headers, "user-agent": user_agent})
    assert fields_of(netboot)["content-type"] == OTHER_TYPE


def test_each_part_of_a_multipart_has_the_type_of_the_whole() -> None:
    for headers, expected in ((UEFI, ISO_TYPE), ({}, OTHER_TYPE)):
        response = IMAGE.respond("GET", {**headers, "range": "bytes=0-1,5-6"})
        assert [fields["content-type"] for fields, _ in parts_of(response)] == [expected] * 2


@pytest.mark.parametrize(
    "more", [{}, {"range": "bytes=0-1"}, {"range": "bytes=0-1,5-6"}, {"if-none-match": ETAG}]
)
def test_iso_varies_by_user_agent(more: dict[str, str]) -> None:
    """304 too (RFC 9110 15.4.5); not for files whose type does not depend on it."""
    for headers in (more, {**more, **UEFI}):
        assert fields_of(IMAGE.respond("GET", headers))["vary"] == "User-Agent"
        assert "vary" not in fields_of(netboot_file().respond("GET", headers))


@pytest.mark.parametrize("headers", [{}, {"range": "bytes=0-1"}, {"if-none-match": ETAG}])
def test_public_image_is_cacheable_for_everyone(headers: dict[str, str]) -> None:
    assert fields_of(netboot_file(public=True).respond("GET", headers))["cache-control"] == "public, no-cache"
    assert fields_of(netboot_file().respond("GET", headers))["cache-control"] == "private, no-cache"


# Fields that come later than the image.

MORE = b"Repr-Digest: sha-256=:AA==:\r\n"


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("GET", {}),
        ("HEAD", {}),
        ("HEAD", {"range": "bytes=0-1"}),
        ("GET", {"range": "bytes=0-1"}),
        ("GET", {"range": "bytes=0-1,5-6"}),
        ("GET", {"range": "bytes=9-8"}),
    ],
)
def test_more_fields_are_on_responses_with_content_or_their_head(
    method: str, headers: dict[str, str]
) -> None:
    plain, response = IMAGE.respond(method, headers), IMAGE.respond(method, headers, MORE)
    assert fields_of(response) == {**fields_of(plain), "repr-digest": "sha-256=:AA==:"}
    assert (response.status, response.length) == (plain.status, plain.length)


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"if-none-match": ETAG}, 304),
        ("HEAD", {"if-modified-since": DATE}, 304),
        ("GET", {"if-match": '"x"'}, 412),
        ("HEAD", {"if-match": '"x"'}, 412),
        ("GET", {"range": "bytes=-0"}, 416),
    ],
)
def test_more_fields_are_on_no_other_response(method: str, headers: dict[str, str], status: int) -> None:
    response = IMAGE.respond(method, headers, MORE)
    assert (response.status, response.fields) == (status, IMAGE.respond(method, headers).fields)
