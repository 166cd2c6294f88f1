"""A progress bar for terminals."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self, TextIO

_SECONDS = 0.1  # between two updates
_WIDTH = 30  # characters
_MIB = 1024 * 1024


class ProgressBar:
    """Shows bytes, their share of the total, their rate and the time left, if the stream is a terminal.

    Args:
        total: bytes; None: not known yet, and nothing is shown.
        stream: None: standard error.
        phase: its name is shown behind the figures; empty: the command has one phase.
    """

    def __init__(
        self,
        total: int | None = None,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        phase: str = "",
    ) -> None:
        self._total = total
        self._end = f" left  {phase}" if phase else " left"
        self._stream = stream or sys.stderr
        self._clock = clock
        self._started_at = clock()
        self._shown_at = self._started_at
        self._done = 0
        self._is_terminal = self._stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Show the final state, and end the line."""
        if self._is_terminal and self._total:
            self._show(self._total, self._clock())
            self._stream.write("\n")

    def advance(self, count: int) -> None:
        """Add `count` bytes."""
        self.report(self._done + count, self._total)

    def report(self, done: int, total: int | None) -> None:
        """Set the bytes so far, and those of the whole."""
        self._done, self._total = done, total
        now = self._clock()
        if self._is_terminal and total and now >= self._shown_at + _SECONDS:
            self._show(total, now)

    def _show(self, total: int, now: float) -> None:
        self._shown_at = now
        share = self._done / total
        rate = self._done / max(now - self._started_at, _SECONDS)
        bar = "#" * int(share * _WIDTH)
        done = f"{self._done / _MIB:.1f} of {total / _MIB:.1f} MiB"
        left = "{:4}:{:02}".format(*divmod(int((total - self._done) / rate), 60)) if rate else "   -:--"
        self._stream.write(
            f"\r[{bar:.<{_WIDTH}}] {share:4.0%}  {done}  {rate / _MIB:6.1f} MiB/s {left}{self._end}"
        )
        self._stream.flush()
