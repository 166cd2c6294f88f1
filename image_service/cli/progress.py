"""How far a long way has been gone: one line that a terminal shows over and over."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self, TextIO

_SECONDS = 0.1  # between two looks
_BAR = 30  # characters
_MIB = 1024 * 1024


class Progress:
    """Shows bytes, their share of all and their rate, if there is a terminal to show them on.

    Args:
        total: bytes that there are to be, at least one.
        stream: where it is shown; None: standard error.
        clock: seconds.
    """

    def __init__(
        self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self._clock = clock
        self._begun = clock()
        self._shown_at = self._begun
        self._done = 0
        self._seen = self._stream.isatty()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the line as it is in the end."""
        if self._seen:
            self._show(self._clock())
            self._stream.write("\n")

    def advance(self, count: int) -> None:
        """Tell of ``count`` bytes more."""
        self._done += count
        now = self._clock()
        if self._seen and now >= self._shown_at + _SECONDS:
            self._show(now)

    def _show(self, now: float) -> None:
        self._shown_at = now
        share = self._done / self._total
        rate = self._done / max(now - self._begun, _SECONDS)
        bar = "#" * int(share * _BAR)
        told = f"{self._done / _MIB:.1f} of {self._total / _MIB:.1f} MiB"
        self._stream.write(f"\r[{bar:.<{_BAR}}] {share:4.0%}  {told}  {rate / _MIB:6.1f} MiB/s")
        self._stream.flush()
