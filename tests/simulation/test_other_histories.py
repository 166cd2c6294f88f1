"""Histories of files on machines that lose power, and of jobs: see `downloads`, `blocks` and `jobs`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.kinds import KINDS, REPLICAS
from tests.simulation.mutations import MUTATIONS
from tests.variants import soaked

OTHERS = [name for name in KINDS if name != REPLICAS]


@pytest.mark.parametrize("kind", OTHERS)
def test_history_has_no_fault(kind: str) -> None:
    """`.ci/run` carries out more of them."""
    check(kind, range(2))


def test_history_that_had_a_fault_has_none() -> None:
    check("jobs", range(41, 42))


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "number"), [("downloads", 5000), ("blocks", 500), ("jobs", 300)])
def test_many_histories_have_no_fault(kind: str, number: int) -> None:
    check(kind, range(1000, 1000 + number))


@pytest.mark.parametrize("seed", [1, soaked(4)])
@pytest.mark.parametrize("kind", OTHERS)
def test_same_seed_has_the_same_trace(kind: str, seed: int) -> None:
    with KINDS[kind].opened() as run:
        here = run(seed, KINDS[kind].make_steps(seed)).trace
    command = [sys.executable, "-m", "tests.simulation", str(seed), "--of", kind]
    elsewhere = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}
    ).stdout
    assert here
    assert elsewhere.rpartition("\nno fault in")[0] == here


@pytest.mark.parametrize(
    "name",
    [
        "the state of a download is stored before its bytes",
        "blocks are trusted after a power failure",
        soaked("a compose that has ended goes on"),
    ],
)
def test_history_with_a_fault_is_shortened(name: str) -> None:
    command = [sys.executable, "-m", "tests.simulation.mutations", name, "--shorten"]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    (mutation,) = (mutation for mutation in MUTATIONS if mutation.name == name)
    first, _, rest = found.stdout.partition("\nthe history, shortened:\n")
    steps = rest.partition("\nwhat happened:\n")[0].splitlines()
    assert found.returncode == 1, found.stderr
    assert f"ARGS='--of {mutation.world}'" in first
    assert 0 < len(steps) < len(KINDS[mutation.world].make_steps(0)), found.stdout


def check(kind: str, seeds: range) -> None:
    with KINDS[kind].opened() as run:
        for seed in seeds:
            assert (seed, run(seed, KINDS[kind].make_steps(seed)).faults) == (seed, ())
