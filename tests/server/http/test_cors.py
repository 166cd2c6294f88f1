from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from image_service.server.http.cors import Cors
from image_service.settings import parsers

CONSOLE = "https://console.example.com"
ASKED = {"origin": CONSOLE, "access-control-request-method": "GET"}


def fields_of(rendered: bytes) -> dict[str, set[str]]:
    """Names and the members of their values; each name once."""
    assert not rendered or rendered.endswith(b"\r\n")
    lines = [line.partition(": ") for line in rendered.decode("ascii").splitlines()]
    fields = {name.lower(): set(value.split(", ")) for name, _, value in lines}
    assert len(fields) == len(lines)
    return fields


def allowed_origin(cors: Cors, origin: str) -> str | None:
    found = fields_of(cors.fields({"origin": origin})).get("access-control-allow-origin")
    return found.pop() if found else None


def test_allowed_page_may_read_responses_and_download_headers() -> None:
    fields = fields_of(Cors((CONSOLE,)).fields({"origin": CONSOLE}))
    assert fields == {
        "access-control-allow-origin": {CONSOLE},
        "access-control-expose-headers": {
            "Accept-Ranges",
            "Content-Disposition",
            "Content-Length",
            "Content-Range",
            "ETag",
            "Repr-Digest",
            "Retry-After",
        },
        "vary": {"Origin"},
    }


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": ""},
        {"origin": "null"},
        {"origin": "https://evil.example"},
        {"origin": "http://console.example.com"},
        {"origin": "https://console.example.com:8443"},
        {"origin": "https://console.example.com.evil.example"},
        {"origin": "https://evil.example/https://console.example.com"},
        {"origin": "https://consoleXexample.com"},
        {"origin": f"{CONSOLE}, {CONSOLE}"},
    ],
)
def test_other_pages_get_only_vary(headers: dict[str, str]) -> None:
    cors = Cors((CONSOLE, "https://other.example"))
    assert cors.fields(headers) == b"Vary: Origin\r\n"
    preflight = cors.preflight({**headers, "access-control-request-method": "GET"})
    assert (preflight.status, preflight.fields) == (204, b"")


@pytest.mark.parametrize(
    ("pattern", "origin"),
    [
        ("https://*.example.com", "https://a.b.example.com"),
        ("https://*.example.com", "https://.example.com"),
        ("*.example.com", "http://a.example.com"),
        ("http://localhost:*", "http://localhost:3000"),
        ("http://[::1]:*", "http://[::1]:3000"),
        ("*://a.example", "https://a.example"),
        ("https://a.example", "https://A.Example"),
    ],
)
def test_star_matches_any_characters(pattern: str, origin: str) -> None:
    """The origin is returned unchanged: browsers compare it byte by byte."""
    assert allowed_origin(Cors(("https://other.example", *parsers.origins(pattern))), origin) == origin


@pytest.mark.parametrize(
    ("pattern", "origin"),
    [
        ("https://*.example.com", "https://example.com"),
        ("https://*.example.com", "https://aXexample.com"),
        ("https://*.example.com", "https://a.example.com.evil.example"),
        ("https://*.example.com", "https://a b.example.com"),
        ("https://*.example.com", "https://a\xe9.example.com"),
        *(("https://*.example.com", f"https://a{byte}b.example.com") for byte in "/?#@:\\%!,*"),
        ("https://*.example.com", "https://user@a.example.com"),
        ("https://*.example.com", "https://evil.example/.example.com"),
        ("https://*.example.com", "https://evil.example:80.example.com"),
        ("http://localhost:*", "http://localhost:"),
        ("http://localhost:*", "http://localhost:80x"),
        ("http://localhost:*", "http://localhost:100000"),
        ("http://localhost:*", "http://localhost:80/"),
        ("*.example.com", "a.example.com"),
        ("*.example.com", "://a.example.com"),
        ("*", "https://a/"),
        ("*", "https://"),
        ("*", "a"),
        ("*", ""),
        ("https://a*a.example", "https://a.example"),
    ],
)
def test_star_matches_nothing_else(pattern: str, origin: str) -> None:
    assert allowed_origin(Cors((pattern,)), origin) is None


@given(
    st.lists(
        st.text("ab.:/1*", min_size=1, max_size=8).filter(lambda text: text.count("*") <= 1), min_size=1
    ),
    st.from_regex(r"[ab]{1,2}://[ab.]{1,3}(:1)?|[ab.:/1]{1,8}", fullmatch=True),
)
def test_pattern_matches_like_startswith_and_endswith(patterns: list[str], origin: str) -> None:
    def matches(pattern: str) -> bool:
        scheme, _, authority = origin.partition("://")
        host, colon, port = authority.partition(":")
        if not (set(scheme) <= set("ab.1") and scheme[:1] in set("ab") and host and "/" not in host):
            return False
        if colon and (not port.isdecimal() or len(port) > 5):
            return False
        begin, star, end = pattern.partition("*")
        if not star:
            return origin == pattern
        return len(origin) >= len(begin + end) and origin.startswith(begin) and origin.endswith(end)

    expected = ("*" if "*" in patterns else origin) if any(map(matches, patterns)) else None
    assert allowed_origin(Cors(tuple(patterns)), origin) == expected


def test_star_alone_allows_every_origin() -> None:
    cors = Cors(("https://other.example", "*"))
    assert allowed_origin(cors, CONSOLE) == "*"
    assert allowed_origin(cors, "null") == "*"
    assert fields_of(cors.fields({"origin": CONSOLE}))["vary"] == {"Origin"}
    assert cors.fields({}) == b"Vary: Origin\r\n"


def test_preflight_response_lists_methods_and_fields() -> None:
    cors = Cors((CONSOLE,))
    answer = cors.preflight({**ASKED, "access-control-request-headers": "range, x-unknown"})
    assert (answer.status, answer.body, answer.length) == (204, (), 0)
    fields = fields_of(answer.fields + cors.fields(ASKED))
    assert fields["access-control-allow-origin"] == {CONSOLE}
    assert fields["access-control-allow-methods"] == {"GET", "HEAD"}
    assert fields["access-control-max-age"] == {"600"}
    conditions = {"If-Match", "If-Modified-Since", "If-None-Match", "If-Range", "If-Unmodified-Since"}
    assert fields["access-control-allow-headers"] == {"Authorization", "Content-Type", "Range", *conditions}
    assert "content-length" not in fields, "RFC 9110 8.6: never with 204"


def test_browser_credentials_are_never_allowed() -> None:
    for cors in (Cors((CONSOLE,)), Cors(("*",))):
        rendered = cors.fields(ASKED) + cors.preflight(ASKED).fields
        assert b"credentials" not in rendered.lower()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (ASKED, True),
        ({**ASKED, "access-control-request-headers": "range"}, True),
        ({**ASKED, "access-control-request-method": "DELETE"}, True),
        ({"origin": CONSOLE}, False),
        ({"access-control-request-method": "GET"}, False),
        ({}, False),
    ],
)
def test_preflight_is_distinguished_from_other_options(headers: dict[str, str], *, expected: bool) -> None:
    assert Cors((CONSOLE,)).is_preflight(headers) is expected
