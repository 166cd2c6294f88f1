"""The engine: Temporal's verbs, called from Twisted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import attrs
from temporalio.api.common.v1 import Payloads, WorkflowExecution
from temporalio.api.enums.v1 import WorkflowExecutionStatus
from temporalio.api.failure.v1 import ApplicationFailureInfo, Failure
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import (
    DescribeWorkflowExecutionRequest,
    PollActivityTaskQueueRequest,
    RecordActivityTaskHeartbeatRequest,
    RequestCancelWorkflowExecutionRequest,
    RespondActivityTaskCompletedRequest,
    RespondActivityTaskFailedRequest,
)
from temporalio.common import WorkflowIDReusePolicy
from temporalio.converter import DefaultPayloadConverter
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode
from twisted.internet.defer import CancelledError, Deferred

from image_service.core.errors import EngineUnavailable
from image_service.jobs.engine.engine import SERVER_QUEUE, PlanState, Task, queue_name
from image_service.jobs.engine.run_plan import JOB_FAILED, PlannedCompose, PlannedStep, RunPlan
from image_service.jobs.model import JobType, job_id_of

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from temporalio.service import WorkflowService

    from image_service.jobs.engine.connection import EngineConnection
    from image_service.jobs.model import Compose, JobError, Step

_T = TypeVar("_T")

_CALL_TIMEOUT = timedelta(seconds=10)
# The engine ends an empty poll a second before its deadline, which must be more than two seconds away.
_POLL_MARGIN_SECONDS = 1.0
_MIN_POLL_SECONDS = 1.5
_RETRY_AFTER_SECONDS = 5


@attrs.frozen
class JobLimits:
    """Limits of jobs.

    Args:
        heartbeat_seconds: without a heartbeat, after which an attempt is lost.
        job_seconds: that an attempt may take.
    """

    heartbeat_seconds: float = 120.0
    job_seconds: float = 10800.0


class TemporalEngine:
    """Implements `Engine`.

    Args:
        connection: that was started, or will be.
        limits: of the jobs of plans that it starts.
    """

    def __init__(self, connection: EngineConnection, limits: JobLimits) -> None:
        self._connection = connection
        self._limits = limits

    async def start_plan(self, compose: Compose) -> bool:
        """Start a compose's plan; False: the engine has, or had, one of this compose."""
        planned = PlannedCompose(
            compose.id,
            [_plan(compose, step) for step in compose.plan.steps],
            self._limits.heartbeat_seconds,
            self._limits.job_seconds,
        )
        start = self._connection.client.start_workflow(
            RunPlan.run,
            planned,
            id=compose.id,
            task_queue=SERVER_QUEUE,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            rpc_timeout=_CALL_TIMEOUT,
        )
        try:
            await self._call(start)
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def cancel_plan(self, compose_id: str) -> None:
        """Cancel a plan; do nothing if there is none that runs."""
        request = RequestCancelWorkflowExecutionRequest(
            namespace=self._namespace, workflow_execution=WorkflowExecution(workflow_id=compose_id)
        )
        await self._find(self._service.request_cancel_workflow_execution(request, timeout=_CALL_TIMEOUT))

    async def find_plan(self, compose_id: str) -> PlanState:
        """Return the state of a plan in the engine."""
        request = DescribeWorkflowExecutionRequest(
            namespace=self._namespace, execution=WorkflowExecution(workflow_id=compose_id)
        )
        found = await self._find(self._service.describe_workflow_execution(request, timeout=_CALL_TIMEOUT))
        if found is None:
            return PlanState.UNKNOWN
        is_running = (
            found.workflow_execution_info.status == WorkflowExecutionStatus.WORKFLOW_EXECUTION_STATUS_RUNNING
        )
        return PlanState.RUNNING if is_running else PlanState.ENDED

    async def poll(self, queue: str, worker: str, seconds: float) -> Task | None:
        """Return the next attempt of a queue; None: none came in time, which is 1.5 s at least.

        A task that comes after the caller has cancelled this call is lost until its heartbeat limit.
        """
        seconds = max(seconds, _MIN_POLL_SECONDS) + _POLL_MARGIN_SECONDS
        request = PollActivityTaskQueueRequest(
            namespace=self._namespace, task_queue=TaskQueue(name=queue), identity=worker
        )
        found = await self._call(
            self._service.poll_activity_task_queue(request, timeout=timedelta(seconds=seconds))
        )
        if not found.task_token:
            return None
        job_id, _, attempt = found.activity_id.partition("/")
        return Task(job_id, found.workflow_execution.workflow_id, found.task_token, int(attempt))

    async def heartbeat(self, token: bytes) -> bool:
        """Report a heartbeat of an attempt; False: it is not the present one."""
        request = RecordActivityTaskHeartbeatRequest(namespace=self._namespace, task_token=token)
        call = self._service.record_activity_task_heartbeat(request, timeout=_CALL_TIMEOUT)
        return await self._find(call) is not None

    async def complete(self, token: bytes, error: JobError | None = None) -> bool:
        """End an attempt; False: it is not the present one, and nothing has changed."""
        call: Coroutine[object, object, object]
        if error:
            details = Payloads(payloads=DefaultPayloadConverter().to_payloads([attrs.asdict(error)]))
            info = ApplicationFailureInfo(type=JOB_FAILED, details=details)
            failure = Failure(message=error.reason, application_failure_info=info)
            call = self._service.respond_activity_task_failed(
                RespondActivityTaskFailedRequest(
                    namespace=self._namespace, task_token=token, failure=failure
                ),
                timeout=_CALL_TIMEOUT,
            )
        else:
            call = self._service.respond_activity_task_completed(
                RespondActivityTaskCompletedRequest(namespace=self._namespace, task_token=token),
                timeout=_CALL_TIMEOUT,
            )
        return await self._find(call) is not None

    @property
    def _service(self) -> WorkflowService:
        return self._connection.client.workflow_service

    @property
    def _namespace(self) -> str:
        return self._connection.client.namespace

    async def _find(self, call: Coroutine[object, object, _T]) -> _T | None:
        """Await a call; None: the engine does not know its object, or that has ended."""
        try:
            return await self._await(call)
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return None
            raise _unavailable(error) from None

    async def _call(self, call: Coroutine[object, object, _T]) -> _T:
        """Await a call."""
        try:
            return await self._await(call)
        except RPCError as error:
            raise _unavailable(error) from None

    async def _await(self, call: Coroutine[object, object, _T]) -> _T:
        """Have asyncio run a coroutine of the SDK, in a Twisted coroutine."""
        answer: Deferred[_T] = Deferred.fromFuture(self._connection.loop.create_task(call))
        try:
            return await answer
        except asyncio.CancelledError:  # of the task, because the Deferred was canceled
            raise CancelledError from None


def _unavailable(error: RPCError) -> EngineUnavailable:
    detail = f"the job engine does not answer: {error.status.name}"
    return EngineUnavailable(detail, retry_after_seconds=_RETRY_AFTER_SECONDS)


def _plan(compose: Compose, step: Step) -> PlannedStep:
    """Return a step as the engine gets it."""
    if not step.is_job:
        return PlannedStep(step.name, step.action, list(step.after))
    queue = queue_name(compose.tenant, JobType(step.action), compose.architecture)
    return PlannedStep(step.name, step.action, list(step.after), queue, job_id_of(compose.id, step.name))
