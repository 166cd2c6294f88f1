"""HTTP-date (RFC 9110 section 5.6.7): one form to render, three to parse; and times in JSON."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY_NAME = f"(?P<weekday>{'|'.join(_DAYS)})"
_MONTH = f"(?P<month>{'|'.join(_MONTHS)})"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_FORMS = (
    # IMF-fixdate = day-name "," SP date1 SP time-of-day SP GMT ; date1 = day SP month SP year
    re.compile(f"{_DAY_NAME}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    # rfc850-date = day-name-l "," SP date2 SP time-of-day SP GMT ; date2 = day "-" month "-" 2DIGIT
    re.compile(
        "(?P<weekday>Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday), "
        f"(?P<day>[0-9]{{2}})-{_MONTH}-(?P<short_year>[0-9]{{2}}) {_TIME} GMT"
    ),
    # asctime-date = day-name SP date3 SP time-of-day SP year ; date3 = month SP ( 2DIGIT / ( SP 1DIGIT ))
    re.compile(f"{_DAY_NAME} {_MONTH} (?P<day>[0-9]{{2}}| [0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)


def format_http_date(moment: datetime) -> str:
    """Return an aware datetime as IMF-fixdate, such as ``Sun, 06 Nov 1994 08:49:37 GMT``."""
    utc = moment.astimezone(UTC)
    day, month = _DAYS[utc.weekday()], _MONTHS[utc.month - 1]
    return f"{day}, {utc.day:02} {month} {utc.year:04} {utc:%H:%M:%S} GMT"


def format_rfc3339(moment: datetime) -> str:
    """Return an aware datetime as in JSON, such as ``1994-11-06T08:49:37Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def format_epoch(seconds: float) -> str:
    """Return seconds since 1970 as `format_rfc3339` does."""
    return format_rfc3339(datetime.fromtimestamp(seconds, UTC))


def parse_http_date(text: str, now: datetime | None = None) -> datetime | None:
    """Parse an HTTP-date in any of its three forms; None if it is invalid, or its weekday is wrong.

    Args:
        now: determines the century of a two-digit year (at most 50 years ahead); None: the clock.
    """
    match = next((match for form in _FORMS if (match := form.fullmatch(text))), None)
    if match is None:
        return None
    parts = match.groupdict()
    month = _MONTHS.index(parts["month"]) + 1
    day, hour, minute = int(parts["day"]), int(parts["hour"]), int(parts["minute"])
    second = 59 if parts["second"] == "60" else int(parts["second"])  # a leap second
    if "short_year" in parts:
        today = (now or datetime.now(UTC)).utctimetuple()
        year = today.tm_year // 100 * 100 + int(parts["short_year"])
        if (year - 50, month, day, hour, minute, second) > today[:6]:
            year -= 100
    else:
        year = int(parts["year"])
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:  # no such day or time
        return None
    return moment if parts["weekday"].startswith(_DAYS[moment.weekday()]) else None
