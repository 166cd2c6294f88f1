"""Checks of the URL alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from image_service.tools.doctor.outcomes import failed, passed, skipped, worst
from image_service.tools.doctor.rules import ClientProfile, Rule, judge, violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.target import ImageUrl

URL_CHECKS = ("url-length", "url-query", "url-characters", "url-directory", "url-suffix", "url-scheme")

SUFFIXES = (".iso", ".img")
_MAX_LENGTH = 255
_REFUSED_BY_IDRAC = 301
_IDRAC_SOURCE = "assisted-image-service #183: an iDRAC refuses 301 (RAC0720)"
_OTHER_CHARACTERS = re.compile(r"[^A-Za-z0-9._/=,-]")
_SHORT_LINK = "make a short link: image-service link URL"
_RENAME = "use letters, digits, '.', '_' and '-' only, as short links do: image-service link URL"


def check_url(url: ImageUrl, profile: ClientProfile | None) -> Iterator[CheckOutcome]:
    """Yield the outcomes of `URL_CHECKS`."""
    yield _check_length(url, profile)
    if url.query:
        yield violation("url-query", Rule.QUERY, profile, "the URL has a query", _SHORT_LINK)
    else:
        yield passed("url-query", "the URL has no query")
    yield _check_characters(url, profile)
    if url.path.rstrip("/").count("/") > 1:
        yield passed("url-directory", "the path has a directory")
    else:
        detail, remedy = "the path has no directory", "put the image into a directory, such as /s/full.iso"
        yield violation("url-directory", Rule.DIRECTORY, profile, detail, remedy)
    yield _check_suffix(url, profile)
    rule = Rule.HTTPS if url.is_https else Rule.PLAIN_HTTP
    other = "http" if url.is_https else "https"
    yield violation("url-scheme", rule, profile, f"the scheme is {url.scheme}", f"offer {other} too")


def _check_length(url: ImageUrl, profile: ClientProfile | None) -> CheckOutcome:
    length = len(url.text)
    if length <= _MAX_LENGTH:
        source = judge(Rule.URL_LENGTH, None).source
        detail = f"{length} characters; the lowest limit known is {_MAX_LENGTH} ({source})"
        return passed("url-length", detail)
    if profile is ClientProfile.IDRAC and length >= _REFUSED_BY_IDRAC:
        detail = f"{length} characters ({_IDRAC_SOURCE})"
        return failed("url-length", detail, _SHORT_LINK)
    detail = f"{length} characters; {_MAX_LENGTH} is the lowest limit known"
    return violation("url-length", Rule.URL_LENGTH, profile, detail, _SHORT_LINK)


def _check_characters(url: ImageUrl, profile: ClientProfile | None) -> CheckOutcome:
    found = [
        (rule, f"the path has {characters}")
        for rule, characters in (
            (Rule.EQUALS_SIGN, "'='" if "=" in url.path else ""),
            (Rule.COMMA, "','" if "," in url.path else ""),
            (Rule.OTHER_CHARACTERS, " ".join(sorted(set(_OTHER_CHARACTERS.findall(url.path))))),
            (Rule.OTHER_CHARACTERS, "an empty segment" if "//" in url.path else ""),
        )
        if characters
    ]
    outcomes = [violation("url-characters", rule, profile, detail, _RENAME) for rule, detail in found]
    return worst(outcomes) or passed(
        "url-characters", "the path has letters, digits, '.', '_', '-' and '/' only"
    )


def _check_suffix(url: ImageUrl, profile: ClientProfile | None) -> CheckOutcome:
    if url.path.lower().endswith(SUFFIXES):
        return passed("url-suffix", f"the path ends in {url.path[-4:]}")
    detail = "the path ends in neither .iso nor .img"
    if profile is ClientProfile.UEFI_HTTP:  # a media type can take the suffix's place
        source = judge(Rule.SUFFIX, profile).source
        return skipped("url-suffix", f"{detail}; see media-type ({source})")
    return violation("url-suffix", Rule.SUFFIX, profile, detail, _SHORT_LINK)
