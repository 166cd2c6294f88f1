"""The context that connections share."""

from __future__ import annotations

from datetime import UTC, datetime

from image_service.server.http.dates import format_http_date
from image_service.server.transport.context import DateField


def test_date_follows_the_wall_clock_forwards_and_backwards() -> None:
    times = (1000.0, 1000.9, 1001.0, 999.9, 5000.5, 1000.0)
    field = DateField(iter(times).__next__)
    for now in times:
        date = format_http_date(datetime.fromtimestamp(int(now), UTC))
        expected = f"HTTP/1.1 206 Partial Content\r\nDate: {date}\r\n"
        assert field.partial_content() == expected.encode()
