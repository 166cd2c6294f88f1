"""Check of the time for which a URL is valid, as far as the URL itself shows it."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from image_service.tools.doctor.outcomes import failed, passed, skipped, warned
from image_service.tools.doctor.rules import SLOWEST_RATE, Rule, judge

if TYPE_CHECKING:
    from image_service.tools.doctor.outcomes import CheckOutcome
    from image_service.tools.doctor.target import ImageUrl

EXPIRY_CHECKS = ("expiry",)

_JWT_PARTS = 3


def check_expiry(url: ImageUrl, size: int | None, now: datetime) -> CheckOutcome:
    """Return whether the URL outlives a slow mount of `size` bytes; None: the size is not known."""
    name = EXPIRY_CHECKS[0]
    end = find_expiry(url)
    if end is None:
        return skipped(name, "the URL does not show when it expires")
    text, remedy = f"{end:%Y-%m-%d %H:%M} UTC", "make a new URL, with a longer time"
    if end <= now:
        return failed(name, f"expired on {text}", remedy)
    if size is not None and end - now < timedelta(seconds=size / SLOWEST_RATE):
        minutes = size / SLOWEST_RATE / 60
        source = judge(Rule.RATE, None).source
        detail = f"expires on {text}; a read at 1 Mbit/s takes {minutes:.0f} minutes ({source})"
        return warned(name, detail, remedy)
    return passed(name, f"expires on {text}")


def find_expiry(url: ImageUrl) -> datetime | None:
    """Return the earliest end that a JSON Web Token or an S3 signature in the URL shows."""
    query = parse_qs(url.query)
    words = [*url.path.split("/"), *(value for values in query.values() for value in values)]
    ends = [end for word in words if (end := _jwt_expiry(word)) is not None]
    dates, seconds = query.get("X-Amz-Date"), query.get("X-Amz-Expires")
    if dates and seconds:
        try:
            begin = datetime.strptime(dates[0], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            ends.append(begin + timedelta(seconds=int(seconds[0])))
        except (ValueError, OverflowError):
            pass
    return min(ends, default=None)


def _jwt_expiry(word: str) -> datetime | None:
    try:
        return datetime.fromtimestamp(int(read_claims(word)["exp"]), UTC)
    except (ValueError, TypeError, KeyError, OverflowError, OSError):
        return None


def read_claims(word: str) -> dict[str, Any]:
    """Return the claims of a JSON Web Token, which is not verified; none if it is not one."""
    parts = word.split(".")
    if len(parts) != _JWT_PARTS:
        return {}
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return {}
    return claims if isinstance(claims, dict) else {}
