"""The activities by which `RunPlan` calls `PlanActions`: asyncio on the engine's side, Twisted on ours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import attrs
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger

from image_service.core.errors import ImageServiceError, NotFound, StoreFailed, Unavailable
from image_service.jobs.engine.run_plan import PLAN_GONE
from image_service.jobs.model import JobError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from image_service.jobs.engine.engine import PlanActions

_T = TypeVar("_T")
_log = Logger()

BEAT_SECONDS = 5.0  # the limit of `RunPlan` is four times as long


class PlanActivities:
    """The activities of this service."""

    def __init__(self, actions: PlanActions) -> None:
        self._actions = actions

    @property
    def all(self) -> list[Callable[..., Any]]:
        """All activities, for a worker of the SDK."""
        return [self.begin, self.queue_job, self.finish_job, self.act, self.finish]

    @activity.defn
    async def begin(self, compose_id: str) -> None:
        """Record that the plan runs."""
        await _carry_out(self._actions.begin(compose_id))

    @activity.defn
    async def queue_job(self, compose_id: str, step: str, attempt: int) -> None:
        """Record that an attempt of a job is queued."""
        await _carry_out(self._actions.queue_job(compose_id, step, attempt))

    @activity.defn
    async def finish_job(self, compose_id: str, step: str, error: dict[str, Any] | None) -> None:
        """Record how a job ended."""
        await _carry_out(self._actions.finish_job(compose_id, step, _read_error(error)))

    @activity.defn
    async def act(self, compose_id: str, step: str) -> dict[str, Any] | None:
        """Carry out a step of this service with heartbeats, and return its error."""
        beats = asyncio.create_task(_beat())
        try:
            error = await _carry_out(self._actions.act(compose_id, step))
        finally:
            beats.cancel()
        return attrs.asdict(error) if error else None

    @activity.defn
    async def finish(self, compose_id: str, error: dict[str, Any] | None, is_cancelled: bool) -> None:  # noqa: FBT001 - Temporal passes arguments by position
        """Record how the compose ended."""
        await _carry_out(self._actions.finish(compose_id, _read_error(error), cancelled=is_cancelled))


async def _carry_out(action: Coroutine[Deferred[Any], Any, _T]) -> _T:
    """Run an action of ours, and map its errors to those that `RunPlan` knows.

    The SDK logs each failure without its reason, unless the failure is marked as benign; a wait is.
    """
    try:
        return await Deferred.fromCoroutine(action).asFuture(asyncio.get_running_loop())
    except NotFound as error:
        raise ApplicationError(error.detail, type=PLAN_GONE, non_retryable=True) from None
    except (StoreFailed, Unavailable, CancelledError) as error:
        if isinstance(error, StoreFailed):
            _log.warn("an action of a plan is repeated later: {reason}", reason=str(error))
        raise ApplicationError(
            str(error),
            type=type(error).__name__,
            next_retry_delay=_retry_delay(error),
            category=ApplicationErrorCategory.BENIGN,
        ) from None
    except ImageServiceError as error:
        raise ApplicationError(error.detail, type=error.code, non_retryable=True) from None
    except Exception:  # noqa: BLE001 - any other error ends the plan
        _log.failure("an action of a plan failed")
        # Its message might contain secrets, which must not reach the engine.
        raise ApplicationError("internal error; see the log", non_retryable=True) from None


def _retry_delay(error: Exception) -> timedelta | None:
    """Return the time after which an error says that a retry may succeed; None: as the engine decides."""
    seconds = error.retry_after_seconds if isinstance(error, ImageServiceError) else None
    return None if seconds is None else timedelta(seconds=seconds)


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_SECONDS)


def _read_error(members: dict[str, Any] | None) -> JobError | None:
    return JobError(**members) if members else None
