"""Proxies by Go's rules; cases of golang.org/x/net/http/httpproxy's own test are among them."""

from __future__ import annotations

import base64

import pytest

from image_service.core.errors import ConfigurationError
from image_service.settings.proxies import NO_PROXIES, ProxySettings, parse_proxy

HTTP, HTTPS = "http://proxy.example:3128", "http://proxy.example:3129"


def settings_of(**environ: str) -> ProxySettings:
    return ProxySettings.from_environment(environ)


def is_proxied(url: str, exempt: str) -> bool:
    found = settings_of(HTTP_PROXY=HTTP, HTTPS_PROXY=HTTPS, NO_PROXY=exempt).find(url)
    return found is not None


def test_scheme_of_the_url_selects_the_proxy() -> None:
    settings = settings_of(HTTP_PROXY=HTTP, HTTPS_PROXY=HTTPS)
    assert str(settings.find("http://example.com/a")) == HTTP
    assert str(settings.find("https://example.com/a")) == HTTPS
    assert settings_of(HTTP_PROXY=HTTP).find("https://example.com") is None
    assert NO_PROXIES.find("http://example.com") is None


def test_upper_case_wins_over_lower_case() -> None:
    assert str(settings_of(http_proxy=HTTP).find("http://example.com")) == HTTP
    assert str(settings_of(http_proxy=HTTPS, HTTP_PROXY=HTTP).find("http://example.com")) == HTTP
    assert settings_of(http_proxy=HTTP, no_proxy="example.com").find("http://example.com") is None


@pytest.mark.parametrize(
    ("url", "exempt", "expected"),
    [
        # never for this machine
        ("http://localhost", "", False),
        ("http://LOCALHOST:8080", "", False),
        ("http://127.0.0.1", "", False),
        ("http://127.0.0.2:80", "", False),
        ("http://[::1]", "", False),
        ("http://[::ffff:127.0.0.1]", "", False),
        ("http://localhost.localdomain", "", True),
        # addresses and networks
        ("http://192.168.1.1", "192.168.1.1", False),
        ("http://192.168.1.1:8080", "192.168.1.1:8080", False),
        ("http://192.168.1.1:8081", "192.168.1.1:8080", True),
        ("http://192.168.1.2", "192.168.1.1", True),
        ("http://192.168.1.2", "192.168.1.0/24", False),
        ("http://192.168.2.2", "192.168.1.0/24", True),
        ("http://192.168.1.2", "192.168.1.77/24", False),
        ("http://[::ffff:192.168.1.2]", "192.168.1.0/24", False),
        ("http://[2001:db8::1]", "2001:db8::/32", False),
        ("http://[2001:db9::1]", "2001:db8::/32", True),
        ("http://[2001:db8::1]:80", "[2001:db8::1]:80", False),
        ("http://[2001:db8::1]:81", "[2001:db8::1]:80", True),
        ("http://[2001:db8::1]", "2001:db8::1", False),
        ("http://host192.168.1.1", "192.168.1.1", True),
        # names
        ("http://example.com", "example.com", False),
        ("http://EXAMPLE.com", "Example.COM", False),
        ("http://sub.example.com", "example.com", False),
        ("http://notexample.com", "example.com", True),
        ("http://example.com", ".example.com", True),
        ("http://sub.example.com", ".example.com", False),
        ("http://example.com", "*.example.com", True),
        ("http://sub.example.com", "*.example.com", False),
        ("http://example.com:8080", "example.com:8080", False),
        ("http://example.com", "example.com:80", False),
        ("https://example.com", "example.com:80", True),
        ("https://example.com", "example.com:443", False),
        ("http://example.com:8080", "example.com:80", True),
        ("http://example.com.", "example.com", True),
        # all
        ("http://example.com", "*", False),
        ("http://192.168.1.1", "a, *", False),
        ("http://example.com", "*a", True),
        # white space, and entries that are none
        ("http://example.com", " a ,  example.com , ", False),
        ("http://example.com", ",:,:80,[,a:b:c,/24", True),
    ],
)
def test_no_proxy_is_read_as_in_go(url: str, exempt: str, *, expected: bool) -> None:
    assert is_proxied(url, exempt) is expected


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://proxy", "http://proxy:80"),
        ("proxy:3128", "http://proxy:3128"),
        ("http://proxy:3128/", "http://proxy:3128"),
        ("http://[::1]:3128", "http://[::1]:3128"),
        ("http://user:secret@proxy:3128", "http://proxy:3128"),
        ("https://user:secret@proxy:3129", "https://proxy:3129"),
        ("https://proxy/", "https://proxy:443"),
        ("https://[2001:db8::1]", "https://[2001:db8::1]:443"),
    ],
)
def test_url_of_a_proxy_is_parsed_and_shown_without_user(text: str, url: str) -> None:
    proxy = parse_proxy(text)
    assert str(proxy) == url
    assert "secret" not in repr(proxy)


def test_user_and_password_are_decoded() -> None:
    authorization = parse_proxy("http://us%3Aer:p%2F%40ss%25@proxy").authorization
    assert base64.b64decode(authorization.removeprefix("Basic ")) == b"us:er:p/@ss%"
    assert not parse_proxy("http://proxy").authorization


@pytest.mark.parametrize(
    "text",
    [
        "socks5://user:s3cret@proxy",
        "http://user:s3cret/@proxy:3128",
        "http://user:s3cret@",
        "http://user:s3cret@proxy:99999",
        "http://user:s3cret@proxy/path",
        "http://user:s3cret@[proxy",
    ],
)
def test_invalid_proxy_is_a_fault_without_its_password(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"HTTPS_PROXY: must be http://") as caught:
        settings_of(HTTPS_PROXY=text)
    assert "s3cret" not in caught.value.detail


def test_invalid_host_of_a_proxy_is_named_as_the_fault() -> None:
    for text in ("https://user:s3cret@a..b:3128", f"{'a' * 64}.example", "http://.example:80"):
        with pytest.raises(ConfigurationError, match=r"HTTPS_PROXY: must have a host name of at") as caught:
            settings_of(HTTPS_PROXY=text)
        assert "s3cret" not in caught.value.detail
