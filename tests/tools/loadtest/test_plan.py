"""URLs of images: parsed, filled in, and shown without credentials."""

from __future__ import annotations

import attrs
import pytest

from image_service.tools.loadtest.traffic.plan import (
    ServerOrigin,
    build_of,
    check_identifiers,
    fill,
    parse_lines,
    parse_target,
)
from tests.tools.loadtest.reports import PLAN


def test_url_is_parsed() -> None:
    target = parse_target("https://images.example.com/bytoken/top.secret/4.17/x86_64/full.iso?x=1")
    assert target.origin == ServerOrigin("https", "images.example.com", 443, "images.example.com")
    assert target.path == "/bytoken/top.secret/4.17/x86_64/full.iso?x=1"
    assert target.digest_path == "/bytoken/top.secret/4.17/x86_64/full.iso.sha256?x=1"
    assert target.label == "https://images.example.com/…/full.iso"
    assert "secret" not in f"{target!r} {target.label}"


def test_text_of_a_server_is_shown_without_credentials() -> None:
    target = parse_target("https://h/bytoken/top.secret%2B/4.17/x86_64/full.iso?api_key=k-1234")
    plan = attrs.evolve(PLAN, targets=(target,), fields=(("Authorization", "Bearer xyzzy"),))
    said = "no /bytoken/top.secret%2B/4.17, nor top.secret+, for k-1234 with xyzzy; there are full.iso, 4.17"
    shown = "no /…/…/4.17, nor …, for … with …; there are full.iso, 4.17"
    assert plan.redact(target, said) == shown


def test_ipv6_brackets_are_in_the_host_field_only() -> None:
    origin = parse_target("http://[::1]:8080/x.iso").origin
    assert (origin.host, origin.port, str(origin)) == ("::1", 8080, "http://[::1]:8080")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "full.iso",
        "ftp://h/x",
        "http:///x",
        "http://h",
        "http://h?x",
        "http://h:99999/x",
        "http://user:secret@h/x",
        "http://h/secret\u00e9",
        "http://h/secret x",
        "https://user:secret@a\u2100b/full.iso",
        "https://[secret/full.iso",
    ],
)
def test_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(ValueError, match=r"^(must|has)") as refused:
        parse_target(url)
    assert "secret" not in str(refused.value)


def test_template_is_filled_with_infra_envs() -> None:
    assert fill("http://h/byid/{infra_env}/4/x", ["a", "b"]) == ["http://h/byid/a/4/x", "http://h/byid/b/4/x"]
    assert fill("http://h/x", ["a", "b"]) == ["http://h/x"]


@pytest.mark.parametrize(
    ("template", "build"),
    [
        ("http://h/byid/{infra_env}/4.17/aarch64/full.iso", ("4.17", "aarch64")),
        ("http://h/images/{infra_env}?type=full-iso&version=4.17", ("4.17", "x86_64")),
        ("http://h/images/{infra_env}?version=4.17&arch=s390x", ("4.17", "s390x")),
    ],
)
def test_build_is_read_from_the_template(template: str, build: tuple[str, str]) -> None:
    assert build_of(template) == build


def test_template_without_version_is_refused() -> None:
    with pytest.raises(ValueError, match="names no version"):
        build_of("http://h/images/{infra_env}")


def test_list_has_one_entry_per_line() -> None:
    assert parse_lines("# comment\n\n a \r\nb\n") == ["a", "b"]


def test_identifier_with_other_characters_is_refused() -> None:
    check_identifiers(["5a3b1e00-0000-4000-8000-000000000001"])
    with pytest.raises(ValueError, match="entry 2"):
        check_identifiers(["a", "b/../c"])
