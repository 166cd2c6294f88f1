"""The interface of the job engine: plans in, tasks for workers out."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import attrs

if TYPE_CHECKING:
    from image_service.jobs.model import Compose, JobError, JobType

_PROTOCOL = 3
"""Of plans and their activities. Replicas of one protocol do not take tasks of another's."""
SERVER_QUEUE = f"server-{_PROTOCOL}"
"""The queue of this service's own steps."""


def queue_name(tenant: str, job_type: JobType, architecture: str) -> str:
    """Return the engine's queue of jobs."""
    return f"{_PROTOCOL}/{tenant}/{job_type}:{architecture}"


class PlanState(Enum):
    """The state of a compose's plan in the engine."""

    UNKNOWN = "unknown"
    RUNNING = "running"
    ENDED = "ended"


@attrs.frozen
class Task:
    """One attempt of a job, handed out by the engine.

    Args:
        compose_id: the workflow's id.
        token: of the engine; names this attempt.
        attempt: from 1.
    """

    job_id: str
    compose_id: str
    token: bytes = attrs.field(repr=False)
    attempt: int


class PlanActions(Protocol):
    """The actions of a running plan in this service. Each call may be repeated, also by another replica.

    All are Twisted coroutines. Raising `StoreFailed` or `Unavailable` makes the engine retry the call;
    `NotFound` (there is no such compose, or it has ended) ends the plan. Any other error fails the step.
    """

    async def begin(self, compose_id: str) -> None:
        """Record that the plan runs."""

    async def queue_job(self, compose_id: str, step: str, attempt: int) -> None:
        """Record that an attempt of a job, from 1, is queued before the engine queues it; wake polls."""

    async def finish_job(self, compose_id: str, step: str, error: JobError | None) -> None:
        """Record how a job ended; None: it succeeded, and the latest report of a worker is its result."""

    async def act(self, compose_id: str, step: str) -> JobError | None:
        """Carry out a step of this service; None: it succeeded."""

    async def finish(self, compose_id: str, error: JobError | None, *, cancelled: bool) -> None:
        """Record how the compose ended.

        After a failure or a cancellation, some steps may never begin or finish.
        """


class Engine(Protocol):
    """The engine. Each method is a Twisted coroutine.

    Raises:
        EngineUnavailable: of each method: it does not answer; nothing is known about the call's effect.
    """

    async def start_plan(self, compose: Compose) -> bool:
        """Start a compose's plan; False: the engine has, or had, one of this compose."""

    async def cancel_plan(self, compose_id: str) -> None:
        """Cancel a plan, which still calls its `finish` action; do nothing if the plan does not run."""

    async def find_plan(self, compose_id: str) -> PlanState:
        """Return the state of a plan in the engine."""

    async def poll(self, queue: str, worker: str, seconds: float) -> Task | None:
        """Return the next attempt of a queue; None: none came in time, which is 1.5 s at least.

        A task that comes after the caller has cancelled this is lost until its heartbeat limit.
        """

    async def heartbeat(self, token: bytes) -> bool:
        """Report a heartbeat of an attempt; False: it is not the present one."""

    async def complete(self, token: bytes, error: JobError | None = None) -> bool:
        """End an attempt; False: it is not the present one, and nothing has changed.

        An error of a transfer makes the engine queue the job again after 2 s to 15 s, up to nine attempts, of
        which only the last one's error ends the step. Other errors end the step at once.
        """
