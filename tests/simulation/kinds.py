"""The kinds of histories, and what each of them needs to be carried out."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import attrs

from tests.simulation import blocks, downloads, histories, jobs
from tests.simulation.scenery import scenery
from tests.simulation.steps import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from tests.simulation.events import Outcome
    from tests.simulation.steps import Step

    Run = Callable[[int, Sequence[Step]], Outcome]


@attrs.frozen
class Kind:
    """A kind of histories.

    Args:
        number: as many as `.ci/run` carries out, and as find each mutation.
        make_steps: returns the steps of a seed.
        opened: makes what several histories share, and a function that carries out steps of a seed.
    """

    number: int
    make_steps: Callable[[int], list[Step]]
    opened: Callable[[], AbstractContextManager[Run]]

    def describe(self, run: Run, seed: int) -> str:
        """Return the fault of a history, and its steps, shortened."""
        return describe(partial(run, seed), self.make_steps(seed))


@contextmanager
def _with_scenery() -> Iterator[Run]:
    with TemporaryDirectory() as directory, scenery(Path(directory)) as shared:
        yield partial(histories.run_history, shared)


@contextmanager
def _in_empty_directories(run: Callable[[Path, int, Sequence[Step]], Outcome]) -> Iterator[Run]:
    def run_in_one(seed: int, steps: Sequence[Step]) -> Outcome:
        with TemporaryDirectory() as directory:
            return run(Path(directory), seed, steps)

    yield run_in_one


REPLICAS = "replicas"
KINDS = {
    REPLICAS: Kind(1000, histories.make_steps, _with_scenery),
    "downloads": Kind(200, downloads.make_steps, partial(_in_empty_directories, downloads.run_downloads)),
    "blocks": Kind(12, blocks.make_steps, partial(_in_empty_directories, blocks.run_blocks)),
    "jobs": Kind(24, jobs.make_steps, partial(_in_empty_directories, jobs.run_jobs)),
}
