"""A process like the jobs role: Twisted on asyncio, with the engine as its child, which it kills in mid-job.

    python -m tests.jobs.engine.role DIRECTORY

It prints its observations as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from image_service.core.errors import EngineUnavailable
from image_service.jobs.engine.connection import EngineConnection
from image_service.jobs.engine.engine_child import EngineChild, find_program
from image_service.jobs.engine.temporal_engine import JobLimits, TemporalEngine
from image_service.jobs.model import JobType, Step
from image_service.settings.jobs.engine import EngineSettings
from tests.jobs.engine.driver import CUSTOMIZE, RecordingActions, make_compose

if TYPE_CHECKING:
    from image_service.jobs.engine.engine import Task


async def main(reactor: AsyncioSelectorReactor, loop: asyncio.AbstractEventLoop, directory: Path) -> None:
    """Run a plan of one job, whose engine is killed once it runs."""
    child = EngineChild(reactor, directory, find_program())
    connection = EngineConnection(child.address, EngineSettings(), loop)
    engine = TemporalEngine(connection, JobLimits(heartbeat_seconds=30))
    actions = RecordingActions()
    await child.start()
    connection.start(actions)
    while not connection.is_available:
        await deferLater(reactor, 0.05)
    compose = make_compose(
        Step("fetch", "fetch-base"), Step("customize", JobType.CUSTOMIZE, after=("fetch",))
    )
    await engine.start_plan(compose)
    task: Task | None = None
    while task is None:
        task = await engine.poll(CUSTOMIZE, "worker", 2.0)
    os.kill(child.process.pid or 0, signal.SIGKILL)
    failures = await beat_until_it_answers(reactor, engine, task)
    is_accepted = await engine.complete(task.token)
    while compose.id not in actions.ends:
        await deferLater(reactor, 0.05)
    await connection.stop()
    await child.stop()
    seen = {
        "failures": failures > 0,
        "restarts": child.process.restarts,
        "accepted": is_accepted,
        "calls": actions.calls[compose.id],
    }
    print(json.dumps(seen))  # noqa: T201 - for the test


async def beat_until_it_answers(reactor: AsyncioSelectorReactor, engine: TemporalEngine, task: Task) -> int:
    """Return how many heartbeats have failed."""
    failures = 0
    while True:
        try:
            assert await engine.heartbeat(task.token)
        except EngineUnavailable:
            failures += 1
            await deferLater(reactor, 0.1)
        else:
            return failures


def run() -> None:
    """Install the reactor, and run until `main` has ended."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # else everything hangs
    reactor = AsyncioSelectorReactor(loop)
    from twisted.internet.main import installReactor  # noqa: PLC0415 - before the first import of the reactor

    installReactor(reactor)
    reactor.callWhenRunning(
        lambda: (
            Deferred.fromCoroutine(main(reactor, loop, Path(sys.argv[1])))
            .addErrback(lambda failure: failure.printTraceback())
            .addBoth(lambda _: reactor.stop())
        )
    )
    reactor.run()


if __name__ == "__main__":
    run()
