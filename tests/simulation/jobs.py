"""Simulated jobs: replicas of the jobs role over one database, workers, an engine; and what befalls them.

The engine is replaced at its interface. Each compose ends once, by what it has come to; what it publishes is,
whole, what the accepted attempt of a worker has made.
"""

from __future__ import annotations

import hashlib
from contextlib import closing, suppress
from datetime import UTC, datetime, tzinfo
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from unittest.mock import patch
from uuid import UUID

import attrs
from twisted.internet.defer import CancelledError, Deferred, TimeoutError  # noqa: A004 - another than the built-in
from twisted.internet.task import LoopingCall, deferLater

from image_service.common.objects.directory import DirectoryStore
from image_service.core.errors import EngineUnavailable, ImageServiceError, NotFound, StoreFailed, Unavailable
from image_service.jobs.database.composes import ComposeRepository
from image_service.jobs.database.job_queues import JobQueues
from image_service.jobs.database.jobs import JobRepository
from image_service.jobs.database.objects import ObjectRepository
from image_service.jobs.database.tables import open_database
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.dispatch import dispatcher
from image_service.jobs.dispatch.actions import JobPlanActions
from image_service.jobs.dispatch.attempts import ArtifactUploads, WorkerAttempts
from image_service.jobs.dispatch.compose_plans import ComposePlans
from image_service.jobs.dispatch.dispatcher import JobDispatcher, WorkerPoll
from image_service.jobs.dispatch.handout import JobHandout
from image_service.jobs.dispatch.results import DeclaredArtifact, WorkerResult
from image_service.jobs.dispatch.rows import DispatchRows
from image_service.jobs.dispatch.tokens import JobTokens
from image_service.jobs.dispatch.upkeep import RECONCILE_SECONDS, Reconciler
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.engine.engine import PlanState, Task, queue_name
from image_service.jobs.model import (
    Compose,
    ComposePlan,
    ComposeState,
    JobError,
    JobErrorId,
    JobType,
    Step,
    job_id_of,
)
from image_service.jobs.principal import Principal
from image_service.settings.jobs.jobs import JobsSettings
from tests.jobs.database.composing import BUDGET, CIPHER, CUSTOMIZATION, SECRET, make_compose
from tests.jobs.dispatch.contents import received
from tests.jobs.dispatch.doubles import MemoryContents, SilentObserver
from tests.simulation.events import START, Events, Machine, Outcome, without_garbage_collection
from tests.simulation.replica import Connection, Link, Threads
from tests.simulation.steps import choose_steps

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Sequence

    from image_service.common.database.database import Database
    from image_service.jobs.artifacts.contents import Contents
    from image_service.jobs.dispatch.handout import HandedJob
    from tests.simulation.steps import Step as HistoryStep

T = TypeVar("T")

HEARTBEAT_SECONDS = 10.0
CALL_SECONDS = 20.0
"""After which a call of a replica that does not answer is repeated."""
ATTEMPTS = 3
HOUR = 3600.0
MOST_COMPOSES = 4
MOST_RUNNING = 1
"""So that a permit to start a job that a killed replica has left is missed."""
WEIGHTS = {"add": 2, "cancel": 1, "kill_replica": 1, "disconnect": 1, "lose": 1, "step_clock": 1}
"""How often each act, a method of `JobsWorld`, is chosen."""
FAULTS = ("kill_replica", "disconnect", "lose", "step_clock")
"""Acts that are left out of every second history."""
STEPS = 10
MEAN_SECONDS = 3.0
CALM_SECONDS = 240.0
"""In which each compose ends after the last fault."""
LOST = JobError(JobErrorId.WORKER_LOST, "no heartbeat")
PLAN = ComposePlan(
    (
        Step("customize", JobType.CUSTOMIZE, {"output": "disk.raw"}, {"base": "base"}),
        Step("convert", JobType.CONVERT, {"output": "disk.vmdk"}, {"base": "base"}, ("customize",)),
    ),
    "convert/disk.vmdk",
    "disk.vmdk",
)


@attrs.define(eq=False)
class Attempt:
    """An attempt in the engine; ``over`` fires with its error, or `LOST`."""

    task: Task
    beat_at: float = 0.0
    over: Deferred[JobError | None] = attrs.field(factory=Deferred)


@attrs.define(eq=False)
class SimulatedEngine:
    """The engine, which keeps what it knows unless it is made to lose a plan."""

    world: JobsWorld
    plans: dict[str, PlanState] = attrs.field(factory=dict)
    accepted: dict[str, int] = attrs.field(factory=dict)
    """The attempt of each job whose end was accepted."""
    _machines: dict[str, Machine] = attrs.field(factory=dict)
    _running: dict[str, Deferred[None]] = attrs.field(factory=dict)
    _queues: dict[str, list[Attempt]] = attrs.field(factory=dict)
    _present: dict[bytes, Attempt] = attrs.field(factory=dict)
    _numbers: Iterator[int] = attrs.field(factory=count)

    def start_plan(self, compose: Compose) -> bool:
        """As `Engine.start_plan`."""
        if compose.id in self.plans:
            return False
        self.plans[compose.id] = PlanState.RUNNING
        machine = self._machines[compose.id] = Machine(self.world.events, "engine")
        self._running[compose.id] = Deferred.fromCoroutine(self._run(compose, machine))
        self._running[compose.id].addErrback(self.world.fail_unexpected)
        return True

    def cancel_plan(self, compose_id: str) -> None:
        """As `Engine.cancel_plan`."""
        if self.plans.get(compose_id) is PlanState.RUNNING:
            self._running[compose_id].cancel()

    def lose(self, compose_id: str, state: PlanState) -> None:
        """Forget a plan, or end it without its last step."""
        if self.plans.get(compose_id) is PlanState.RUNNING:
            self._machines[compose_id].kill()
            self.plans[compose_id] = state

    async def poll(self, machine: Machine, queue: str, seconds: float) -> Task | None:
        """As `Engine.poll`."""
        end = machine.seconds() + seconds
        while not (waiting := self._queues.get(queue)):
            if machine.seconds() >= end:
                return None
            await deferLater(machine, 0.5)
        attempt = waiting.pop(0)
        attempt.beat_at = machine.seconds()
        self._present[attempt.task.token] = attempt
        self._watch(attempt)
        return attempt.task

    def heartbeat(self, token: bytes) -> bool:
        """As `Engine.heartbeat`."""
        if token in self._present:
            self._present[token].beat_at = self.world.events.now
        return token in self._present

    def complete(self, token: bytes, error: JobError | None = None) -> bool:
        """As `Engine.complete`."""
        attempt = self._present.pop(token, None)
        if attempt is None:
            return False
        self.world.events.record(f"attempt {attempt.task.attempt} of {attempt.task.job_id} ends: {error}")
        if error is None:
            self.accepted[attempt.task.job_id] = attempt.task.attempt
        attempt.over.callback(error)
        return True

    def _watch(self, attempt: Attempt) -> None:
        left = attempt.beat_at + HEARTBEAT_SECONDS - self.world.events.now
        if attempt.task.token not in self._present:
            return
        if left > 0:
            self.world.machine.callLater(left, self._watch, attempt)
        else:
            del self._present[attempt.task.token]
            attempt.over.callback(LOST)

    async def _run(self, compose: Compose, machine: Machine) -> None:
        error, is_cancelled = None, False
        try:
            await self._call(machine, "begin", compose.id)
            for step in compose.plan.steps:
                error = await self._run_job(machine, compose, step)
                if error is not None:
                    break
        except NotFound:  # it has ended
            self.plans[compose.id] = PlanState.ENDED
            return
        except CancelledError:
            is_cancelled = True
        with suppress(CancelledError):  # once more, or too late
            await self._call(machine, "finish", compose.id, error, cancelled=is_cancelled)
        self.plans[compose.id] = PlanState.ENDED

    async def _run_job(self, machine: Machine, compose: Compose, step: Step) -> JobError | None:
        job_id, error = job_id_of(compose.id, step.name), None
        queue = queue_name(compose.tenant, JobType(step.action), compose.architecture)
        for number in range(1, ATTEMPTS + 1):
            await self._call(machine, "queue_job", compose.id, step.name, number)
            attempt = Attempt(Task(job_id, compose.id, b"%d" % next(self._numbers), number))
            self._queues.setdefault(queue, []).append(attempt)
            try:
                error = await attempt.over
            finally:
                self._present.pop(attempt.task.token, None)
                if attempt in self._queues[queue]:
                    self._queues[queue].remove(attempt)
            if error is not LOST:
                break
        await self._call(machine, "finish_job", compose.id, step.name, error)
        return error

    async def _call(self, machine: Machine, action: str, *args: object, **values: object) -> None:
        """Have any replica carry out an action, until one has said so; some are carried out twice."""
        chance = self.world.chance
        while True:
            await deferLater(machine, chance.uniform(0.01, 0.5))
            replica = chance.choice(self.world.replicas)
            self.world.events.record(f"{action} {args}")
            call = partial(getattr(replica.actions, action), *args, **values)
            try:
                await self.world.ask(machine, replica, call)
            except (StoreFailed, Unavailable, TimeoutError):
                continue
            if chance.random() > 0.1:
                return


@attrs.frozen(eq=False)
class EngineClient:
    """The engine as one replica reaches it: calls and answers may be lost. As `Engine`."""

    engine: SimulatedEngine
    machine: Machine

    async def start_plan(self, compose: Compose) -> bool:
        """As `Engine.start_plan`."""
        return await self._send(partial(self.engine.start_plan, compose))

    async def cancel_plan(self, compose_id: str) -> None:
        """As `Engine.cancel_plan`."""
        await self._send(partial(self.engine.cancel_plan, compose_id))

    async def find_plan(self, compose_id: str) -> PlanState:
        """As `Engine.find_plan`."""
        return await self._send(lambda: self.engine.plans.get(compose_id, PlanState.UNKNOWN))

    async def poll(self, queue: str, _worker: str, seconds: float) -> Task | None:
        """As `Engine.poll`."""
        await self._send(lambda: None)
        return await self.engine.poll(self.machine, queue, seconds)

    async def heartbeat(self, token: bytes) -> bool:
        """As `Engine.heartbeat`."""
        return await self._send(partial(self.engine.heartbeat, token))

    async def complete(self, token: bytes, error: JobError | None = None) -> bool:
        """As `Engine.complete`."""
        return await self._send(partial(self.engine.complete, token, error))

    async def _send(self, call: Callable[[], T]) -> T:
        world = self.engine.world
        await deferLater(self.machine, world.chance.uniform(0.001, 0.1))
        if world.happens(0.1):
            raise EngineUnavailable("the engine does not answer")
        result = call()
        await deferLater(self.machine, world.chance.uniform(0.001, 0.1))
        if world.happens(0.1):
            raise EngineUnavailable("the engine's answer is lost")
        return result


@attrs.frozen(eq=False)
class JobReplica:
    """One process of the jobs role."""

    machine: Machine
    connection: Connection
    rows: DispatchRows
    dispatcher: JobDispatcher
    attempts: WorkerAttempts
    actions: JobPlanActions
    plans: ComposePlans

    @classmethod
    def start(cls, world: JobsWorld) -> Self:
        """Start it."""
        machine = Machine(world.events, "replica", clock_step=world.choose_clock_step())
        connection = Connection(cast("Any", None), machine, world.chance)
        in_thread = Threads(machine, connection, 4).run
        engine, now, contents = (
            EngineClient(world.engine, machine),
            world.now,
            cast("Contents", MemoryContents()),
        )
        rows = DispatchRows(
            ComposeRepository(world.database, CIPHER, BUDGET, now),
            JobRepository(world.database, CIPHER, now),
            JobQueues(world.database, now),
            ObjectRepository(world.database, CIPHER, BUDGET, now),
            WorkerRepository(world.database, now),
            in_thread,
        )
        tokens = JobTokens([SECRET])
        handout = JobHandout(rows, engine, contents, tokens, SilentObserver())
        settings = attrs.evolve(
            JobsSettings(), poll_seconds=3.0, heartbeat_seconds=HEARTBEAT_SECONDS, max_running=MOST_RUNNING
        )
        dispatching = JobDispatcher(cast("Any", machine), rows, engine, handout, settings)
        uploads = ArtifactUploads(
            world.storage, in_thread, UploadSlots(8, 0, cast("Any", machine)), Path("/scratch")
        )
        reconciling = LoopingCall(Reconciler(rows.composes, rows.jobs, engine, in_thread, now).reconcile)
        reconciling.clock = machine
        reconciling.start(RECONCILE_SECONDS).addErrback(world.fail_unexpected)
        return cls(
            machine,
            connection,
            rows,
            dispatching,
            WorkerAttempts(rows, engine, contents, tokens, uploads),
            JobPlanActions(rows, {}, dispatching.wake, SilentObserver()),
            ComposePlans(engine),
        )


class JobsWorld:
    """Replicas, workers and the engine of one history.

    Args:
        has_faults: else everything succeeds that nobody cancels.
    """

    def __init__(self, directory: Path, database: Database, seed: int, steps: Sequence[HistoryStep]) -> None:
        self.steps = steps
        self.chance = Random(f"jobs {seed}")
        self.events = Events(self.chance)
        self.machine = Machine(self.events, "world")
        self.database = database
        self.storage = DirectoryStore(directory / "objects")
        self.has_faults = self.is_disturbed = seed % 2 == 1
        self.faults: list[str] = []
        self.cancelled: set[str] = set()
        self.composes: list[Compose] = []
        self.ended: dict[str, Compose] = {}
        self.engine = SimulatedEngine(self)
        self.replicas = [JobReplica.start(self) for _ in range(2)]

    def now(self) -> datetime:
        """Return what the clock of the running replica shows."""
        return datetime.fromtimestamp(self.events.wall_clock(), UTC)

    def choose_clock_step(self) -> float:
        """Return by how many seconds the clock of a host is ahead."""
        return self.chance.uniform(-HOUR, HOUR) if self.has_faults else 0.0

    def happens(self, probability: float) -> bool:
        """Return True if a fault happens."""
        return self.is_disturbed and self.chance.random() < probability

    def fail_unexpected(self, failure: Any) -> None:
        """Record an error that nobody handles."""
        self.faults.append(failure.getTraceback())

    async def ask(self, machine: Machine, replica: JobReplica, call: Callable[[], Awaitable[Any]]) -> Any:
        """Call a replica, which may have been killed: then TimeoutError is raised after a while."""
        answer: Deferred[Any] = Deferred()

        def begin() -> None:
            done = Deferred.fromCoroutine(cast("Any", call()))
            done.addBoth(lambda result: None if answer.called else answer.callback(result))

        replica.machine.callLater(0, begin)
        return await answer.addTimeout(CALL_SECONDS, machine)

    # What happens.

    def run(self) -> None:
        """Let everything happen."""
        for _ in range(2):
            self._start_worker()
        for step in self.steps:
            self.run_for(step.after)
            if self.faults:
                return
            self.chance.seed(step.draws[0])
            self.events.record(f"-- {step.act}")
            getattr(self, step.act)()
        self.is_disturbed = False
        for replica in self.replicas:
            replica.connection.until = 0.0
        end = self.events.now + CALM_SECONDS
        while self.events.now < end and len(self.ended) < len(self.composes) and not self.faults:
            self.run_for(5)
        self.run_for(15)
        self._check_end()

    def run_for(self, seconds: float) -> None:
        """Let time pass; whatever happens, composes that have ended stay as they are."""
        end = self.events.now + seconds
        while not self.faults and self.events.run_next(end):
            pass
        self._check_ended()

    def add(self) -> None:
        """A compose is added; some replicas are killed before they start it, some users cancel it at once."""
        if len(self.composes) == MOST_COMPOSES:
            return
        id_ = str(UUID(int=self.chance.getrandbits(128)))
        replica = self.chance.choice(self.replicas)
        created_at = replica.machine.run(self.now)
        compose = make_compose(id=id_, tenant="", plan=PLAN, created_at=created_at, store_bytes=2**30)
        replica.machine.run(replica.rows.composes.add, compose, CUSTOMIZATION, 1000)
        self.composes.append(compose)
        if self.happens(0.3):
            self._restart(replica)
        else:
            replica.machine.run(replica.plans.start, compose)
        if self.chance.random() < 0.3:
            self.run_for(self.chance.uniform(0, 0.5))
            self._cancel_compose(compose)

    def cancel(self) -> None:
        """A user cancels a compose."""
        if self.composes and self.chance.random() < 0.5:
            self._cancel_compose(self.chance.choice(self.composes))

    def _cancel_compose(self, compose: Compose) -> None:
        replica = self.chance.choice(self.replicas)
        if replica.machine.run(replica.rows.composes.finish, compose.id, ComposeState.CANCELLED):
            self.cancelled.add(compose.id)
            cancelled = Deferred.fromCoroutine(replica.plans.cancel(compose))
            cancelled.addErrback(self.fail_unexpected)

    def kill_replica(self) -> None:
        """A replica is killed, and started again."""
        self._restart(self.chance.choice(self.replicas))

    def _restart(self, replica: JobReplica) -> None:
        replica.machine.kill()
        self.replicas[self.replicas.index(replica)] = JobReplica.start(self)

    def disconnect(self) -> None:
        """A replica does not reach the database as it should for a while."""
        link = self.chance.choice((Link.REFUSED, Link.LOSSY, Link.SLOW))
        self.chance.choice(self.replicas).connection.disturb(link, self.chance.uniform(1, 15))

    def step_clock(self) -> None:
        """The clock of a replica is set."""
        self.chance.choice(self.replicas).machine.clock_step = self.choose_clock_step()

    def lose(self) -> None:
        """The engine loses a plan."""
        if self.composes:
            state = self.chance.choice((PlanState.UNKNOWN, PlanState.ENDED))
            self.engine.lose(self.chance.choice(self.composes).id, state)

    # Workers.

    def _start_worker(self) -> None:
        machine = Machine(self.events, "worker")
        Deferred.fromCoroutine(self._work(machine)).addErrback(self.fail_unexpected)

    async def _work(self, machine: Machine) -> None:
        poll = WorkerPoll(None, (JobType.CUSTOMIZE, JobType.CONVERT), "x86_64", "worker")
        while True:
            await deferLater(machine, self.chance.uniform(0.01, 2))
            handed = await self._send(machine, lambda replica: replica.dispatcher.poll(poll))
            if handed is not None and self.happens(0.2):
                machine.kill()
                self._start_worker()
                return
            if handed is not None:
                await self._do(machine, handed)

    async def _do(self, machine: Machine, handed: HandedJob) -> None:
        job, token, principal = handed.job, handed.token, Principal()
        for _ in range(self.chance.randrange(4)):
            await deferLater(machine, self.chance.uniform(0.5, 12 if self.is_disturbed else 5))
            if await self._send(machine, lambda replica: replica.attempts.beat(principal, token)):
                return
        if self.happens(0.1):
            result = WorkerResult(error=JobError(JobErrorId.BUILD_FAILED, "broken"))
        else:
            name, content = str(handed.arguments["output"]), _made(job.id, job.attempt)
            declared = DeclaredArtifact(name, len(content), hashlib.sha256(content).hexdigest())
            result = WorkerResult((declared,))
            await self._send(
                machine,
                lambda replica: replica.attempts.add_artifact(
                    principal, token, name, received(content), len(content)
                ),
            )
        for _ in range(1 + self.happens(0.2)):
            await self._send(machine, lambda replica: replica.attempts.finish(principal, token, result))

    async def _send(self, machine: Machine, call: Callable[[JobReplica], Awaitable[Any]]) -> Any:
        """Send a request to any replica; None if it fails twice, as a worker that gives the job up."""
        for _ in range(2):
            replica = self.chance.choice(self.replicas)
            try:
                return await self.ask(machine, replica, partial(call, replica))
            except (ImageServiceError, TimeoutError):
                await deferLater(machine, 1)
        return None

    # What must hold.

    def _check_ended(self) -> None:
        for compose in self.composes:
            found = self.replicas[0].rows.composes.find(compose.id)
            if found is None:
                self.faults.append(f"compose {compose.id} is gone")
            elif compose.id in self.ended and found != self.ended[compose.id]:
                self.faults.append(f"compose {compose.id} has ended, and changes")
            elif found.state.is_final and compose.id not in self.ended:
                self.events.record(f"{compose.id} {found.state.value} {found.error}")
                self.ended[compose.id] = found

    def _check_end(self) -> None:
        rows = self.replicas[0].rows
        for compose in self.composes:
            found, jobs = rows.composes.find(compose.id), rows.jobs.find_of_compose(compose.id)
            assert found is not None
            if not found.state.is_final:
                self.faults.append(f"compose {compose.id} does not end: {found.state}")
            if (found.state is ComposeState.CANCELLED) is not (compose.id in self.cancelled):
                self.faults.append(f"compose {compose.id} is {found.state}")
            if found.state is ComposeState.FAILURE and not self.has_faults:
                self.faults.append(f"compose {compose.id} fails: {found.error}")
            if any(job.state.value in {"waiting", "queued", "running"} for job in jobs):
                self.faults.append(f"compose {compose.id} has ended, and a job of it has not")
            if found.image is not None:
                job_id = job_id_of(compose.id, "convert")
                made = _made(job_id, self.engine.accepted[job_id])
                if self.storage.read_at(found.image.key, 0, found.image.size) != made:
                    self.faults.append(f"compose {compose.id} has the image of another attempt")
            elif found.state is ComposeState.SUCCESS:
                self.faults.append(f"compose {compose.id} has succeeded without an image")


def _made(job_id: str, attempt: int) -> bytes:
    """Return what an attempt makes."""
    return f"{job_id} {attempt}".encode()


def make_steps(seed: int) -> list[HistoryStep]:
    """Return what happens in the history of a seed."""
    weights = {act: weight for act, weight in WEIGHTS.items() if seed % 2 or act not in FAULTS}
    return choose_steps(seed, weights, STEPS, MEAN_SECONDS)


def run_jobs(directory: Path, seed: int, steps: Sequence[HistoryStep]) -> Outcome:
    """Carry out steps of the history of a seed in an empty directory, up to its first fault."""
    with closing(open_database(None, directory)) as database:
        world = JobsWorld(directory, database, seed, steps)

        class SimulatedDatetime(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return cls.fromtimestamp(world.events.wall_clock(), tz)

        with without_garbage_collection(), patch.object(dispatcher, "datetime", SimulatedDatetime):
            world.run()
    return Outcome("\n".join(world.events.trace), tuple(world.faults), world.events.now - START)
