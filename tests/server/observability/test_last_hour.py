"""The minutes of the last hour."""

from __future__ import annotations

import attrs

from image_service.server.observability.last_hour import MINUTES, LastHour, MinuteActivity


def test_what_was_done_is_in_its_minute() -> None:
    last_hour = LastHour()
    last_hour.add(600.0, 2, 1000)
    last_hour.observe_machines(601.0, 3)
    last_hour.observe_machines(659.0, 1)
    last_hour.add(720.0, 1, 1)
    *_, first, second, third = last_hour.minutes(779.0)
    assert attrs.astuple(first) == (2, 1000, 3)
    assert attrs.astuple(second) == (0, 0, 0)
    assert attrs.astuple(third) == (1, 1, 0)


def test_minutes_are_those_of_the_last_hour() -> None:
    last_hour = LastHour()
    for minute in range(3 * MINUTES):
        last_hour.add(60.0 * minute, 1, minute)
    now = 60.0 * (3 * MINUTES - 1)
    assert [each.bytes_sent for each in last_hour.minutes(now)] == list(range(2 * MINUTES, 3 * MINUTES))
    assert list(last_hour.minutes(now + 2 * 3600)) == [MinuteActivity()] * MINUTES
