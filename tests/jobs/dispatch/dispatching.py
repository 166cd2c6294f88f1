"""Dispatching over an SQLite file, with everything else in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

import attrs
from twisted.internet.threads import deferToThread

from image_service.common.objects.directory import DirectoryStore
from image_service.jobs.database.composes import ComposeRepository
from image_service.jobs.database.job_queues import JobQueues
from image_service.jobs.database.jobs import JobRepository
from image_service.jobs.database.objects import ObjectRepository
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.dispatch.actions import JobPlanActions
from image_service.jobs.dispatch.attempts import ArtifactUploads, WorkerAttempts
from image_service.jobs.dispatch.dispatcher import JobDispatcher
from image_service.jobs.dispatch.handout import JobHandout
from image_service.jobs.dispatch.rows import DispatchRows
from image_service.jobs.dispatch.tokens import JobTokens
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.model import Artifact, Compose, ComposePlan, Job, JobType, Step
from image_service.settings.jobs.jobs import JobsSettings
from tests.jobs.database.composing import BUDGET, CIPHER, CUSTOMIZATION, SECRET, make_compose
from tests.jobs.dispatch.doubles import MemoryContents, MemoryEngine, SilentObserver

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.common.database.database import Database
    from image_service.jobs.artifacts.actions import ServerAction
    from image_service.jobs.artifacts.contents import Contents

    OpenDispatching = Callable[..., "Dispatching"]

ARCHITECTURE = "x86_64"
CUSTOMIZE_PLAN = ComposePlan(
    (Step("customize", JobType.CUSTOMIZE, {"output": "disk.raw"}, {"base": "base"}),),
    "customize/disk.raw",
    "disk.raw",
)


@attrs.define(eq=False)
class Dispatching:
    """The parts of dispatching."""

    database: Database
    engine: MemoryEngine
    rows: DispatchRows
    dispatcher: JobDispatcher
    attempts: WorkerAttempts
    actions: JobPlanActions
    storage: DirectoryStore
    contents: MemoryContents
    server_actions: dict[str, ServerAction]

    @classmethod
    def over(cls, database: Database, reactor: EPollReactor, directory: Path, **settings: Any) -> Dispatching:
        engine, contents = MemoryEngine(reactor), MemoryContents()
        storage = DirectoryStore(directory / "store")
        rows = DispatchRows(
            ComposeRepository(database, CIPHER, BUDGET),
            JobRepository(database, CIPHER),
            JobQueues(database),
            ObjectRepository(database, CIPHER, BUDGET),
            WorkerRepository(database),
            deferToThread,
        )
        tokens = JobTokens([SECRET])
        readable = cast("Contents", contents)
        handout = JobHandout(rows, engine, readable, tokens, SilentObserver())
        values = {"poll_seconds": 0.3, "heartbeat_seconds": 60.0, **settings}
        dispatcher = JobDispatcher(reactor, rows, engine, handout, attrs.evolve(JobsSettings(), **values))
        uploads = ArtifactUploads(storage, deferToThread, UploadSlots(2, 0, reactor), directory / "scratch")
        attempts = WorkerAttempts(rows, engine, readable, tokens, uploads)
        server_actions: dict[str, ServerAction] = {}
        actions = JobPlanActions(rows, server_actions, dispatcher.wake, SilentObserver())
        return cls(database, engine, rows, dispatcher, attempts, actions, storage, contents, server_actions)

    def stored(self, artifact: Artifact) -> bytes:
        """Return the content of an artifact."""
        return self.storage.read_at(artifact.key, 0, artifact.size)

    def artifacts(self, job: Job) -> tuple[Artifact, ...]:
        """Return the artifacts of a job's latest report."""
        found = self.rows.jobs.find(job.id)
        assert found is not None
        return found.artifacts

    def add(self, tenant: str = "", plan: ComposePlan = CUSTOMIZE_PLAN, **values: Any) -> Compose:
        """Add a compose whose plan has not begun."""
        values = {"id": str(uuid4()), "store_bytes": 2**30, **values}
        compose = make_compose(tenant=tenant, plan=plan, **values)
        self.rows.composes.add(compose, CUSTOMIZATION, 1000)
        return compose

    def job(self, compose: Compose, step: str = "customize") -> Job:
        """Return the job of a step."""
        jobs = self.rows.jobs.find_of_compose(compose.id)
        return next(job for job in jobs if job.step == step)

    async def queue(self, tenant: str = "", plan: ComposePlan = CUSTOMIZE_PLAN) -> Job:
        """Add a compose, and queue its first job as a running plan does."""
        compose = self.add(tenant, plan)
        await self.actions.begin(compose.id)
        return await self.queue_step(compose, plan.steps[0].name)

    async def queue_step(self, compose: Compose, step: str) -> Job:
        """Queue a job of a compose, as a running plan does."""
        await self.actions.queue_job(compose.id, step, 1)
        job = self.job(compose, step)
        self.engine.queue(job)
        return job
