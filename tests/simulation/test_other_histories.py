"""Histories of files on machines that lose power, and of jobs: see `downloads`, `blocks` and `jobs`."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.simulation.__main__ import OTHERS
from tests.variants import soaked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("kind", OTHERS)
def test_history_has_no_fault(kind: str, tmp_path: Path) -> None:
    """`.ci/run` carries out more of them."""
    check(kind, range(2), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "number"), [("downloads", 5000), ("blocks", 500), ("jobs", 300)])
def test_many_histories_have_no_fault(kind: str, number: int, tmp_path: Path) -> None:
    check(kind, range(1000, 1000 + number), tmp_path)


@pytest.mark.parametrize("seed", [1, soaked(4)])
@pytest.mark.parametrize("kind", OTHERS)
def test_same_seed_has_the_same_trace(kind: str, seed: int, tmp_path: Path) -> None:
    here = OTHERS[kind](tmp_path, seed).trace
    command = [sys.executable, "-m", "tests.simulation", str(seed), "--of", kind]
    elsewhere = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}
    ).stdout
    assert here
    assert elsewhere.rpartition("\nno fault in")[0] == here


def check(kind: str, seeds: range, parent: Path) -> None:
    for seed in seeds:
        directory = parent / str(seed)
        directory.mkdir()
        assert (seed, OTHERS[kind](directory, seed).faults) == (seed, ())
