"""``Retry-After`` (RFC 9110 section 10.2.3)."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from image_service.server.http.dates import parse_http_date

_MAX_SECONDS = 24 * 3600  # longer delays are taken for mistakes


def parse_delay_seconds(value: str) -> int | None:
    """Return the value of the form delay-seconds = 1*DIGIT; None for a date or a malformed value."""
    return int(value) if re.fullmatch("[0-9]{1,9}", value) else None


def parse_retry_after(value: str, now: datetime | None = None) -> int | None:
    """Return the seconds until the moment that the field names.

    Args:
        value: delay-seconds, or an HTTP-date.
        now: the time that a date is compared with; None: the clock's.

    Returns:
        0 to a day; None if the value is malformed.
    """
    text = value.strip()
    delay = parse_delay_seconds(text)
    if delay is not None:
        return min(delay, _MAX_SECONDS)
    moment = parse_http_date(text, now)
    if moment is None:
        return None
    seconds = math.ceil((moment - (now or datetime.now(UTC))).total_seconds())
    return min(max(0, seconds), _MAX_SECONDS)
