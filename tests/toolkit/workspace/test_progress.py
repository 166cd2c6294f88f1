"""Progress for programs: lines of JSON, rising in each phase, up to its total."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from image_service.toolkit.workspace.progress import Progress, bar_progress, json_progress
from tests.common.command_line.test_progress_bar import Terminal

if TYPE_CHECKING:
    import pytest


@given(
    phases=st.lists(
        st.tuples(st.integers(0, 10**12), st.lists(st.integers(-5, 2 * 10**12), max_size=30), st.booleans()),
        min_size=1,
        max_size=5,
    )
)
def test_done_rises_and_ends_at_the_total(phases: list[tuple[int, list[int], bool]]) -> None:
    lines: list[tuple[str, int, int]] = []
    progress = Progress(lambda *line: lines.append(line))
    for number, (total, steps, finishes) in enumerate(phases):
        progress.start(str(number), total)
        for done in steps:
            progress.set(done)
        if finishes:
            progress.finish()
    progress.finish()
    reported = {phase: list(group) for phase, group in groupby(lines, key=lambda line: line[0])}
    assert list(reported) == [str(number) for number in range(len(phases))]
    for number, (total, _, _) in enumerate(phases):
        values = [done for _, done, of in reported[str(number)] if of == total]
        assert len(values) == len(reported[str(number)])
        assert (values[0], values[-1]) == (0, total)
        assert all(one < other for one, other in pairwise(values))


def test_phase_of_many_small_steps_has_a_bounded_number_of_lines() -> None:
    lines: list[object] = []
    progress = Progress(lambda *line: lines.append(line))
    progress.start("copy", 10**6)
    for done in range(0, 10**6, 10):
        progress.set(done)
    progress.finish()
    assert 500 < len(lines) <= 1002


def test_each_bar_names_its_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    progress = bar_progress()
    for phase in ("digest", "convert"):
        progress.start(phase, 4)
        progress.finish()
    assert [line.rpartition(" left  ")[2] for line in terminal.getvalue().split("\r")] == [
        "",
        "digest\n",
        "convert\n",
    ]


def test_json_lines_have_integers(capsys: pytest.CaptureFixture[str]) -> None:
    progress = json_progress()
    progress.start("copy", 2)
    progress.set(1)
    progress.finish()
    assert [json.loads(line) for line in capsys.readouterr().err.splitlines()] == [
        {"phase": "copy", "done": done, "total": 2} for done in (0, 1, 2)
    ]
