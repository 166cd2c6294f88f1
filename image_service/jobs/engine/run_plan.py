"""`RunPlan`, the one workflow: it carries out the steps of any plan, and knows nothing about images.

Temporal replays it: the code is deterministic, and a change of it must not alter the order of the commands of
plans that run already. The payloads are dataclasses, which the SDK converts from and to JSON.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias

import attrs
from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TimeoutFailure

from image_service.jobs.model import JobError, JobErrorId, JobType

JOB_FAILED = "JobFailed"
"""Type of the failure by which a worker ends an attempt; its detail is a `JobError`, as JSON."""
PLAN_GONE = "PlanGone"
"""Type of the failure of a server's step whose compose is not there, or has ended."""

_ACTION_HEARTBEAT = timedelta(seconds=20)
_RECORD_TIMEOUT = timedelta(seconds=60)  # of one try
_MAX_RETRY_DELAY = timedelta(seconds=15)
# Written out: the enumeration's own name differs, and the server compares these.
_DEADLINE_FAILURE = "TemporalTimeout:StartToClose"

_Json: TypeAlias = "dict[str, Any]"


@dataclass(frozen=True)
class PlannedStep:
    """A step.

    Args:
        name: unique in its plan.
        action: a `JobType`, or the name of an action of this service.
        after: names of the steps that must have succeeded before.
        queue: of a job; None: this service does it.
        job_id: None: it is not a job.
    """

    name: str
    action: str
    after: list[str]
    queue: str | None = None
    job_id: str | None = None


@dataclass(frozen=True)
class PlannedCompose:
    """The argument of `RunPlan`.

    Args:
        compose_id: the id of the workflow.
        heartbeat_seconds: after which a silent worker has lost its attempt.
        job_seconds: that an attempt of a job, or of an action, may take.
    """

    compose_id: str
    steps: list[PlannedStep]
    heartbeat_seconds: float
    job_seconds: float


class StepFailed(Exception):
    """A step has failed, which ends the plan."""

    def __init__(self, error: JobError) -> None:
        super().__init__(error.reason)
        self.error = error


@workflow.defn
class RunPlan:
    """Carries out a plan: each step after the steps in its `after` have succeeded.

    The first failure ends the plan, and cancels the steps that still run.
    """

    def __init__(self) -> None:
        self._done: set[str] = set()

    @workflow.run
    async def run(self, plan: PlannedCompose) -> None:
        """Carry it out, and record its end."""
        self._plan = plan
        try:
            error, is_cancelled = await self._run_steps(), False
        except BaseException as failure:
            if not is_cancelled_exception(failure):
                raise
            error, is_cancelled = None, True
        await self._record("finish", _as_json(error), is_cancelled)

    async def _run_steps(self) -> JobError | None:
        await self._record("begin")
        tasks = [asyncio.create_task(self._run_step(step)) for step in self._plan.steps]
        try:
            await workflow.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in tasks:
                # asyncio would log a failure that is not retrieved.
                task.add_done_callback(lambda task: task.cancelled() or task.exception())
                task.cancel()
        failures = [failure for task in tasks if task.done() and (failure := task.exception())]
        for failure in failures:
            if not isinstance(failure, StepFailed):
                raise failure
            return failure.error
        return None

    async def _run_step(self, step: PlannedStep) -> None:
        await workflow.wait_condition(lambda: self._done.issuperset(step.after))
        try:
            error = await (self._act(step) if step.queue is None else self._run_job(step, step.queue))
        except ActivityError as failure:
            if is_cancelled_exception(failure) or _type_of(failure) == PLAN_GONE:
                raise
            error = self._error_of(step, failure)
        if error:
            raise StepFailed(error)
        self._done.add(step.name)

    async def _act(self, step: PlannedStep) -> JobError | None:
        """Have this service carry out a step; repeat that while its database or store does not answer."""
        error = await workflow.execute_activity(
            "act",
            args=[self._plan.compose_id, step.name],
            heartbeat_timeout=_ACTION_HEARTBEAT,
            start_to_close_timeout=timedelta(seconds=self._plan.job_seconds),
            retry_policy=RetryPolicy(
                maximum_interval=_MAX_RETRY_DELAY, non_retryable_error_types=[_DEADLINE_FAILURE]
            ),
        )
        return JobError(**error) if error else None

    async def _run_job(self, step: PlannedStep, queue: str) -> JobError | None:
        """Have workers carry out a step.

        Each attempt is an activity of its own, so that this service learns when the next one is queued.
        """
        attempt, error = 1, None
        await self._record("queue_job", step.name, attempt)
        while failure := await self._attempt(step, queue, attempt):
            error = self._error_of(step, failure)
            delay = retry_delay(step.action, attempt) if _is_repeated(step.action, failure, error) else None
            if delay is None:
                break
            attempt += 1
            await self._record("queue_job", step.name, attempt)
            await workflow.sleep(delay)
        else:
            error = None
        await self._record("finish_job", step.name, _as_json(error))
        return error

    async def _attempt(self, step: PlannedStep, queue: str, attempt: int) -> ActivityError | None:
        """Have a worker carry out a step; return the failure."""
        try:
            await workflow.execute_activity(
                step.action,
                task_queue=queue,
                activity_id=f"{step.job_id}/{attempt}",  # as `TemporalEngine.poll` reads it
                heartbeat_timeout=timedelta(seconds=self._plan.heartbeat_seconds),
                start_to_close_timeout=timedelta(seconds=self._plan.job_seconds),
                retry_policy=RetryPolicy(maximum_attempts=1),
            )
        except ActivityError as failure:
            if is_cancelled_exception(failure):
                raise
            return failure
        return None

    async def _record(self, action: str, *arguments: object) -> None:
        """Have this process change rows; repeat that while the database does not answer.

        This is a local activity, because one on the queue costs the engine more CPU time (decision 32).
        """
        await workflow.execute_local_activity(
            action,
            args=[self._plan.compose_id, *arguments],
            start_to_close_timeout=_RECORD_TIMEOUT,
            retry_policy=RetryPolicy(maximum_interval=_MAX_RETRY_DELAY),
        )

    def _error_of(self, step: PlannedStep, failure: ActivityError) -> JobError:
        """Return the error of a step, by the failure of its activity."""
        cause = failure.cause
        if isinstance(cause, ApplicationError) and cause.type == JOB_FAILED:
            return JobError(**cause.details[0])
        if isinstance(cause, ApplicationError):
            return JobError(JobErrorId.BUILD_FAILED, f"step {step.name}: {cause.message}")
        if isinstance(cause, TimeoutFailure) and cause.type is TimeoutType.HEARTBEAT:
            seconds = self._plan.heartbeat_seconds
            reason = f"its worker has stopped: no heartbeat for {seconds:g} s, also when it was tried again"
            return JobError(JobErrorId.WORKER_LOST, f"step {step.name}: {reason}")
        reason = f"exceeded its deadline of {self._plan.job_seconds:g} s"
        return JobError(JobErrorId.WORKER_LOST, f"step {step.name}: {reason}")


def retry_delay(action: str, attempt: int) -> timedelta | None:
    """Return the time between an attempt of a job, from 1, and the next one; None: it was the last one.

    Transfers are tried nine times: after 2 s, 3 s and so on up to 15 s, for 71 s.
    """
    if action in {JobType.UPLOAD, JobType.IMPORT}:
        attempts, seconds = 9, min(2 * 1.5 ** (attempt - 1), 15)
    else:
        attempts, seconds = 3, 2 ** (attempt - 1)
    return timedelta(seconds=seconds) if attempt < attempts else None


def _is_repeated(action: str, failure: ActivityError, error: JobError) -> bool:
    """Return True if a job is repeated: its worker was lost, or a transfer has failed.

    A job that exceeds its deadline would do so again.
    """
    if isinstance(failure.cause, TimeoutFailure):
        return failure.cause.type is TimeoutType.HEARTBEAT
    return action == JobType.UPLOAD or (action == JobType.IMPORT and error.id == JobErrorId.TRANSFER_FAILED)


def _as_json(error: JobError | None) -> _Json | None:
    return attrs.asdict(error) if error else None


def _type_of(failure: ActivityError) -> str | None:
    return failure.cause.type if isinstance(failure.cause, ApplicationError) else None
