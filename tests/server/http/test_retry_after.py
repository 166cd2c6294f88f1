from __future__ import annotations

from datetime import UTC, datetime

import pytest

from image_service.server.http.retry_after import parse_retry_after

NOW = datetime(1994, 11, 6, 8, 49, 37, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("0", 0),
        (" 120 ", 120),
        ("999999999", 86400),
        ("Sun, 06 Nov 1994 08:49:39 GMT", 2),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 0),
        ("Sun, 06 Nov 1995 08:49:37 GMT", None),  # was a Monday
        ("Mon, 06 Nov 1995 08:49:37 GMT", 86400),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
    ],
)
def test_delay_seconds_and_dates_are_parsed(value: str, seconds: int | None) -> None:
    assert parse_retry_after(value, NOW) == seconds
