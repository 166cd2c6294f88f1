from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import jwt
import pytest

from image_service.cli.doctor import _parse_url
from image_service.tools.doctor.expiry import check_expiry, find_expiry
from image_service.tools.doctor.rules import ClientProfile
from image_service.tools.doctor.target import ImageUrl
from image_service.tools.doctor.url_checks import URL_CHECKS, check_url

if TYPE_CHECKING:
    from image_service.tools.doctor.outcomes import CheckOutcome

HOST = "http://192.0.2.1"
GOOD = f"{HOST}/s/0123456789abcdef.iso"
NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SECRET = "the secret of this test, long enough for a signature"


def check(url: str, profile: ClientProfile | None = None) -> dict[str, CheckOutcome]:
    outcomes = {outcome.name: outcome for outcome in check_url(ImageUrl.parse(url), profile)}
    assert tuple(outcomes) == URL_CHECKS
    return outcomes


def status(name: str, url: str, profile: str | None = None) -> str:
    return str(check(url, ClientProfile(profile) if profile else None)[name].status)


def of_length(length: int) -> str:
    return f"{HOST}/s/".ljust(length - 4, "a") + ".iso"


@pytest.mark.parametrize("profile", [None, "idrac", "ilo", "supermicro", "ironic", "qemu"])
def test_short_link_gets_no_complaint(profile: str | None) -> None:
    checks = check(GOOD, ClientProfile(profile) if profile else None)
    assert {str(outcome.status) for outcome in checks.values()} == {"ok"}


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("url-length", of_length(255), {None: "ok", "idrac": "ok", "uefi-http": "ok"}),
        ("url-length", of_length(256), {None: "warn", "idrac": "warn", "qemu": "ok", "ipxe": "skip"}),
        ("url-length", of_length(300), {"idrac": "warn", "ilo": "warn"}),
        ("url-length", of_length(301), {None: "warn", "idrac": "fail", "uefi-http": "skip"}),
        (
            "url-query",
            f"{GOOD}?a=b",
            {None: "warn", "supermicro": "fail", "uefi-http": "ok", "ironic": "skip"},
        ),
        ("url-characters", f"{HOST}/s/a=b.iso", {None: "warn", "supermicro": "fail", "ipxe": "skip"}),
        ("url-characters", f"{HOST}/s/a,b.iso", {None: "warn", "ilo": "fail", "qemu": "skip"}),
        ("url-characters", f"{HOST}/s/a%20b.iso", {None: "warn", "idrac": "warn", "qemu": "skip"}),
        ("url-characters", f"{HOST}/s//a.iso", {None: "warn"}),
        (
            "url-directory",
            f"{HOST}/a.iso",
            {None: "warn", "supermicro": "fail", "qemu": "ok", "ironic": "skip"},
        ),
        ("url-directory", HOST, {None: "warn"}),
        ("url-suffix", f"{HOST}/s/a.ISO", {None: "ok", "idrac": "ok"}),
        ("url-suffix", f"{HOST}/s/a.img", {None: "ok", "idrac": "ok"}),
        ("url-suffix", f"{HOST}/s/iso", {None: "warn", "idrac": "fail", "uefi-http": "skip", "qemu": "ok"}),
        ("url-scheme", GOOD, {None: "ok", "openbmc": "warn", "uefi-http": "warn", "ipxe": "ok"}),
        ("url-scheme", "https://h/s/a.iso", {None: "ok", "openbmc": "ok", "ipxe": "warn"}),
    ],
)
def test_url_is_judged_for_the_client(name: str, url: str, expected: dict[str | None, str]) -> None:
    assert {profile: status(name, url, profile) for profile in expected} == expected


def test_remedies_are_given_for_faults_only() -> None:
    for outcome in check(f"{of_length(301)},=?x", ClientProfile.QEMU).values():
        assert not outcome.remedy, outcome
    assert all(outcome.remedy for outcome in check(f"{HOST}/?x").values() if str(outcome.status) == "warn")


@pytest.mark.parametrize(
    "url", ["ftp://h/a.iso", "http://:80/", "h/a.iso", "http://u:p@h/a.iso", "http://h/a b"]
)
def test_other_urls_are_refused_without_being_shown(url: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refused:
        _parse_url(url)
    assert url not in str(refused.value)


@pytest.mark.parametrize("url", ["oci://quay.io/coreos/iso:1", "release://quay.io/ocp/release:5.0#rhel-10"])
def test_url_of_a_base_image_is_not_one_to_boot_from(url: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="serve --check tries it"):
        _parse_url(url)


def test_shown_url_has_no_credential() -> None:
    url = ImageUrl.parse("https://[2001:db8::1]:8443/bytoken/eyJsecret/4.19/x86_64/full.iso?api_key=secret")
    assert url.shown == "https://[2001:db8::1]:8443/…/full.iso?…"
    assert "secret" not in repr(url)
    assert ImageUrl.parse(f"{HOST}/{'s' * 65}").shown == f"{HOST}/…"
    assert url.follow("/other.iso").text == "https://[2001:db8::1]:8443/other.iso"


def with_token(seconds: float) -> ImageUrl:
    token = jwt.encode({"exp": int((NOW + timedelta(seconds=seconds)).timestamp())}, SECRET)
    return ImageUrl.parse(f"{HOST}/bytoken/{token}/4.19/x86_64/full.iso")


@pytest.mark.parametrize(
    ("seconds", "size", "expected"),
    [(-1, 1000, "fail"), (7999, 10**9, "warn"), (8001, 10**9, "ok"), (1, None, "ok")],
)
def test_token_must_outlive_a_slow_mount(seconds: int, size: int | None, expected: str) -> None:
    assert str(check_expiry(with_token(seconds), size, NOW).status) == expected


def test_earliest_end_in_the_url_counts() -> None:
    signed = ImageUrl.parse(
        f"{HOST}/b/a.iso?X-Amz-Date=20261123T120000Z&X-Amz-Expires=3600&X-Amz-Signature=s"
    )
    assert find_expiry(signed) == NOW + timedelta(hours=1)
    assert find_expiry(
        ImageUrl.parse(f"{with_token(60).text}?X-Amz-Date=x&X-Amz-Expires=y")
    ) == NOW + timedelta(minutes=1)
    assert find_expiry(ImageUrl.parse(GOOD)) is None


@pytest.mark.parametrize(
    "token", ["a.b.c", "a.e30.c", "a.eyJleHAiOiJ4In0.c", "a.eyJleHAiOjFlMzA4fQ.c", "a.!.c"]
)
def test_token_without_a_readable_end_is_skipped(token: str) -> None:
    url = ImageUrl.parse(f"{HOST}/bytoken/{token}/full.iso")
    assert str(check_expiry(url, 1, NOW).status) == "skip"
