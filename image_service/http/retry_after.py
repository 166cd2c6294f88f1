"""``Retry-After`` (RFC 9110 section 10.2.3), as an origin sends it."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

from image_service.http.dates import parse_http_date

_LONGEST_SECONDS = 24 * 3600  # beyond it nobody means what is said


def parse_retry_after(value: str, now: datetime | None = None) -> int | None:
    """Read the field.

    Args:
        value: seconds, or an HTTP-date.
        now: what a date is compared with; None: the clock.

    Returns:
        seconds, from 0 to those of a day; None where the field says nothing that can be understood.
    """
    text = value.strip()
    if re.fullmatch("[0-9]{1,9}", text):
        return min(int(text), _LONGEST_SECONDS)
    moment = parse_http_date(text, now)
    if moment is None:
        return None
    seconds = math.ceil((moment - (now or datetime.now(UTC))).total_seconds())
    return min(max(0, seconds), _LONGEST_SECONDS)
