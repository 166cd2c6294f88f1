from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING

from image_service.common.command_line.progress_bar import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1024 * 1024


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(terminal: Terminal) -> list[str]:
    """Each state of the line."""
    return terminal.getvalue().removesuffix("\n").split("\r")[1:]


def seconds(*passing: float) -> Iterator[float]:
    yield from passing


def test_bytes_share_and_rate_are_shown_periodically() -> None:
    clock = seconds(100, 100.05, 101, 101.05, 101.08, 102)
    terminal = Terminal()
    with ProgressBar(8 * MIB, terminal, lambda: next(clock)) as progress:
        progress.advance(MIB)  # too soon to look again
        progress.advance(MIB)
        progress.advance(MIB)  # again
        progress.advance(5 * MIB)
    assert shown(terminal) == [
        "[#######.......................]  25%  2.0 of 8.0 MiB     2.0 MiB/s    0:03 left",
        "[##############################] 100%  8.0 of 8.0 MiB     4.0 MiB/s    0:00 left",
    ]
    assert terminal.getvalue().endswith("\n")


def test_nothing_is_shown_without_a_terminal() -> None:
    stream = io.StringIO()
    clock = seconds(1, 2, 3)
    with ProgressBar(MIB, stream, lambda: next(clock)) as progress:
        progress.advance(MIB)
    assert stream.getvalue() == ""


def test_nothing_is_shown_until_the_total_is_known() -> None:
    clock = seconds(1, 2, 3, 4)
    terminal = Terminal()
    with ProgressBar(None, terminal, lambda: next(clock)) as progress:
        progress.report(MIB, None)
        assert terminal.getvalue() == ""
        progress.report(2 * MIB, 4 * MIB)
    assert shown(terminal) == [
        "[###############...............]  50%  2.0 of 4.0 MiB     1.0 MiB/s    0:02 left",
        "[###############...............]  50%  2.0 of 4.0 MiB     0.7 MiB/s    0:03 left",
    ]


def test_time_left_is_in_minutes_and_unknown_without_a_rate() -> None:
    clock = seconds(0, 10, 20, 30)
    terminal = Terminal()
    with ProgressBar(200 * MIB, terminal, lambda: next(clock)) as progress:
        progress.advance(0)
        progress.advance(20 * MIB)
    assert [line[-12:] for line in shown(terminal)] == ["   -:-- left", "   3:00 left", "   4:30 left"]


def test_interrupted_progress_shows_the_share_so_far() -> None:
    terminal = Terminal()
    with suppress(InterruptedError), ProgressBar(4 * MIB, terminal, lambda: 0.0) as progress:
        interrupt(progress)
    assert shown(terminal) == [
        "[#######.......................]  25%  1.0 of 4.0 MiB    10.0 MiB/s    0:00 left"
    ]
    assert terminal.getvalue().endswith("\n")


def interrupt(progress: ProgressBar) -> None:
    progress.advance(MIB)
    raise InterruptedError
