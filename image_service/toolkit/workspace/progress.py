"""Progress of a call: JSON lines for programs, a bar for terminals."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from image_service.common.command_line.progress_bar import ProgressBar

if TYPE_CHECKING:
    from collections.abc import Callable


_STEPS = 1000  # of a phase, at most


class Progress:
    """Reports phases of a call, one after the other; ``done`` rises in each and ends at its total.

    Args:
        report: receives the phase, its bytes (or steps) so far, and those of the whole.
    """

    def __init__(self, report: Callable[[str, int, int], None]) -> None:
        self._report = report
        self._phase = ""
        self._done = self._total = 0

    def start(self, phase: str, total: int) -> None:
        """Begin a phase; the phase before is finished."""
        self.finish()
        self._phase, self._done, self._total = phase, 0, total
        self._report(phase, 0, total)

    def set(self, done: int) -> None:
        """Set what is done of the phase; less than before is ignored, and its total is left to `finish`.

        Steps of less than a thousandth are not reported.
        """
        if self._done + self._total // _STEPS < done < self._total:
            self._done = done
            self._report(self._phase, done, self._total)

    def finish(self) -> None:
        """End the phase, if one has begun."""
        if self._done < self._total:
            self._done = self._total
            self._report(self._phase, self._done, self._total)


def json_progress() -> Progress:
    """Return a progress that prints a JSON object a line to standard error."""

    def report(phase: str, done: int, total: int) -> None:
        print(json.dumps({"phase": phase, "done": done, "total": total}), file=sys.stderr, flush=True)  # noqa: T201

    return Progress(report)


def bar_progress() -> Progress:
    """Return a progress that shows a bar for each phase, if standard error is a terminal."""
    bar = ProgressBar()

    def report(phase: str, done: int, total: int) -> None:
        nonlocal bar
        if done == 0:
            bar = ProgressBar(total, phase=phase)
        bar.report(done, total)
        if done == total:
            bar.__exit__(None, None, None)

    return Progress(report)
