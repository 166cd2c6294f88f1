from __future__ import annotations

import pytest

from image_service.core.formats.hosts import ascii_host, host_fault, is_authority, is_web_url, parse_authority

TOO_LONG = ".".join(["a" * 63] * 4)  # 255 characters


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("example.com", "example.com"),
        ("Example.COM.", "Example.COM."),
        ("a_b-c.example", "a_b-c.example"),
        (f"{'a' * 63}.example", f"{'a' * 63}.example"),
        (TOO_LONG[:-2], TOO_LONG[:-2]),
        (f"{TOO_LONG[:-2]}.", f"{TOO_LONG[:-2]}."),
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("FE80::1%eth0.1", "fe80::1%eth0.1"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("BÜCHER.example", "xn--bcher-kva.example"),
        ("日本語.jp", "xn--wgv71a119e.jp"),
        ("हिन्दी.भारत", "xn--j2bd4cyah0f.xn--h2brj9c"),
    ],
)
def test_host_is_written_in_ascii(text: str, expected: str) -> None:
    assert ascii_host(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "a..b",
        "a.b..",
        ".a",
        f"{'a' * 64}.example",
        TOO_LONG[:-1],
        f"{'ü' * 63}.example",
        ".".join(["ü" * 20] * 12),
        "ü" * 5000,
        "a b",
        "a/b",
        "a%2eb",
        "a@b",
        "a\x00b",
        "[::1]",
        "::1::",
        "a:b",
        # IDNA 2003 would turn these into other names, which may be somebody else's.
        "straße.example",
        "ex\u200dample.example",
        "\uff41.example",
        "a\u3002b",
        "xn--\u0660",
        "xn--a-.bücher",
        "bücher.xn--zzzzzzzzzzzzz99999999",
        "fe80::1%",
        "fe80::1%a b",
        "fe80::1%eth0\r\nX: y",
        "fe80::1%25eth0/",
    ],
)
def test_what_is_not_a_host_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^must have a "):
        ascii_host(text)


def test_authority_is_parsed() -> None:
    assert parse_authority("example.com:8080") == ("example.com", 8080)
    assert parse_authority("[2001:DB8::0]") == ("2001:db8::", None)
    assert is_authority("a:80")


@pytest.mark.parametrize(
    "text",
    ["a:", "a:0", "a:65536", "a:b", "::1:80", "u@a", "[a]", "[:::]", "[::1", "a..b:80", "ä:80", "a:\u0660"],
)
def test_other_authority_is_refused(text: str) -> None:
    assert not is_authority(text)
    with pytest.raises(ValueError, match=r"^must "):
        parse_authority(text)


@pytest.mark.parametrize(
    "url",
    [
        "http://mirror.example",
        "https://mirror.example/rhcos.iso?signature=a%20b",
        "http://192.0.2.1:8080/a",
        "http://[2001:db8::1]/a",
        "https://[::1]:65535/a",
    ],
)
def test_web_url_is_accepted(url: str) -> None:
    assert is_web_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "mirror.example/a",
        "file:///a",
        "ftp://mirror.example/a",
        "http://",
        "http:///a",
        "http://h:0/a",
        "http://h:65536/a",
        "http://h:port/a",
        "http://h:/a",
        "http://[::1/a",
        "http://[1.2.3.4]/a",
        "http://[::1::]/a",
        "http://::1/a",
        "http://user:password@h/a",
        "http://h/a#fragment",
        "http://h/a b",
        "http://h/ä",
        "http://h/a\n",
    ],
)
def test_other_url_is_refused(url: str) -> None:
    assert not is_web_url(url)


@pytest.mark.parametrize(
    ("url", "fault"),
    [
        ("http://a..b/x", "with 1 to 63 in each label"),
        (f"https://user:s3cret@{'a' * 64}.example:80", "with 1 to 63 in each label"),
        ("http://[fe80::g]/", ""),
        ("http://a_b c/", "must have a host name or IP address"),
        ("http://host/", ""),
        ("http://", ""),
        ("file:///x", ""),
        ("x", ""),
    ],
)
def test_fault_of_a_host_is_told_without_the_url(url: str, fault: str) -> None:
    told = host_fault(url)
    assert fault in told
    assert bool(told) == bool(fault)
    assert "s3cret" not in told
