from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from image_service.jobs.engine.engine import AttemptState, PlanState, StepResult
from image_service.jobs.model import JobType, Step
from tests.jobs.engine.driver import CONVERT, CUSTOMIZE

if TYPE_CHECKING:
    from tests.jobs.engine.driver import Driver

pytestmark = pytest.mark.acceptance

FETCH = Step("fetch", "fetch-base")
CUSTOMIZED = Step("customize", JobType.CUSTOMIZE, after=("fetch",))
CONVERTED = Step("convert", JobType.CONVERT, after=("customize",))


def test_plan_runs_its_steps_in_order(driver: Driver) -> None:
    compose = driver.begin(FETCH, CUSTOMIZED, CONVERTED)
    task = driver.take(CUSTOMIZE)
    assert (task.compose_id, task.attempt) == (compose.id, 1)
    assert driver.call(driver.engine.heartbeat(task.token)) is AttemptState.RUNNING
    assert driver.call(driver.engine.find_plan(compose.id)) is PlanState.RUNNING
    assert driver.call(driver.engine.complete(task.token, StepResult({"artifacts": ["a"]})))
    assert driver.call(driver.engine.complete(driver.take(CONVERT).token, StepResult({})))
    assert driver.end(compose) == (None, False)
    assert driver.actions.calls[compose.id] == [
        ("begin",),
        ("act", "fetch"),
        ("queue_job", "customize"),
        ("finish_job", "customize"),
        ("queue_job", "convert"),
        ("finish_job", "convert"),
        ("finish",),
    ]
    assert driver.actions.jobs["customize"] == StepResult({"artifacts": ["a"]})
