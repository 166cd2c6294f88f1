"""Plans survive crashes of the engine, of replicas and of polls, and the loss of its database."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from twisted.internet.defer import Deferred

from image_service.core.errors import EngineUnavailable
from image_service.jobs.engine.engine import PlanState
from image_service.jobs.model import JobError, JobType, Step
from tests.jobs.engine.driver import CUSTOMIZE, Driver
from tests.jobs.engine.servers import EngineServer, running_engine

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.jobs.engine.engine import Task
pytestmark = pytest.mark.acceptance

FETCH = Step("fetch", "fetch-base")
JOB = Step("customize", JobType.CUSTOMIZE)
FULL = JobError(11, "no room")


def revive(server: EngineServer, driver: Driver) -> None:
    """Kill the engine, and return once it answers again."""
    server.kill()
    with pytest.raises(EngineUnavailable):
        driver.call(driver.engine.find_plan("any"))
    server.start()
    driver.wait_until(lambda: answers(driver))


def answers(driver: Driver) -> bool:
    try:
        driver.call(driver.engine.find_plan("any"))
    except EngineUnavailable:
        return False
    return True


def can_begin(driver: Driver) -> bool:
    """Run a plan; False: the engine has no namespace yet."""
    try:
        compose = driver.begin(JOB)
    except EngineUnavailable:
        return False
    driver.finish(CUSTOMIZE)
    return driver.end(compose) == (None, False)


def test_engine_is_killed_between_all_calls(engine_server: EngineServer, driver: Driver) -> None:
    compose = driver.begin(FETCH, JOB)
    revive(engine_server, driver)
    task = driver.take(CUSTOMIZE)
    revive(engine_server, driver)
    assert driver.call(driver.engine.heartbeat(task.token))
    revive(engine_server, driver)
    assert driver.call(driver.engine.complete(task.token))
    revive(engine_server, driver)
    assert not driver.call(driver.engine.complete(task.token, FULL))
    assert driver.end(compose) == (None, False)
    assert driver.actions.jobs["customize"] is None


@pytest.mark.soak  # after the loss the SDK waits for ten seconds before it polls again
def test_lost_database_of_the_engine(tmp_path: Path) -> None:
    with running_engine(tmp_path) as server, Driver(server.address).running() as driver:
        orphan = driver.begin(JOB)
        task = driver.take(CUSTOMIZE)
        server.kill()
        for file in tmp_path.glob("temporal.sqlite*"):
            file.unlink()
        server.start()
        driver.wait_until(lambda: answers(driver))
        assert driver.call(driver.engine.find_plan(orphan.id)) is PlanState.UNKNOWN
        assert not driver.call(driver.engine.heartbeat(task.token))
        driver.wait_until(lambda: can_begin(driver))


@pytest.mark.parametrize("engine_server", [pytest.param("postgresql", marks=pytest.mark.soak)], indirect=True)
def test_database_of_the_engine_is_killed(engine_server: EngineServer, driver: Driver) -> None:
    postgres = engine_server.postgres
    assert postgres
    compose = driver.begin(JOB)
    task = driver.take(CUSTOMIZE)
    postgres.stop("immediate")
    with pytest.raises(EngineUnavailable):
        driver.call(driver.engine.complete(task.token))
    postgres.start()
    driver.wait_until(lambda: is_over(driver, task))
    assert driver.end(compose) == (None, False)
    assert driver.actions.calls[compose.id].count(("finish_job", "customize")) == 1


def is_over(driver: Driver, task: Task) -> bool:
    """Complete an attempt; False: the engine does not answer."""
    try:
        driver.call(driver.engine.complete(task.token))
    except EngineUnavailable:
        return False
    return True


def test_another_replica_continues_the_plan(engine_server: EngineServer, driver: Driver) -> None:
    driver.actions.hangs = True
    compose = driver.begin(FETCH)
    driver.wait_until(lambda: ("act", "fetch") in driver.actions.calls[compose.id])
    driver.call(driver.connection.stop())
    with Driver(engine_server.address).running() as heir:
        assert heir.end(compose) == (None, False)


def test_replica_stops_while_the_engine_is_unavailable(engine_server: EngineServer, driver: Driver) -> None:
    engine_server.kill()
    driver.wait(0.5)
    driver.call(driver.connection.stop())
    engine_server.start()


def test_aborted_polls_lose_no_job(engine_server: EngineServer) -> None:
    randomness = random.Random(19)  # noqa: S311 - the same each time
    with Driver(engine_server.address, heartbeat_seconds=6).running() as driver:
        composes = [driver.begin(JOB) for _ in range(5)]
        end = driver.loop.time() + 3  # before the limit: a job that three polls lost would fail
        while driver.loop.time() < end:
            aborted = Deferred.fromCoroutine(driver.engine.poll(CUSTOMIZE, "worker", 2.0))
            aborted.addErrback(lambda _: None)
            driver.wait(randomness.uniform(0, 0.1))
            aborted.cancel()
        for _ in composes:
            driver.finish(CUSTOMIZE)
        assert {driver.end(compose) for compose in composes} == {(None, False)}
