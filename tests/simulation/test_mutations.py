"""The simulation finds faults that are put into the code: else it would show nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.mutations import MUTATIONS, ROOT, Mutation


def named(mutation: Mutation) -> str:
    return mutation.name


@pytest.mark.parametrize("mutation", MUTATIONS, ids=named)
def test_mutated_code_is_there(mutation: Mutation) -> None:
    path = ROOT.joinpath(*mutation.module_name.split(".")).with_suffix(".py")
    compile(mutation.apply(path.read_text()), path, "exec")


@pytest.mark.soak
@pytest.mark.parametrize("mutation", MUTATIONS, ids=named)
def test_mutation_is_found(mutation: Mutation) -> None:
    command = [sys.executable, "-m", "tests.simulation.mutations", mutation.name]
    found = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (found.returncode, found.stdout[:5]) == (1, "seed "), found.stdout + found.stderr
