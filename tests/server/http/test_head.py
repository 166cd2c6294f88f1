from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.core.errors import HeadTooLarge, ImageServiceError, InvalidRequest, UriTooLong
from image_service.server.http.head import (
    MAX_CREDENTIALS_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    MAX_TARGET_BYTES,
    Request,
    find_head,
    parse_head,
    parse_request_line,
)
from image_service.server.http.problem import status_of

HOST = b"GET / HTTP/1.1\r\nHost: example\r\n"


def parse(data: bytes) -> Request:
    length = find_head(data)
    assert length is not None
    return parse_head(data[:length])


def refusal(data: bytes) -> tuple[int, str]:
    with pytest.raises(ImageServiceError) as caught:
        parse(data)
    return status_of(caught.value), caught.value.code


def with_fields(*lines: bytes) -> bytes:
    return HOST + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def test_head_is_parsed() -> None:
    request = parse(
        b"HEAD /a?b=c HTTP/1.1\r\nHost: h:80\r\nRange:\tbytes=0-1 \t\r\nX-A:b\r\nX-Empty:\r\n\r\n"
    )
    assert (request.method, request.target) == ("HEAD", "/a?b=c")
    assert request.headers == {"host": "h:80", "range": "bytes=0-1", "x-a": "b", "x-empty": ""}
    assert request.keep_alive
    assert not request.http_1_0


def test_repeated_field_becomes_a_list() -> None:
    request = parse(with_fields(b'If-None-Match: "a"', b"X: y", b'IF-NONE-MATCH: "b"'))
    assert request.headers["if-none-match"] == '"a", "b"'


def test_non_ascii_octets_are_kept() -> None:
    assert parse(with_fields(b"User-Agent: \xc3\xa4\xff")).headers["user-agent"] == "\xc3\xa4\xff"


@pytest.mark.parametrize("value", [b"X", b"XtX", b'"a"', b"a  b", b"\xa0a\xa0"])
def test_only_whitespace_around_a_value_is_dropped(value: bytes) -> None:
    assert parse(with_fields(b"Y: \t %b \t" % value)).headers["y"] == value.decode("latin-1")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (b"/", "/"),
        (b"/a/b?c=d&e", "/a/b?c=d&e"),
        (b"//a", "//a"),
        (b"/%2e%2E/", "/%2e%2E/"),
        (b"/?http://x", "/?http://x"),
        (b"http://example/a?b", "/a?b"),
        (b"HTTPS://example:8080/a", "/a"),
        (b"http://example", "/"),
        (b"http://example?a", "/?a"),
        (b"http://[::1]:80/a", "/a"),
    ],
)
def test_target_is_returned_in_origin_form(target: bytes, expected: str) -> None:
    assert parse(b"GET %b HTTP/1.1\r\nHost: example\r\n\r\n" % target).target == expected


@pytest.mark.parametrize(
    "target",
    [b"*", b"a", b"example:80", b"ftp://example/", b"http:/a", b"http:///a", b"http://", b"http://?a", b"?a"],
)
def test_other_target_forms_are_refused(target: bytes) -> None:
    assert refusal(b"GET %b HTTP/1.1\r\nHost: example\r\n\r\n" % target) == (400, "request-invalid")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /#a HTTP/1.1", 400),
        (b"GET  / HTTP/1.1", 400),
        (b"GET / HTTP/1.1 ", 400),
        (b" GET / HTTP/1.1", 400),
        (b"GET\t/\tHTTP/1.1", 400),
        (b"GET / a HTTP/1.1", 400),
        (b"GET /\0 HTTP/1.1", 400),
        (b"GET /\x7f HTTP/1.1", 400),
        (b"GET /\xe4 HTTP/1.1", 400),
        (b"GET /a\rb HTTP/1.1", 400),
        (b"GET /a\nb HTTP/1.1", 400),
        (b"GET /", 400),
        (b"GET", 400),
        (b"", 400),
        (b"GET / http/1.1", 400),
        (b"GET / HTTP/1.1\r", 400),
        (b"GET / HTTP/11", 400),
        (b"GET / HTTP/1.10", 400),
        (b"GET / HTTP/01.1", 400),
        (b"GET / RTSP/1.0", 400),
        (b"G\xc3\x84T / HTTP/1.1", 400),
        (b"G(T / HTTP/1.1", 400),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/1.2", 505),
        (b"GET / HTTP/0.9", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"get / HTTP/1.1", 501),
        (b"BREW / HTTP/1.1", 501),
        (b"POST / HTTP/1.1", 405),
        (b"PUT / HTTP/1.1", 405),
        (b"DELETE / HTTP/1.1", 405),
        (b"PATCH / HTTP/1.1", 405),
        (b"QUERY / HTTP/1.1", 405),
        (b"TRACE / HTTP/1.1", 405),
        (b"CONNECT example:80 HTTP/1.1", 405),
    ],
)
def test_malformed_request_line_is_refused(line: bytes, status: int) -> None:
    assert refusal(line + b"\r\nHost: example\r\n\r\n")[0] == status


def test_refused_method_lists_the_allowed_ones() -> None:
    with pytest.raises(ImageServiceError) as caught:
        parse(b"POST / HTTP/1.1\r\nHost: example\r\nContent-Length: 5\r\n\r\n")
    assert caught.value.fields == (("Allow", "GET, HEAD, OPTIONS"),)


@pytest.mark.parametrize("target", ["*", "/", "/images/x?a=b"])
def test_options_accepts_a_path_or_star(target: str) -> None:
    request = parse(f"OPTIONS {target} HTTP/1.1\r\nHost: example\r\n\r\n".encode())
    assert (request.method, request.target) == ("OPTIONS", target)


@pytest.mark.parametrize(
    "host", [b"", b"a", b"a:80", b"a:", b"1.2.3.4", b"[::1]", b"[::ffff:1.2.3.4]:8080", b"a_b.c-d~", b"%41"]
)
def test_valid_host_is_accepted(host: bytes) -> None:
    assert parse(b"GET / HTTP/1.1\r\nHost: %b\r\n\r\n" % host).headers["host"] == host.decode()


@pytest.mark.parametrize(
    "lines",
    [
        (),
        (b"Host: a", b"Host: a"),
        (b"Host: a", b"host: b"),
        (b"Host: a, b/",),
        (b"Host: a b",),
        (b"Host: a/b",),
        (b"Host: u@a",),
        (b"Host: a:b",),
        (b"Host: a:80:80",),
        (b"Host: [::1",),
        (b"Host: ::1",),
        (b"Host: \xe4",),
        (b"Host: http://a",),
    ],
)
def test_invalid_missing_or_repeated_host_is_refused(lines: tuple[bytes, ...]) -> None:
    head = b"".join(line + b"\r\n" for line in (b"GET / HTTP/1.1", *lines, b""))
    assert refusal(head) == (400, "request-invalid")


@pytest.mark.parametrize(
    "host", ["[fe80::1%25eth0]:8080", "[fe80::1%eth0]", "[fe80::1%25eth0]", "[FE80::1%1]:80", "[fe80::1%]"]
)
def test_host_with_a_zone_is_refused_with_what_to_do(host: str) -> None:
    with pytest.raises(InvalidRequest, match=r"zone identifier.*without % and what follows it"):
        parse(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())


def test_http_1_0_needs_no_host() -> None:
    request = parse(b"GET / HTTP/1.0\r\n\r\n")
    assert request.http_1_0
    assert refusal(b"GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n")[0] == 400


@pytest.mark.parametrize(
    ("version", "connection", "expected"),
    [
        ("1.1", None, True),
        ("1.1", "keep-alive", True),
        ("1.1", "close", False),
        ("1.1", "Close", False),
        ("1.1", "keep-alive, close", False),
        ("1.1", "x ,\tCLOSE", False),
        ("1.1", "closed", True),
        ("1.1", "Upgrade", True),
        ("1.0", None, False),
        ("1.0", "keep-alive", True),
        ("1.0", "Keep-Alive", True),
        ("1.0", "x, keep-alive", True),
        ("1.0", "close", False),
        ("1.0", "keep-alive, close", False),
        ("1.0", "close, keep-alive", False),
    ],
)
def test_keep_alive_follows_version_and_connection_field(
    version: str, connection: str | None, *, expected: bool
) -> None:
    line = "" if connection is None else f"Connection: {connection}\r\n"
    request = parse(f"GET / HTTP/{version}\r\nHost: a\r\n{line}\r\n".encode())
    assert request.keep_alive is expected


def test_close_in_a_second_connection_field_counts() -> None:
    assert not parse(with_fields(b"Connection: keep-alive", b"Connection: close")).keep_alive


@pytest.mark.parametrize("wish", [b"websocket", b"h2c"])
def test_upgrade_is_ignored(wish: bytes) -> None:
    assert parse(with_fields(b"Connection: Upgrade", b"Upgrade: " + wish)).target == "/"


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        ((b"Content-Length: 0",), None),
        ((b"Content-Length: 000",), None),
        ((b"Content-Length: 1",), 413),
        ((b"Content-Length: 010",), 413),
        ((b"Content-Length: 18446744073709551615",), 413),
        ((b"Content-Length: 18446744073709551616",), 400),
        ((b"Transfer-Encoding: chunked",), 413),
        # What request smuggling is made of.
        ((b"Content-Length: 0", b"Transfer-Encoding: chunked"), 400),
        ((b"Transfer-Encoding: chunked", b"Content-Length: 5"), 400),
        ((b"Transfer-Encoding: xchunked",), 400),
        ((b"Transfer-Encoding: identity",), 400),
        ((b"Transfer-Encoding:",), 400),
        ((b"Transfer-Encoding: chunked, identity",), 400),
        ((b"Transfer-Encoding:\x0bchunked",), 400),
        ((b"Transfer-Encoding : chunked",), 400),
        ((b"Transfer-Encoding\t: chunked",), 400),
        ((b"Transfer-Encoding", b" : chunked"), 400),
        ((b"X: y", b" Transfer-Encoding: chunked"), 400),
        ((b"X: y", b"\tfolded"), 400),
        ((b" X: y",), 400),
        ((b"X: y\nTransfer-Encoding: chunked",), 400),
        ((b"X: y\rTransfer-Encoding: chunked",), 400),
        ((b"X: \0",), 400),
        ((b"X: \x1b[31m",), 400),
        ((b"X\0: y",), 400),
        ((b"X y: z",), 400),
        ((b"X(: z",), 400),
        ((b"X\xe4: z",), 400),
        ((b": y",), 400),
        ((b"X",), 400),
        ((b"Content-Length: 0", b"Content-Length: 0"), 400),
        ((b"Content-Length: 0", b"Content-Length: 5"), 400),
        ((b"Content-Length: 0, 0",), 400),
        ((b"Content-Length: +0",), 400),
        ((b"Content-Length: -1",), 400),
        ((b"Content-Length: 0x0",), 400),
        ((b"Content-Length: 0 5",), 400),
        ((b"Content-Length: 0_5",), 400),
        ((b"Content-Length: 1e1",), 400),
        ((b"Content-Length:",), 400),
        ((b"Content-Length : 5",), 400),
        ((b"Content_Length: 5",), None),
        ((b"Upgrade: h2c", b"Connection: Upgrade", b"Content-Length: 5"), 413),
        ((b"Upgrade: h2c", b"Connection: Upgrade", b"Transfer-Encoding: chunked"), 413),
    ],
)
def test_content_and_invalid_framing_are_refused(lines: tuple[bytes, ...], status: int | None) -> None:
    if status is None:
        assert parse(with_fields(*lines)).target == "/"
    else:
        assert refusal(with_fields(*lines))[0] == status


def test_transfer_encoding_in_http_1_0_is_400() -> None:
    assert refusal(b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n")[0] == 400


@pytest.mark.parametrize(
    ("version", "expectation", "status"),
    [
        ("1.1", "100-continue", None),
        ("1.1", "100-Continue", None),
        ("1.1", "200-ok", 417),
        ("1.1", "100-continue, x", 417),
        ("1.1", "", 417),
        ("1.0", "200-ok", None),
    ],
)
def test_only_100_continue_is_a_supported_expectation(
    version: str, expectation: str, status: int | None
) -> None:
    head = f"GET / HTTP/{version}\r\nHost: a\r\nExpect: {expectation}\r\n\r\n".encode()
    if status is None:
        assert parse(head).target == "/"
    else:
        assert refusal(head) == (status, "expectation-failed")


# Limits.


def test_target_beyond_the_limit_is_414() -> None:
    longest = b"/" + b"a" * (MAX_TARGET_BYTES - 1)
    assert MAX_TARGET_BYTES == 8192
    assert len(parse(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % longest).target) == MAX_TARGET_BYTES
    assert refusal(b"GET %ba HTTP/1.1\r\nHost: a\r\n\r\n" % longest) == (414, "target-too-long")
    assert find_head(b"GET %b HTTP/1." % longest) is None


def test_endless_target_is_refused_before_the_head_is_full() -> None:
    with pytest.raises(UriTooLong):
        find_head(b"GET /" + b"a" * (MAX_TARGET_BYTES + 100))


def test_credentials_in_a_field_beyond_the_limit_are_431() -> None:
    limit = MAX_CREDENTIALS_BYTES
    assert parse(with_fields(b"Authorization: " + b"x" * limit)).headers["authorization"] == "x" * limit
    too_long = (431, "head-too-large")
    assert refusal(with_fields(b"Authorization: " + b"x" * (limit + 1))) == too_long
    assert refusal(with_fields(b"Authorization: " + b"\xff" * (limit + 1))) == too_long
    half = b"Authorization: " + b"x" * (limit // 2)
    assert refusal(with_fields(half, half)) == too_long


@pytest.mark.parametrize(
    "target", [b"/bytoken/%b/4/x86_64/full.iso", b"/images/x?api_key=%b", b"/images/x?image_token=%b"]
)
def test_credentials_in_a_target_beyond_the_limit_are_414(target: bytes) -> None:
    credentials = b"x" * (MAX_CREDENTIALS_BYTES + 1)
    assert refusal(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % (target % credentials)) == (414, "target-too-long")


def test_too_many_fields_are_431() -> None:
    assert MAX_FIELDS == 100
    lines = [b"X-%d: y" % number for number in range(MAX_FIELDS - 1)]
    assert len(parse(with_fields(*lines)).headers) == MAX_FIELDS
    assert refusal(with_fields(*lines, b"Z: y")) == (431, "head-too-large")


@pytest.mark.parametrize("field", [b"X: %b", b"Cookie: %b"])
def test_head_beyond_the_limit_is_431(field: bytes) -> None:
    assert MAX_HEAD_BYTES == 32768
    room = MAX_HEAD_BYTES - len(with_fields(field % b""))
    fits, too_long = with_fields(field % (b"a" * room)), with_fields(field % (b"a" * (room + 1)))
    assert len(fits) == MAX_HEAD_BYTES
    assert parse(fits).target == "/"
    assert find_head(fits[:-1]) is None
    for arrived in (too_long, too_long[:-1], too_long + HOST):
        with pytest.raises(HeadTooLarge):
            find_head(arrived)


def test_line_ending_in_lf_alone_is_refused_early() -> None:
    for arrived in (b"GET / HTTP/1.1\n", b"GET / HTTP/1.1\r\nHost: a\n\n", b"\nGET / HTTP/1.1\r\n"):
        with pytest.raises(InvalidRequest):
            find_head(arrived)


# Any bytes.

lines = st.lists(
    st.sampled_from(
        [
            b"GET / HTTP/1.1",
            b"HEAD /x?y HTTP/1.0",
            b"GET http://a HTTP/1.1",
            b"Host: a",
            b"Host:",
            b"Connection: close",
            b"Upgrade: x",
            b"Connection: upgrade",
            b"Content-Length: 0",
            b"Content-Length: 5",
            b"Transfer-Encoding: chunked",
            b"Expect: 100-continue",
            b"",
        ]
    )
    | st.binary(max_size=12),
    max_size=8,
).map(b"\r\n".join)
almost = st.tuples(st.sampled_from([b"", HOST]), lines | st.binary(max_size=60)).map(b"".join)


@given(almost)
@example(b"")
@example(b"\r\n\r\n")
@example(HOST + b"\r\n" + HOST + b"\r\n")
def test_any_bytes_are_a_request_or_a_refusal(data: bytes) -> None:
    with suppress(ImageServiceError):
        length = find_head(data)
        if length is not None:
            assert data[:length].endswith(b"\r\n\r\n")
            request = parse_head(data[:length])
            assert request.method in {"GET", "HEAD"}
            assert request.target.startswith("/")
            assert request.http_1_0 or "host" in request.headers
            assert "transfer-encoding" not in request.headers


@given(almost)
def test_parse_head_parses_or_refuses_any_bytes(data: bytes) -> None:
    try:
        parse_head(data)
    except ImageServiceError:
        return
    assert b"\r\n\r\n" in data


@given(almost, st.integers(0, 200))
def test_end_of_the_head_does_not_depend_on_fragmentation(data: bytes, cut: int) -> None:
    """The head that is found in all the data is neither found nor refused in a part of it."""
    head = HOST + b"X: y\r\n\r\n"
    assert find_head(head + data) == len(head)
    assert find_head(head[: min(cut, len(head) - 1)]) is None


def test_repr_shows_no_credential() -> None:
    request = parse(b"GET /?api_key=s3cr3t HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer s3cr3t\r\n\r\n")
    assert "s3cr3t" not in repr(request)


@pytest.mark.parametrize(
    "head",
    [
        b"GET s3cr3t HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /s3cr3t# HTTP/1.1\r\nHost: a\r\n\r\n",
        b"POST /s3cr3t HTTP/1.1\r\nHost: a\r\n\r\n",
        b"S3CR3T / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: s3cr3t/\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nExpect: s3cr3t\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: s3cr3t\0\r\n\r\n",
    ],
)
def test_refusals_quote_nothing_of_the_request(head: bytes) -> None:
    with pytest.raises(ImageServiceError) as caught:
        parse(head)
    assert "s3cr3t" not in caught.value.detail.lower()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"POST /a?b HTTP/1.1\r\nX: y", ("POST", "/a?b")),
        (b"GET http://h/a HTTP/9.9", ("GET", "http://h/a")),
        (b"FOO /a HTTP/1.1", ("", "/a")),
        (b"GET /a", ("", "")),
        (b"GET /#b HTTP/1.1", ("", "")),
        (b"", ("", "")),
        (b"GET /%b HTTP/1.1" % (b"a" * 9000), ("", "")),
    ],
)
def test_request_line_is_parsed_for_the_log(data: bytes, line: tuple[str, str]) -> None:
    assert parse_request_line(data) == line
