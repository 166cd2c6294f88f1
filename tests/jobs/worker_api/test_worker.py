"""Our own worker, as a process, with the worker API."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from twisted.internet.task import deferLater

from image_service.jobs.model import ComposePlan, JobProgress, JobType, Step
from tests.jobs.worker.workers import HeldToolkit, running_worker
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from tests.jobs.worker_api.conftest import Serving

_TURNS, _TURN_SECONDS = 1200, 0.05
_PLAN = ComposePlan(
    (
        Step(
            "convert",
            JobType.CONVERT,
            {"input": "image", "input_format": "raw", "format": "raw", "output": "disk.raw", "size": None},
            {"image": "base"},
        ),
    ),
    "convert/disk.raw",
    "disk.raw",
)


async def wait_until(reactor: EPollReactor, is_reached: Callable[[], object]) -> None:
    for _ in range(_TURNS):
        if is_reached():
            return
        await deferLater(reactor, _TURN_SECONDS)
    pytest.fail("it did not come so far")


@ensure_deferred
async def test_job_of_a_tenant_is_done_by_its_worker(
    reactor: EPollReactor, serving: Serving, tmp_path: Path
) -> None:
    dispatching, toolkit = serving.dispatching, HeldToolkit.make(tmp_path / "toolkit")
    compose = dispatching.add("org-1", _PLAN)
    await dispatching.actions.begin(compose.id)
    job = await dispatching.queue_step(compose, "convert")
    with running_worker(serving.one.url, tmp_path, toolkit.program, token="one"):
        await wait_until(reactor, toolkit.calls)
        await wait_until(reactor, lambda: dispatching.job(compose, "convert").progress)
        toolkit.open()
        await wait_until(reactor, lambda: not dispatching.engine.find(job.id).is_present)
    assert dispatching.engine.find(job.id).error is None
    (artifact,) = dispatching.artifacts(job)
    assert dispatching.stored(artifact) == b"a base disk"
    progress = dispatching.job(compose, "convert").progress
    assert isinstance(progress, JobProgress)
    assert progress.phase


@ensure_deferred
async def test_cancelled_job_ends_at_the_worker(
    reactor: EPollReactor, serving: Serving, tmp_path: Path
) -> None:
    dispatching, toolkit = serving.dispatching, HeldToolkit.make(tmp_path / "toolkit")
    compose = dispatching.add("org-2", _PLAN)
    await dispatching.actions.begin(compose.id)
    job = await dispatching.queue_step(compose, "convert")
    options = ("--tenant=ANY", "--types=convert")
    with running_worker(serving.one.url, tmp_path, toolkit.program, *options, token="operator") as worker:
        await wait_until(reactor, toolkit.calls)
        await dispatching.actions.finish(compose.id, None, cancelled=True)
        await wait_until(reactor, lambda: "ended early" in worker.log.read_text())
        toolkit.wait_until_ended()
        await wait_until(reactor, lambda: not [*worker.scratch.glob("*/convert.*")])
    assert dispatching.engine.find(job.id).is_present
