"""Histories of files on machines that lose power: no part is published, and no wrong byte is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.simulation.blocks import run_blocks
from tests.simulation.downloads import run_downloads

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_downloads_have_no_fault(tmp_path: Path) -> None:
    check(run_downloads, range(100), tmp_path)


def test_block_caches_have_no_fault(tmp_path: Path) -> None:
    check(run_blocks, range(12), tmp_path)


@pytest.mark.soak
def test_many_downloads_have_no_fault(tmp_path: Path) -> None:
    check(run_downloads, range(1000, 6000), tmp_path)


@pytest.mark.soak
def test_many_block_caches_have_no_fault(tmp_path: Path) -> None:
    check(run_blocks, range(1000, 1500), tmp_path)


def check(run: Callable[[Path, int], list[str]], seeds: range, parent: Path) -> None:
    for seed in seeds:
        directory = parent / str(seed)
        directory.mkdir()
        assert (seed, run(directory, seed)) == (seed, [])
