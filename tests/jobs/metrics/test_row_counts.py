from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import sqlalchemy as sa
from prometheus_client import CollectorRegistry, generate_latest
from twisted.internet.defer import Deferred, execute

from image_service.core.errors import StoreFailed
from image_service.jobs.database.tables import COMPOSES, JOBS, TASKS, open_database
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.metrics.families import ReadGauges
from image_service.jobs.metrics.jobs_metrics import JobsMetrics
from image_service.jobs.metrics.row_counts import MOST_TENANTS, RowCounts
from image_service.jobs.model import ComposeState, TenantBudget
from image_service.jobs.task_model import TaskKind
from tests.jobs.database.composing import BUDGET, Rows, make_artifact, make_compose, make_image
from tests.jobs.database.test_tasks import add, make_record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MIB = 2**20


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Rows]:
    """The repositories in an empty database."""
    with closing(open_database(None, tmp_path)) as database:
        yield Rows(database)


def sample(rows: Rows, in_thread: Callable[[Callable[[], Any]], Deferred[Any]]) -> list[dict[Any, float]]:
    """Return composes, pending jobs, running jobs, workers, tasks, workers by isolation, and bytes twice."""
    metrics = JobsMetrics()
    gauges = (
        *(metrics.composes, metrics.pending_jobs, metrics.running_jobs, metrics.active_workers),
        *(metrics.tasks, metrics.worker_isolation, metrics.tenant_bytes, metrics.tenant_max_bytes),
    )
    for gauge in gauges:
        gauge.values = {("of", "before"): 1}
    workers = WorkerRepository(rows.database)
    counts = RowCounts(metrics, rows.composes, rows.jobs, workers, rows.tasks, 120, in_thread)
    Deferred.fromCoroutine(counts.sample())
    return [dict(gauge.values) for gauge in gauges]


def test_rows_are_counted(rows: Rows) -> None:
    started, *queued = [
        rows.add(make_compose(tenant=tenant))[1]["customize"] for tenant in ("org-2", "org-1", "org-2")
    ]
    rows.start(started, tenant="org-2")
    for job_id in queued:
        rows.queues.mark_queued(job_id, 1)
    for name, isolation in (("w1", "bwrap"), ("w2", "none"), ("w3", "none")):
        WorkerRepository(rows.database).add(name, "org-2", "aarch64", isolation)
    counted = sample(rows, execute)
    assert counted[:6] == [
        {("pending",): 3},
        {("customize", "org-1"): 1, ("customize", "org-2"): 1},
        {("customize", "org-2"): 1},
        {("org-2", "aarch64"): 3},
        {},
        {("org-2", "aarch64", "bwrap"): 1, ("org-2", "aarch64", "none"): 2},
    ]
    assert counted[7] == {("org-1",): BUDGET.max_bytes, ("org-2",): BUDGET.max_bytes}
    assert counted[6].keys() == counted[7].keys()


def test_bytes_are_those_of_the_tenants_with_the_most(rows: Rows) -> None:
    own: dict[str, int] = {}
    rows.budget = TenantBudget(10, 2**40, own.get)
    for number in range(MOST_TENANTS + 2):
        tenant = f"org-{number}"
        _, jobs = rows.add(make_compose(tenant=tenant, store_bytes=number * MIB))
        if number == 7:
            artifact = attrs.evolve(make_artifact(jobs["customize"]), size=500 * MIB)
            rows.images.add(make_image(number, tenant=tenant, artifact=artifact))
    own["org-7"] = 2**41
    *_, taken, most = sample(rows, execute)
    assert len(taken) == len(most) == MOST_TENANTS
    assert ("org-0",) not in taken
    assert 507 * MIB < taken["org-7",] < 508 * MIB
    assert (most["org-7",], most["org-8",]) == (2**41, 2**40)


def test_tasks_are_counted_by_kind_and_state(rows: Rows) -> None:
    kinds = (TaskKind.IMPORT_VOLUME, TaskKind.IMPORT_VOLUME, TaskKind.EXPORT_INSTANCE)
    records = [make_record(kind) for kind in kinds]
    for record in records:
        add(rows, record)
    rows.composes.finish(records[0].compose.id, ComposeState.FAILURE)
    assert sample(rows, execute)[4] == {
        ("import-vol", "failure"): 1,
        ("import-vol", "pending"): 1,
        ("export-i", "pending"): 1,
    }


def test_damaged_rows_are_left_out(rows: Rows) -> None:
    records = [make_record(TaskKind.IMPORT_VOLUME) for _ in range(4)]
    for record in records:
        add(rows, record)
    composes = [rows.add() for _ in range(3)]
    for _, jobs in composes:
        rows.queues.mark_queued(jobs["customize"], 1)
    changes = (
        (COMPOSES, records[0].compose.id, {"state": "x"}),
        (TASKS, records[1].task.id, {"kind": "x"}),
        (COMPOSES, records[2].compose.id, {"tenant": sa.literal_column("x'00ff'"), "store_bytes": "x"}),
        (JOBS, composes[0][1]["customize"], {"type": "x"}),
        (JOBS, composes[1][1]["customize"], {"state": "x"}),
    )
    for table, row_id, values in changes:
        rows.write(sa.update(table).where(table.c.id == row_id).values(values))
    counted = sample(rows, execute)
    assert counted[0] == {("pending",): 6}
    assert counted[1] == {("customize", "org-1"): 1}
    assert counted[4] == {("import-vol", "pending"): 2}
    assert len(counted[6]) == 2


def test_label_that_is_not_text_is_shown_as_text() -> None:
    gauges = ReadGauges("taken", "Bytes.", "tenant")
    gauges.values = {(b"\0\xff",): 1}  # type: ignore[dict-item]  # of a damaged row
    registry = CollectorRegistry()
    registry.register(gauges)
    assert b"image_builder_taken{tenant=" in generate_latest(registry)


def test_nothing_is_shown_while_the_database_does_not_answer(rows: Rows) -> None:
    def fail(_: Callable[[], Any]) -> Deferred[Any]:
        raise StoreFailed("down")

    assert sample(rows, fail) == [{}] * 8
