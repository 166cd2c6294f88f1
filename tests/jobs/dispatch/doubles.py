"""An engine and contents in memory."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from itertools import count
from typing import TYPE_CHECKING, cast

import attrs
from twisted.internet.defer import Deferred

from image_service.core.errors import NotFound
from image_service.jobs.engine.engine import PlanState, Task, queue_name
from image_service.server.web_api.messages import ApiResponse

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from image_service.jobs.artifacts.contents import Content
    from image_service.jobs.model import Compose, Job, JobError
    from image_service.server.web_api.messages import ApiRequest


@attrs.define(eq=False)
class EngineAttempt:
    """An attempt of a job, and the calls of the engine about it."""

    task: Task
    queue: str
    is_present: bool = True
    error: JobError | None = None


class MemoryEngine:
    """Queues of attempts, oldest first."""

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self._numbers = count()
        self._queues: dict[str, list[EngineAttempt]] = defaultdict(list)
        self._pollers: dict[str, list[Deferred[EngineAttempt | None]]] = defaultdict(list)
        self.attempts: dict[bytes, EngineAttempt] = {}
        self.error: Exception | None = None
        self.polls: Counter[str] = Counter()
        """By queue."""

    def queue(self, job: Job, attempt: int = 1) -> EngineAttempt:
        """Queue an attempt of a job."""
        token = f"{next(self._numbers)}".encode()
        name = queue_name(job.tenant, job.type, job.architecture)
        queued = EngineAttempt(Task(job.id, job.compose_id, token, attempt), name)
        for poller in self._pollers[name]:
            if not poller.called:
                poller.callback(queued)
                return queued
        self._queues[name].append(queued)
        return queued

    def expire(self, attempt: EngineAttempt, job: Job) -> EngineAttempt:
        """End an attempt whose worker is silent, and hand out the next one."""
        attempt.is_present = False
        return self.queue(job, attempt.task.attempt + 1)

    def find(self, job_id: str) -> EngineAttempt:
        """Return the latest attempt of a job that was handed out."""
        return [attempt for attempt in self.attempts.values() if attempt.task.job_id == job_id][-1]

    async def start_plan(self, compose: Compose) -> bool:
        raise NotImplementedError

    async def cancel_plan(self, compose_id: str) -> None:
        for attempt in self.attempts.values():
            if attempt.task.compose_id == compose_id:
                attempt.is_present = False

    async def find_plan(self, compose_id: str) -> PlanState:
        raise NotImplementedError

    async def poll(self, queue: str, worker: str, seconds: float) -> Task | None:
        del worker
        if self.error is not None:
            raise self.error
        self.polls[queue] += 1
        found = self._queues[queue].pop(0) if self._queues[queue] else await self._wait(queue, seconds)
        if found is None:
            return None
        self.attempts[found.task.token] = found
        return found.task

    async def _wait(self, queue: str, seconds: float) -> EngineAttempt | None:
        poller: Deferred[EngineAttempt | None] = Deferred()
        poller.addTimeout(seconds, self._clock, onTimeoutCancel=lambda _, __: None)
        self._pollers[queue].append(poller)
        try:
            return await poller
        finally:
            self._pollers[queue].remove(poller)

    async def heartbeat(self, token: bytes) -> bool:
        if self.error is not None:
            raise self.error
        return token in self.attempts and self.attempts[token].is_present

    async def complete(self, token: bytes, error: JobError | None = None) -> bool:
        if self.error is not None:
            raise self.error
        attempt = self.attempts.get(token)
        if attempt is None or not attempt.is_present:
            return False
        attempt.is_present, attempt.error = False, error
        return True


class SilentObserver:
    """Records nothing."""

    def record_job_start(self, job: Job) -> None:
        pass

    def record_job_end(self, job: Job, error: JobError | None) -> None:
        pass


@attrs.frozen
class MemoryContent:
    """Bytes in the place of a `Content`."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


class MemoryContents:
    """Inputs by source; an error is raised."""

    def __init__(self) -> None:
        self.inputs: dict[str, bytes | Exception] = {"base": b"a base disk"}

    async def open_input(self, compose: Compose, source: str) -> Content:
        del compose
        found = self.inputs.get(source, NotFound("no such input"))
        if isinstance(found, Exception):
            raise found
        return cast("Content", MemoryContent(found))

    async def respond(self, content: Content, request: ApiRequest) -> ApiResponse:
        del request
        return ApiResponse(200, cast("MemoryContent", content).data, "application/octet-stream")
