"""The activities of plans: an action that is repeated later is not a failure in the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.testing import ActivityEnvironment
from twisted.internet.defer import CancelledError
from twisted.logger import capturedLogs

from image_service.core.errors import EngineUnavailable, StoreFailed, StoreFull, Unavailable, Unprocessable
from image_service.jobs.engine.plan_activities import PlanActivities

if TYPE_CHECKING:
    from image_service.jobs.model import JobError


class FailingActions:
    """Each step fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def act(self, *_: str) -> JobError | None:
        raise self._error


def run(error: Exception) -> tuple[ApplicationError, list[str]]:
    """Return the failure that the engine gets, and the warnings."""
    actions: Any = FailingActions(error)
    with capturedLogs() as events, pytest.raises(ApplicationError) as raised:
        asyncio.run(ActivityEnvironment().run(PlanActivities(actions).act, "compose", "step"))
    return raised.value, [str(event["log_format"]) for event in events if event["log_level"].name == "warn"]


@pytest.mark.parametrize(
    ("error", "warnings"),
    [
        (Unavailable("the upload is awaited", retry_after_seconds=30), 0),
        (Unavailable("the base disk is being fetched"), 0),
        (EngineUnavailable("no answer"), 0),
        (CancelledError(), 0),
        (StoreFailed("the database does not answer"), 1),
        (StoreFull("no room"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wait_is_benign_and_only_a_failing_store_is_warned_of(error: Exception, warnings: int) -> None:
    failure, logged = run(error)
    assert failure.category is ApplicationErrorCategory.BENIGN
    assert not failure.non_retryable
    assert len(logged) == warnings


def test_fault_is_not_benign() -> None:
    failure, _ = run(Unprocessable("no disk"))
    assert failure.category is not ApplicationErrorCategory.BENIGN
    assert failure.non_retryable
