"""Upkeep of rows, the engine and the object store."""

from __future__ import annotations

from contextlib import closing
from datetime import timedelta
from io import BytesIO
from typing import TYPE_CHECKING, TypeVar, cast

import attrs
import pytest
import sqlalchemy as sa

from image_service.common.objects.build import open_store
from image_service.common.objects.s3_client import S3Options
from image_service.core.errors import EngineUnavailable, NotFound, StoreDenied
from image_service.jobs.database.tables import COMPOSES, DISCARDED, JOBS, open_database
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.dispatch.upkeep import Expiry, Reconciler
from image_service.jobs.engine.engine import PlanState
from image_service.jobs.model import ComposeOrigin, ComposeState, JobState
from image_service.jobs.task_model import TaskAnswer
from tests.common.objects.storing import put
from tests.jobs.database.composing import NOW, Clock, Rows, make_artifact, make_compose, make_image
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from image_service.common.objects.store import ObjectStorage
    from image_service.jobs.model import Compose

T = TypeVar("T")
DAY = 24 * 3600


async def run_here(work: Callable[[], T], /) -> T:
    return work()


@attrs.define
class PlansOfEngine:
    """An engine that only has plans, and may be unavailable."""

    plans: dict[str, PlanState] = attrs.field(factory=dict)
    started: list[Compose] = attrs.field(factory=list)
    is_away: bool = False

    async def start_plan(self, compose: Compose) -> bool:
        """Start a plan."""
        self._check()
        if compose.id in self.plans:
            return False
        self.plans[compose.id] = PlanState.RUNNING
        self.started.append(compose)
        return True

    async def find_plan(self, compose_id: str) -> PlanState:
        """Return the state of a plan."""
        self._check()
        return self.plans.get(compose_id, PlanState.UNKNOWN)

    async def cancel_plan(self, compose_id: str) -> None:
        """Cancel a plan."""
        self._check()
        self.plans.pop(compose_id, None)

    def _check(self) -> None:
        if self.is_away:
            raise EngineUnavailable("the engine is unavailable")


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    with closing(open_database(None, tmp_path)) as database:
        yield Rows(database)


@pytest.fixture
def engine() -> PlansOfEngine:
    return PlansOfEngine()


@pytest.fixture
def reconciler(rows: Rows, engine: PlansOfEngine) -> Reconciler:
    return Reconciler(rows.composes, rows.jobs, engine, run_here, rows.clock)  # type: ignore[arg-type]  # the part that it uses


def make_expiry(
    rows: Rows, workers: WorkerRepository, store: ObjectStorage, seconds: float, image_seconds: float = 0
) -> Expiry:
    return Expiry(
        rows.composes,
        rows.objects,
        rows.images,
        rows.tasks,
        workers,
        store,
        run_here,
        rows.clock,
        retention_seconds=seconds,
        image_retention_seconds=image_seconds,
    )


def state_of(rows: Rows, compose_id: str) -> ComposeState | None:
    compose = rows.composes.find(compose_id)
    return None if compose is None else compose.state


@ensure_deferred
async def test_compose_that_was_not_started_is_started_once(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler
) -> None:
    compose, _ = rows.add()
    rows.clock.advance(3)
    await reconciler.reconcile()
    assert engine.started == []  # the replica that has added it does so
    rows.clock.advance(1)
    await reconciler.reconcile()
    await reconciler.reconcile()
    assert engine.started == [compose]
    assert state_of(rows, compose.id) is ComposeState.PENDING


@ensure_deferred
async def test_compose_whose_plan_was_changed_in_the_database_fails_alone(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler
) -> None:
    (changed, _), (other, _) = rows.add(), rows.add()
    change = sa.update(COMPOSES).where(COMPOSES.c.id == changed.id).values(source_image="of another tenant")
    rows.database.transact(lambda connection: connection.execute(change).close())
    rows.clock.advance(4)
    await reconciler.reconcile()
    assert engine.started == [other]
    summary = rows.composes.find_summary(changed.id)
    assert summary is not None
    assert summary.error is not None
    assert f"the plan of {changed.id} is not as the service has written it" in summary.error.reason


@ensure_deferred
async def test_compose_with_a_damaged_job_fails_alone(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler, messages: list[str]
) -> None:
    (damaged, jobs), (other, _) = rows.add(), rows.add()
    for compose in (damaged, other):
        rows.composes.begin(compose.id)
        engine.plans[compose.id] = PlanState.RUNNING
    rows.write(sa.update(JOBS).where(JOBS.c.id == jobs["convert"]).values(state="x"))
    for _ in range(2):
        await reconciler.reconcile()
    summary = rows.composes.find_summary(damaged.id)
    assert summary is not None
    assert summary.state is ComposeState.FAILURE
    assert summary.error is not None
    assert summary.error.reason.startswith(f"job {jobs['convert']}: the row in the database is not as")
    assert messages == [f"compose {damaged.id} failed: {summary.error.reason}"]
    assert engine.plans == {other.id: PlanState.RUNNING}
    assert state_of(rows, other.id) is ComposeState.BUILDING


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), timedelta(days=1)], ids=str)
@ensure_deferred
async def test_compose_that_was_added_before_the_clock_was_set_back_is_started(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler, ahead: timedelta
) -> None:
    compose, _ = rows.add(make_compose(created_at=NOW + ahead))
    await reconciler.reconcile()
    assert engine.started == [compose]


@ensure_deferred
async def test_compose_whose_plan_has_not_begun_stays_as_it_is(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler, messages: list[str]
) -> None:
    compose, _ = rows.add()
    engine.plans[compose.id] = PlanState.RUNNING
    rows.clock.advance(11)
    await reconciler.reconcile()
    assert state_of(rows, compose.id) is ComposeState.PENDING
    assert messages == []


@ensure_deferred
async def test_compose_whose_plan_was_lost_after_the_clock_was_set_back_fails(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler
) -> None:
    compose, _ = rows.add()
    engine.plans[compose.id] = PlanState.RUNNING
    rows.clock.advance(DAY)
    await reconciler.reconcile()
    rows.clock.advance(11 - DAY)
    engine.plans[compose.id] = PlanState.ENDED
    await reconciler.reconcile()
    assert state_of(rows, compose.id) is ComposeState.FAILURE


@ensure_deferred
async def test_compose_whose_plan_has_ended_before_it_began_fails(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler
) -> None:
    compose, _ = rows.add()
    engine.plans[compose.id] = PlanState.ENDED
    rows.clock.advance(11)
    await reconciler.reconcile()
    assert state_of(rows, compose.id) is ComposeState.FAILURE


@pytest.mark.parametrize(
    ("state", "reason"),
    [(PlanState.UNKNOWN, "has lost this compose"), (PlanState.ENDED, "has ended this compose")],
    ids=str,
)
@ensure_deferred
async def test_compose_that_the_engine_has_not_fails(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler, state: PlanState, reason: str
) -> None:
    compose, jobs = rows.add()
    running, _ = rows.add()
    for compose_id in (compose.id, running.id):
        rows.composes.begin(compose_id)
    engine.plans = {running.id: PlanState.RUNNING, compose.id: state}
    await reconciler.reconcile()
    found = rows.composes.find(compose.id)
    assert found is not None
    assert found.error is not None
    assert found.state is ComposeState.FAILURE
    assert reason in found.error.reason
    job = rows.jobs.find(jobs["customize"])
    assert job is not None
    assert job.state is JobState.CANCELLED
    assert state_of(rows, running.id) is ComposeState.BUILDING


@ensure_deferred
async def test_compose_that_has_ended_stays_as_it_is(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler
) -> None:
    compose, _ = rows.add()
    rows.composes.begin(compose.id)
    rows.composes.finish(compose.id, ComposeState.CANCELLED)
    engine.plans[compose.id] = PlanState.ENDED
    await reconciler.reconcile()
    assert state_of(rows, compose.id) is ComposeState.CANCELLED


@ensure_deferred
async def test_all_composes_are_looked_at_in_turn(
    rows: Rows, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("image_service.jobs.dispatch.upkeep._LOOKS", 2)
    for _ in range(5):
        rows.composes.begin(rows.add()[0].id)
    for left in (3, 1, 0, 0):
        await reconciler.reconcile()
        assert rows.composes.count_by_state().get(ComposeState.BUILDING, 0) == left


@ensure_deferred
async def test_unavailable_engine_fails_no_compose_and_is_logged_once(
    rows: Rows, engine: PlansOfEngine, reconciler: Reconciler, messages: list[str]
) -> None:
    compose, _ = rows.add()
    rows.composes.begin(compose.id)
    engine.plans[compose.id] = PlanState.RUNNING
    engine.is_away = True
    await reconciler.reconcile()
    await reconciler.reconcile()
    assert state_of(rows, compose.id) is ComposeState.BUILDING
    assert messages == ["upkeep is interrupted: the engine is unavailable"]
    engine.is_away = False
    await reconciler.reconcile()
    assert messages[1:] == ["upkeep works again"]


@ensure_deferred
async def test_old_composes_are_deleted_with_their_objects(rows: Rows, tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/store", S3Options())
    workers = WorkerRepository(rows.database, rows.clock)
    workers.add("w1", "", "x86_64")
    expiry = make_expiry(rows, workers, store, 14 * DAY)
    compose, jobs = rows.add()
    waiting, _ = rows.add()
    rows.start(jobs["customize"])
    image = make_artifact(jobs["customize"])
    put(store, image.key, BytesIO(b"disk"))
    rows.objects.add_artifact(jobs["customize"], 1, image)
    rows.composes.finish(compose.id, ComposeState.SUCCESS, image=image)
    rows.clock.advance(14 * DAY)
    await expiry.expire()
    assert state_of(rows, compose.id) is ComposeState.SUCCESS
    assert store.read_at(image.key, 0, 9) == b"disk"
    assert not workers.see("w1", "")
    rows.clock.advance(1)
    await expiry.expire()
    assert rows.composes.find(compose.id) is None
    with pytest.raises(NotFound):
        store.read_at(image.key, 0, 9)
    assert rows.objects.find_discarded(9) == []
    assert state_of(rows, waiting.id) is ComposeState.PENDING


@ensure_deferred
async def test_unavailable_store_loses_no_object_to_delete(rows: Rows, messages: list[str]) -> None:
    store = open_store("s3://bucket", S3Options(endpoint_url="http://127.0.0.1:1", access_key_id="a"))
    workers = WorkerRepository(rows.database, rows.clock)
    expiry = make_expiry(rows, workers, store, DAY)
    compose, jobs = rows.add()
    rows.start(jobs["customize"])
    disk = make_artifact(jobs["customize"])
    rows.objects.add_artifact(jobs["customize"], 1, disk)
    rows.composes.delete(compose.id)
    await expiry.expire()
    assert rows.objects.find_discarded(9) == [disk.key]
    assert [message.partition(":")[0] for message in messages] == ["upkeep is interrupted"]


@attrs.define
class RefusingStore:
    """Refuses to delete some keys."""

    refused: set[str]
    deleted: list[str] = attrs.field(factory=list)

    def delete(self, key: str) -> None:
        if key in self.refused:
            raise StoreDenied("the object store in S3: cannot delete an object: AccessDenied")
        self.deleted.append(key)

    def remove_unfinished(self, before: datetime) -> None:
        """There are none."""


@ensure_deferred
async def test_damaged_keys_keep_no_object(rows: Rows, tmp_path: Path, messages: list[str]) -> None:
    store = open_store(f"{tmp_path}/store", S3Options())
    expiry = make_expiry(rows, WorkerRepository(rows.database, rows.clock), store, DAY)
    compose, jobs = rows.add()
    rows.start(jobs["customize"])
    disk = make_artifact(jobs["customize"])
    put(store, disk.key, BytesIO(b"disk"))
    rows.objects.add_artifact(jobs["customize"], 1, disk)
    keys = ["'../../etc'", "''", "x'00ff'", "cast(x'ff80' as text)"]
    for key in keys:
        row = {"key": sa.literal_column(key), "after": NOW}
        rows.write(sa.insert(DISCARDED).values(row))
    rows.composes.delete(compose.id)
    await expiry.expire()
    with pytest.raises(NotFound):
        store.read_at(disk.key, 0, 9)
    assert rows.objects.find_discarded(9) == ["\ufffd\ufffd"]  # no statement can name this row
    named = [message for message in messages if message.startswith("there is no object to delete: ")]
    assert len(set(named)) == len(keys)


@ensure_deferred
async def test_object_that_may_not_be_deleted_keeps_no_other(rows: Rows, messages: list[str]) -> None:
    workers = WorkerRepository(rows.database, rows.clock)
    workers.add("w1", "", "x86_64")
    keys = []
    for _ in range(3):
        compose, jobs = rows.add()
        rows.start(jobs["customize"])
        disk = make_artifact(jobs["customize"])
        rows.objects.add_artifact(jobs["customize"], 1, disk)
        rows.composes.delete(compose.id)
        keys.append(disk.key)
    store = RefusingStore(set(keys[1:2]))
    expiry = make_expiry(rows, workers, cast("ObjectStorage", store), DAY)
    rows.clock.advance(DAY)
    for _ in range(2):
        await expiry.expire()
    assert rows.objects.find_discarded(9) == [keys[1]]
    assert sorted(store.deleted) == sorted([keys[0], keys[2]])
    assert not workers.see("w1", "")
    assert messages == [
        "upkeep is interrupted: the object store in S3: cannot delete an object: AccessDenied"
    ]
    store.refused.clear()
    await expiry.expire()
    assert rows.objects.find_discarded(9) == []
    assert messages[1:] == ["upkeep works again"]


@ensure_deferred
async def test_imported_image_survives_its_compose_until_its_own_retention(
    rows: Rows, tmp_path: Path
) -> None:
    store = open_store(f"{tmp_path}/store", S3Options())
    workers = WorkerRepository(rows.database, rows.clock)
    keeping = make_expiry(rows, workers, store, DAY)
    compose, jobs = rows.add(make_compose(origin=ComposeOrigin.IMPORT, image_type=None))
    rows.start(jobs["customize"])
    artifact = make_artifact(jobs["customize"])
    put(store, artifact.key, BytesIO(b"disk"))
    rows.objects.add_artifact(jobs["customize"], 1, artifact)
    image = make_image(0, source="import:import-vol-1", artifact=artifact)
    rows.images.add(image)
    rows.composes.finish(compose.id, ComposeState.SUCCESS)
    rows.clock.advance(30 * DAY)
    await keeping.expire()
    assert rows.composes.find(compose.id) is None
    assert rows.images.find_page("org-1", 0, 9) == ([image], 1)
    assert store.read_at(artifact.key, 0, 9) == b"disk"
    reader, _ = rows.add(make_compose(source_image=image.id))
    expiring = make_expiry(rows, workers, store, DAY, image_seconds=DAY)
    await expiring.expire()
    assert rows.images.find_page("org-1", 0, 9) == ([image], 1)
    rows.composes.finish(reader.id, ComposeState.FAILURE)
    await expiring.expire()
    assert rows.images.find_page("org-1", 0, 9) == ([], 0)
    with pytest.raises(NotFound):
        store.read_at(artifact.key, 0, 9)


@ensure_deferred
async def test_compose_is_kept_while_its_image_is_exported(rows: Rows, tmp_path: Path) -> None:
    store = open_store(f"{tmp_path}/store", S3Options())
    expiry = make_expiry(rows, WorkerRepository(rows.database, rows.clock), store, DAY)
    compose, _ = rows.add()
    rows.images.add(make_image(0, id=compose.id, source=f"compose:{compose.id}"))
    rows.composes.finish(compose.id, ComposeState.SUCCESS)
    export, _ = rows.add(make_compose(origin=ComposeOrigin.EXPORT, source_image=compose.id))
    rows.clock.advance(2 * DAY)
    await expiry.expire()
    assert state_of(rows, compose.id) is ComposeState.SUCCESS
    rows.composes.finish(export.id, ComposeState.SUCCESS)
    await expiry.expire()
    assert rows.composes.find(compose.id) is None
    assert rows.images.find_page("org-1", 0, 9) == ([], 0)


@ensure_deferred
async def test_clock_set_forward_and_back_forgets_no_answer(rows: Rows, tmp_path: Path) -> None:
    elapsed = Clock()

    def monotonic() -> float:
        return (elapsed() - NOW).total_seconds()

    workers, store = WorkerRepository(rows.database, rows.clock), open_store(f"{tmp_path}/store", S3Options())
    expiry = attrs.evolve(make_expiry(rows, workers, store, DAY), monotonic=monotonic)

    async def pass_minutes(minutes: int) -> None:
        for _ in range(minutes):
            for clock in (elapsed, rows.clock):
                clock.advance(60)
            await expiry.expire()

    await pass_minutes(61)  # so that it forgets answers
    rows.tasks.add_answer("org-1", TaskAnswer("digest", {"a": "first"}))
    rows.clock.advance(10 * 3600)
    await pass_minutes(50)
    rows.clock.advance(-10 * 3600 - 40 * 60)
    assert rows.tasks.find_answer("digest") == {"a": "first"}
    await pass_minutes(1)
    assert rows.tasks.find_answer("digest") == {"a": "first"}
    rows.clock.advance(40 * 60)
    await pass_minutes(120)
    assert rows.tasks.find_answer("digest") is None
