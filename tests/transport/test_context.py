"""The context that connections share."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from image_service.http.dates import format_http_date
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from tests.transport.server import Server


@ensure_deferred
async def test_date_follows_the_clock_forwards_and_backwards(plain: Server) -> None:
    for now in (1000.0, 1000.9, 1001.0, 999.9, 5000.5, 1000.0):
        date = format_http_date(datetime.fromtimestamp(int(now), UTC))
        expected = f"HTTP/1.1 206 Partial Content\r\nDate: {date}\r\n"
        assert plain.factory.context.date.partial_content(now) == expected.encode()
