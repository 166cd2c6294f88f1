"""Histories of files on machines that lose power, and of jobs: see `downloads`, `blocks` and `jobs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.blocks import run_blocks
from tests.simulation.downloads import run_downloads
from tests.simulation.jobs import run_jobs

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Run = Callable[[Path, int], list[str]]


@pytest.mark.parametrize(("run", "histories"), [(run_downloads, 50), (run_blocks, 6), (run_jobs, 4)])
def test_history_has_no_fault(run: Run, histories: int, tmp_path: Path) -> None:
    check(run, range(histories), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("run", "histories"), [(run_downloads, 5000), (run_blocks, 500), (run_jobs, 300)])
def test_many_histories_have_no_fault(run: Run, histories: int, tmp_path: Path) -> None:
    check(run, range(1000, 1000 + histories), tmp_path)


def check(run: Run, seeds: range, parent: Path) -> None:
    for seed in seeds:
        directory = parent / str(seed)
        directory.mkdir()
        assert (seed, run(directory, seed)) == (seed, [])
