from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime, parsedate_to_datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from image_service.server.http.dates import format_epoch, format_http_date, format_rfc3339, parse_http_date

MOMENT = datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)  # of RFC 9110 section 5.6.7
NOW = datetime(2026, 6, 15, 12, tzinfo=UTC)
FIXDATE = "Sun, 06 Nov 1994 08:49:37 GMT"


def moments(first: int = 1, last: int = 9999) -> st.SearchStrategy[datetime]:
    """Whole seconds of these years."""
    whole = st.datetimes(datetime(first, 1, 1), datetime(last, 12, 31), timezones=st.just(UTC))  # noqa: DTZ001 - bounds are naive
    return whole.map(lambda moment: moment.replace(microsecond=0))


def rfc850(moment: datetime) -> str:
    return f"{moment:%A, %d-%b-%y %H:%M:%S} GMT"


@pytest.mark.parametrize("text", [FIXDATE, "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"])
def test_three_forms_parse_to_one_moment(text: str) -> None:
    assert parse_http_date(text, NOW) == MOMENT
    assert parse_http_date(text) == MOMENT


@given(moments())
@example(datetime(1, 1, 1, tzinfo=UTC))
@example(datetime(2024, 2, 29, 23, 59, 59, tzinfo=UTC))
def test_fixdate_equals_stdlib_in_both_directions(moment: datetime) -> None:
    text = format_http_date(moment)
    assert text == format_datetime(moment, usegmt=True)
    assert parse_http_date(text) == moment
    if moment.year >= 1000:  # the stdlib takes fewer digits for an abbreviation
        assert parsedate_to_datetime(text) == moment


@given(moments(first=1000))
def test_asctime_date_equals_stdlib(moment: datetime) -> None:
    assert parse_http_date(time.asctime(moment.timetuple())) == moment


@given(moments(first=1977, last=2075))
def test_rfc850_date_is_in_the_century_around_now(moment: datetime) -> None:
    assert parse_http_date(rfc850(moment), NOW) == moment


@given(moments(first=1990, last=2060), moments(first=1970, last=2099))
def test_rfc850_date_is_never_more_than_50_years_ahead(now: datetime, moment: datetime) -> None:
    read = parse_http_date(rfc850(moment), now)
    if read is not None:  # else the weekday is that of another century
        assert read - now < timedelta(days=50 * 365.25 + 1)
        assert (read.year - moment.year) % 100 == 0


@pytest.mark.parametrize(
    ("text", "now", "year"),
    [
        ("Monday, 15-Jun-76 12:00:00 GMT", NOW, 2076),  # 50 years ahead
        ("Tuesday, 15-Jun-76 12:00:01 GMT", NOW, 1976),  # more than that
        ("Tuesday, 29-Feb-00 00:00:00 GMT", NOW, 2000),
        ("Monday, 15-Jun-20 00:00:00 GMT", NOW.replace(year=2010), 2020),
    ],
)
def test_rfc850_year_at_the_50_year_boundary(text: str, now: datetime, year: int) -> None:
    read = parse_http_date(text, now)
    assert read is not None
    assert read.year == year


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "now",
        "*",
        '"etag"',
        f" {FIXDATE}",
        f"{FIXDATE} ",
        f"{FIXDATE}\n",
        f"{FIXDATE}, {FIXDATE}",
        FIXDATE.lower(),
        FIXDATE.upper(),
        FIXDATE.replace("GMT", "UTC"),
        FIXDATE.replace("GMT", "+0000"),
        FIXDATE.replace("GMT", "CET"),
        FIXDATE.removesuffix(" GMT"),
        FIXDATE.replace("06", "6"),
        FIXDATE.replace("06", " 6"),
        FIXDATE.replace("Sun", "Mon"),
        FIXDATE.replace("Sun", "Sunday"),
        FIXDATE.replace("Nov", "Nob"),
        FIXDATE.replace("Nov", "11"),
        FIXDATE.replace("06", "31"),
        FIXDATE.replace("06", "00"),
        FIXDATE.replace("08", "24"),
        FIXDATE.replace("49", "60"),
        FIXDATE.replace("37", "61"),
        FIXDATE.replace("1994", "0000"),
        FIXDATE.replace("1994", "94"),
        FIXDATE.replace("06", "٠٦"),
        FIXDATE.replace(" ", "\t"),
        FIXDATE.replace(" ", "  "),
        "Sunday, 06-Nov-1994 08:49:37 GMT",
        "Sun, 06-Nov-94 08:49:37 GMT",
        "Monday, 06-Nov-94 08:49:37 GMT",
        "Sunday, 6-Nov-94 08:49:37 GMT",
        "Sun Nov 6 08:49:37 1994",
        "Sun Nov  6 08:49:37 1994 GMT",
        "Mon Nov  6 08:49:37 1994",
        "1994-11-06T08:49:37Z",
        "Thu, 29 Feb 1900 00:00:00 GMT",
    ],
)
def test_malformed_date_is_none(text: str) -> None:
    assert parse_http_date(text, NOW) is None


def test_leap_second_is_the_second_before_it() -> None:
    expected = datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == expected


@given(st.text(max_size=40) | st.text("SunMoNvGT0123456789:,- ", max_size=40))
def test_any_text_parses_without_error(text: str) -> None:
    read = parse_http_date(text)
    assert read is None or read.utcoffset() == timedelta(0)


@given(moments(), st.integers(0, 28), st.characters(codec="latin-1"))
def test_changed_character_gives_another_date_or_none(
    moment: datetime, position: int, character: str
) -> None:
    text = format_http_date(moment)
    changed = text[:position] + character + text[position + 1 :]
    read = parse_http_date(changed)
    assert read is None or format_http_date(read) == changed or changed[23:25] == "60"


def test_any_zone_is_formatted_as_gmt_without_fractions() -> None:
    tokyo = MOMENT.replace(microsecond=999_999).astimezone(timezone(timedelta(hours=9)))
    assert format_http_date(tokyo) == FIXDATE
    assert format_rfc3339(tokyo) == "1994-11-06T08:49:37Z"


def test_seconds_since_1970_are_formatted_without_fractions() -> None:
    assert format_epoch(1_700_000_000.75) == "2023-11-14T22:13:20Z"
