from __future__ import annotations

import pytest

from image_service.core.families.coreos.names import ARCHITECTURE, VERSION, is_web_url


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
    ("name", "is_version", "is_architecture"),
    [
        ("x86_64", True, True),
        ("s390x", True, True),
        ("4.20.0-rc.1", True, False),
        ("44.20260707.3.1", True, False),
        (".hidden", False, False),
        ("a/b", False, False),
        ("", False, False),
        ("a" * 100, True, False),
        ("a" * 101, False, False),
    ],
)
def test_version_and_architecture_patterns_match_only_allowed_names(
    name: str, *, is_version: bool, is_architecture: bool
) -> None:
    assert (VERSION.fullmatch(name) is not None) is is_version
    assert (ARCHITECTURE.fullmatch(name) is not None) is is_architecture
