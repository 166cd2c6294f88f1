"""Histories of replicas that fail: what their clients get is what `oracle` says."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from tests.simulation.histories import make_steps, run_history
from tests.simulation.scenery import scenery
from tests.simulation.steps import describe
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.conftest import LoggedFailures
    from tests.simulation.scenery import Scenery
    from tests.simulation.steps import Step


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenery]:
    with scenery(tmp_path_factory.mktemp("simulation")) as made:
        yield made


@pytest.fixture(autouse=True)
def _coroutines_of_ended_processes(logged_failures: LoggedFailures) -> Iterator[None]:
    """Forget what is logged when the coroutines of killed processes are collected, after their history."""
    yield
    logged_failures.flush()


def test_history_has_no_fault(shared: Scenery) -> None:
    """`.ci/run` carries out a thousand."""
    for seed in range(15):
        check(shared, seed, make_steps(seed))


@pytest.mark.parametrize("seed", [305, 855, 2765])
def test_history_that_had_a_fault_has_none(shared: Scenery, seed: int) -> None:
    check(shared, seed, make_steps(seed, ["begin_unsaved"]))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 12000, 1000))
def test_many_histories_have_no_fault(shared: Scenery, first: int) -> None:
    for seed in range(first, first + 1000):
        check(shared, seed, make_steps(seed))


@pytest.mark.parametrize("seed", [3, soaked(17)])
def test_same_seed_has_the_same_trace(shared: Scenery, seed: int) -> None:
    run_history(shared, seed + 1, make_steps(seed + 1))
    here = run_history(shared, seed, make_steps(seed)).trace
    command = [sys.executable, "-m", "tests.simulation", str(seed)]
    elsewhere = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "PYTHONHASHSEED": str(seed)}
    ).stdout
    assert digest(elsewhere.partition("\nno fault in")[0]) == digest(here)


def check(shared: Scenery, seed: int, steps: Sequence[Step]) -> None:
    run = partial(run_history, shared, seed)
    if run(steps).faults:
        pytest.fail(f"seed {seed}: {describe(run, steps)}", pytrace=False)


def digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
