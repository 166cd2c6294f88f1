"""Drives a `TemporalEngine` from a plain test, and records the actions of plans in this service."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

from twisted.internet.defer import Deferred

from image_service.core.errors import EngineUnavailable
from image_service.jobs.engine.connection import EngineConnection
from image_service.jobs.engine.engine import queue_name
from image_service.jobs.engine.temporal_engine import JobLimits, TemporalEngine
from image_service.jobs.model import (
    Compose,
    ComposePlan,
    ComposeState,
    ImageType,
    JobError,
    JobType,
    Step,
)
from image_service.settings.jobs.engine import EngineSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from image_service.jobs.engine.engine import Task

T = TypeVar("T")

TENANT = "org-7"
ARCHITECTURE = "x86_64"
CUSTOMIZE = queue_name(TENANT, JobType.CUSTOMIZE, ARCHITECTURE)
CONVERT = queue_name(TENANT, JobType.CONVERT, ARCHITECTURE)
UPLOAD = queue_name(TENANT, JobType.UPLOAD, ARCHITECTURE)
IMPORT = queue_name(TENANT, JobType.IMPORT, ARCHITECTURE)


class RecordingActions:
    """Records each call as ``(name, step)``; errors and results are prepared by tests."""

    def __init__(self) -> None:
        self.calls: dict[str, list[tuple[object, ...]]] = defaultdict(list)
        self.errors: list[Exception] = []
        """Each is raised once, by the next call."""
        self.step_error: JobError | None = None
        self.hangs = False
        """Steps of this service do not end."""
        self.jobs: dict[str, JobError | None] = {}
        self.ends: dict[str, tuple[JobError | None, bool]] = {}
        self.ended: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def _record(self, compose_id: str, *call: object) -> None:
        self.calls[compose_id].append(call)
        if self.errors:
            raise self.errors.pop(0)

    async def begin(self, compose_id: str) -> None:
        self._record(compose_id, "begin")

    async def queue_job(self, compose_id: str, step: str, attempt: int) -> None:
        self._record(compose_id, "queue_job", step, attempt)

    async def finish_job(self, compose_id: str, step: str, error: JobError | None) -> None:
        self._record(compose_id, "finish_job", step)
        self.jobs[step] = error

    async def act(self, compose_id: str, step: str) -> JobError | None:
        self._record(compose_id, "act", step)
        if self.hangs:
            await Deferred()
        return self.step_error

    async def finish(self, compose_id: str, error: JobError | None, *, cancelled: bool) -> None:
        self._record(compose_id, "finish")
        self.ends[compose_id] = (error, cancelled)
        self.ended[compose_id].set()


def make_compose(*steps: Step) -> Compose:
    """Return a compose with a plan."""
    return Compose(
        id=str(uuid.uuid4()),
        tenant=TENANT,
        distribution="rhcos-4.19",
        architecture=ARCHITECTURE,
        image_type=ImageType.VSPHERE_OVA,
        request={},
        plan=ComposePlan(steps, None, "disk.ova"),
        state=ComposeState.PENDING,
        created_at=datetime.now(UTC),
    )


class Driver:
    """An engine's client with recording actions; each call runs the loop until it returns."""

    def __init__(
        self,
        address: str,
        settings: EngineSettings | None = None,
        *,
        heartbeat_seconds: float = 60.0,
        job_seconds: float = 600.0,
    ) -> None:
        """Make a driver; by default, its jobs survive an outage of the engine."""
        self.loop = asyncio.new_event_loop()
        self.actions = RecordingActions()
        self.connection = EngineConnection(address, settings or EngineSettings(), self.loop)
        self.engine = TemporalEngine(self.connection, JobLimits(heartbeat_seconds, job_seconds))

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Take part in carrying out plans until the block ends."""
        self.connection.start(self.actions)
        try:
            self.wait_until(lambda: self.connection.is_available)
            yield self
        finally:
            self.call(self.connection.stop())
            self.loop.close()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a Twisted coroutine."""

        async def run() -> T:
            return await Deferred.fromCoroutine(coroutine).asFuture(self.loop)

        return self.loop.run_until_complete(run())

    def wait(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.wait(0.02)

    def begin(self, *steps: Step) -> Compose:
        """Start a plan."""
        compose = make_compose(*steps)
        assert self.call(self.engine.start_plan(compose))
        return compose

    def take(self, queue: str) -> Task:
        """Return the next task of a queue, however long that takes; ask again as workers do."""
        while True:
            with suppress(EngineUnavailable):  # on a slow machine, the end of an empty poll comes too late
                if task := self.call(self.engine.poll(queue, "worker", 2.0)):
                    return task

    def finish(self, queue: str, error: JobError | None = None) -> None:
        """Do the next task of a queue."""
        assert self.call(self.engine.complete(self.take(queue).token, error))

    def end(self, compose: Compose) -> tuple[JobError | None, bool]:
        """Return how a plan ends: its error, and True if it was cancelled."""
        self.loop.run_until_complete(self.actions.ended[compose.id].wait())
        return self.actions.ends[compose.id]
