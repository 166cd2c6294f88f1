"""The rows of composes, in each database."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import attrs
import pytest
import sqlalchemy as sa

from image_service.core.errors import BudgetExceeded, RowNotAuthentic, TooManyQueued
from image_service.jobs.catalog_image import CatalogImage
from image_service.jobs.database.composes import ComposeFilter, ComposeRepository
from image_service.jobs.database.sealing import RowCipher
from image_service.jobs.database.tables import COMPOSES, JOBS, SECRETS, open_database
from image_service.jobs.model import (
    ComposeOrigin,
    ComposePlan,
    ComposeState,
    ComposeSummary,
    ImageType,
    JobError,
    JobState,
    Step,
    UploadResult,
    UploadTarget,
)
from tests.common.database.statements import explain, recorded
from tests.jobs.database.composing import (
    BUDGET,
    CUSTOMIZATION,
    DISK_PLAN,
    NOW,
    SECRET,
    Rows,
    make_artifact,
    make_compose,
)

if TYPE_CHECKING:
    from pathlib import Path

    from image_service.jobs.model import Compose, Json

COMPOSED = ComposePlan(steps=(), result=None, file_name="live.iso")


def test_compose_is_found_as_it_was_added(rows: Rows) -> None:
    compose, jobs = rows.add()
    assert rows.composes.find(compose.id) == compose
    assert rows.composes.customization(compose) == CUSTOMIZATION
    assert set(jobs) == {"customize", "convert"}
    assert all(str(UUID(job_id)) == job_id for job_id in jobs.values())


def test_compose_of_another_tenant_is_not_found(rows: Rows) -> None:
    compose, _ = rows.add()
    assert rows.composes.find(compose.id, "org-1") == compose
    assert rows.composes.find(compose.id, "org-2") is None
    assert rows.composes.find(compose.id, "") is None


def test_tenant_may_queue_a_number_of_composes(rows: Rows) -> None:
    composes = rows.composes
    first = make_compose()
    composes.add(first, CUSTOMIZATION, 1)
    with pytest.raises(TooManyQueued, match=r"JOBS_MAX_QUEUED.* 1 "):
        composes.add(make_compose(), CUSTOMIZATION, 1)
    composes.add(make_compose(tenant="org-2"), CUSTOMIZATION, 1)
    composes.finish(first.id, ComposeState.FAILURE)
    composes.add(make_compose(), CUSTOMIZATION, 1)


def test_tenant_may_keep_a_number_of_composes(rows: Rows) -> None:
    composes = attrs.evolve(rows, budget=attrs.evolve(BUDGET, max_composes=2)).composes
    first, second = make_compose(), make_compose(origin=ComposeOrigin.EXPORT)
    for compose in (first, second):
        composes.add(compose, CUSTOMIZATION, 9)
        composes.finish(compose.id, ComposeState.FAILURE)
    with pytest.raises(BudgetExceeded, match=r"JOBS_MAX_COMPOSES.* 2 "):
        composes.add(make_compose(), CUSTOMIZATION, 9)
    composes.add(make_compose(tenant="org-2"), CUSTOMIZATION, 9)
    composes.delete(first.id)
    composes.add(make_compose(), CUSTOMIZATION, 9)


def test_requests_at_once_do_not_exceed_the_limit(rows: Rows) -> None:
    def add(_: int) -> bool:
        try:
            rows.composes.add(make_compose(), CUSTOMIZATION, 3)
        except TooManyQueued:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(add, range(8))) == 3


def test_composes_are_listed_newest_first_and_filtered(rows: Rows) -> None:
    added = [make_compose(created_at=NOW + timedelta(seconds=number)) for number in range(4)]
    added.append(make_compose(tenant="org-2", image_type=ImageType.AWS, distribution="fcos"))
    for compose in added:
        rows.add(compose)
    composes = rows.composes
    newest = [summary_of(compose) for compose in reversed(added[:4])]
    assert composes.find_page(ComposeFilter("org-1"), limit=9) == (newest, 4)
    assert composes.find_page(ComposeFilter("org-1"), offset=1, limit=2) == (newest[1:3], 4)
    other = [summary_of(added[4])]
    assert composes.find_page(ComposeFilter(distribution="fcos"), limit=9)[0] == other
    assert composes.find_page(ComposeFilter(image_type=ImageType.AWS), limit=9)[0] == other
    composes.finish(added[0].id, ComposeState.FAILURE)
    failed, number = composes.find_page(ComposeFilter(states=[ComposeState.FAILURE]), limit=9)
    assert ([compose.id for compose in failed], number) == ([added[0].id], 1)
    assert composes.count_by_state() == {ComposeState.PENDING: 4, ComposeState.FAILURE: 1}


@pytest.mark.parametrize("what", ["request", "provenance", "result"])
def test_list_does_not_read_what_it_does_not_show(rows: Rows, what: str) -> None:
    large: Json = {"text": "x" * 1_000_000}
    for _ in range(20):
        compose, jobs = rows.add(make_compose(request=large) if what == "request" else None)
        if what == "provenance":
            rows.composes.set_provenance(compose.id, large)
        elif what == "result":
            rows.finish(jobs["customize"], result=large)
    tracemalloc.start()
    try:
        composes, _ = rows.composes.find_page(ComposeFilter("org-1"), limit=100)
        jobs_of = rows.jobs.summarize([compose.id for compose in composes])
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert {id_: [job.step for job in jobs] for id_, jobs in jobs_of.items()} == {
        compose.id: ["customize", "convert"] for compose in composes
    }
    assert len(composes) == 20
    assert peak_bytes < 1_000_000  # less than one of them


@pytest.mark.parametrize(
    "wanted",
    [
        ComposeFilter("org-1", origin=ComposeOrigin.COMPOSER),
        ComposeFilter("org-1", [ComposeState.SUCCESS], "fcos", ImageType.AWS, ComposeOrigin.COMPOSER),
    ],
    ids=["all", "filtered"],
)
def test_composes_of_a_tenant_are_counted_by_an_index_alone(tmp_path: Path, wanted: ComposeFilter) -> None:
    with closing(open_database(None, tmp_path)) as database:
        repository = Rows(database).composes
        with recorded(database) as statements:
            repository.find_page(wanted, limit=10, offset=20)
        plans = [explain(database, *statement) for statement in statements]
    assert len(plans) == 2
    assert "USING INDEX ix_composes_listed (tenant=? AND origin=?)" in plans[0]
    assert "TEMP B-TREE" not in plans[0]
    assert "USING COVERING INDEX ix_composes_listed (tenant=? AND origin=?)" in plans[1]


def summary_of(compose: Compose) -> ComposeSummary:
    return ComposeSummary(
        **{field.name: getattr(compose, field.name) for field in attrs.fields(ComposeSummary)}
    )


def test_compose_ends_once(rows: Rows) -> None:
    compose, _ = rows.add()
    composes = rows.composes
    assert composes.set_state(compose.id, ComposeState.BUILDING)
    error = JobError(27, "customize: the worker stopped", ["x"])
    assert composes.finish(compose.id, ComposeState.FAILURE, error=error)
    assert not composes.finish(compose.id, ComposeState.SUCCESS)
    assert not composes.set_state(compose.id, ComposeState.UPLOADING)
    found = composes.find(compose.id)
    assert found is not None
    assert (found.state, found.error, found.finished_at) == (ComposeState.FAILURE, error, NOW)
    assert not composes.finish("no such", ComposeState.SUCCESS)


def test_success_keeps_the_image_and_erases_the_customization(rows: Rows) -> None:
    compose, jobs = rows.add()
    rows.start(jobs["customize"])
    rows.start(jobs["convert"])
    disk = make_artifact(jobs["customize"])
    image = make_artifact(jobs["convert"], name="disk.vmdk")
    rows.objects.add_artifact(jobs["customize"], 1, disk)
    rows.objects.add_artifact(jobs["convert"], 1, image)
    rows.finish(jobs["customize"], disk)
    rows.finish(jobs["convert"], image)
    assert rows.objects.find_discarded(10) == []
    facts = {"customize": {"toolkit": "1"}}
    rows.composes.finish(compose.id, ComposeState.SUCCESS, image=image, provenance=facts)
    found = rows.composes.find(compose.id)
    assert found is not None
    assert (found.image, found.provenance) == (image, facts)
    assert [upload.status for upload in found.uploads] == ["success"]
    assert rows.objects.find_discarded(10) == [disk.key]
    assert rows.composes.customization(compose) is None


def test_composed_image_keeps_its_customization_until_it_is_deleted(rows: Rows) -> None:
    compose, _ = rows.add(make_compose(image_type=ImageType.LIVE_INSTALLER, plan=COMPOSED))
    rows.composes.finish(compose.id, ComposeState.SUCCESS)
    assert rows.composes.customization(compose) == CUSTOMIZATION
    assert rows.composes.delete(compose.id)
    assert rows.composes.customization(compose) is None


def test_failure_cancels_jobs_fails_uploads_and_discards_artifacts(rows: Rows) -> None:
    done = UploadResult(UploadTarget("aws.s3", region="eu"), "success", "s3://b/k")
    compose, jobs = rows.add(
        make_compose(uploads=(done, UploadResult(UploadTarget("aws.s3", public=True), "running")))
    )
    rows.start(jobs["customize"])
    disk = make_artifact(jobs["customize"])
    rows.objects.add_artifact(jobs["customize"], 1, disk)
    rows.finish(jobs["customize"], disk)
    rows.composes.finish(compose.id, ComposeState.CANCELLED)
    found = rows.composes.find(compose.id)
    assert found is not None
    assert [upload.status for upload in found.uploads] == ["success", "failure"]
    assert found.uploads[0] == done
    states = [job.state for job in rows.jobs.find_of_compose(compose.id)]
    assert states == [JobState.FINISHED, JobState.CANCELLED]
    assert rows.objects.find_discarded(10) == [disk.key]
    assert rows.composes.customization(compose) is None


def test_uploads_are_replaced_one_by_one(rows: Rows) -> None:
    targets = [UploadTarget("aws.s3", region=f"r{number}") for number in range(4)]
    compose, _ = rows.add(make_compose(uploads=[UploadResult(target, "pending") for target in targets]))

    def finish(number: int) -> None:
        rows.composes.set_upload(
            compose, number, UploadResult(targets[number], "success", f"s3://b/{number}")
        )

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(finish, range(4)))
    found = rows.composes.find(compose.id)
    assert found is not None
    assert [upload.location for upload in found.uploads] == [f"s3://b/{number}" for number in range(4)]


def test_deleted_compose_leaves_only_objects_to_delete(rows: Rows) -> None:
    compose, jobs = rows.add()
    rows.start(jobs["customize"])
    image = make_artifact(jobs["customize"])
    rows.objects.add_artifact(jobs["customize"], 1, image)
    images = rows.images
    images.add(
        CatalogImage(compose.id, "org-1", "x", "x86_64", "vmdk", 1, image, f"compose:{compose.id}", NOW)
    )
    assert rows.composes.delete(compose.id)
    assert not rows.composes.delete(compose.id)
    assert rows.composes.find(compose.id) is None
    assert rows.jobs.find(jobs["customize"]) is None
    assert images.find_page("org-1", 0, 9) == ([], 0)
    assert rows.objects.find_discarded(10) == [image.key]
    rows.objects.forget_discarded([image.key])
    assert rows.objects.find_discarded(10) == []


def test_reconciler_finds_its_composes(rows: Rows) -> None:
    compose, _ = rows.add()
    composes, later = rows.composes, NOW + timedelta(seconds=1)
    assert composes.find_unstarted(NOW, 10) == []
    assert composes.find_unstarted(later, 10) == [compose.id]
    assert composes.find_unfinished("", 10) == []
    composes.begin(compose.id)
    rows.clock.advance(5)
    composes.begin(compose.id)
    assert composes.find(compose.id) == attrs.evolve(compose, state=ComposeState.BUILDING, started_at=NOW)
    assert composes.find_unstarted(later, 10) == []
    assert composes.find_unfinished("", 10) == [compose.id]
    assert composes.find_unfinished(compose.id, 10) == []
    assert composes.find_ended(later, 10) == []
    composes.finish(compose.id, ComposeState.SUCCESS)
    assert composes.find_unfinished("", 10) == []
    ended_at = rows.clock()
    assert composes.find_ended(ended_at, 10) == []
    assert composes.find_ended(ended_at + timedelta(seconds=1), 10) == [compose.id]


def test_customization_is_opened_by_any_secret_and_by_no_other(rows: Rows) -> None:
    compose, _ = rows.add()
    rotated = ComposeRepository(rows.database, RowCipher([bytes(32), SECRET]), BUDGET)
    assert rotated.customization(compose) == CUSTOMIZATION
    with pytest.raises(RowNotAuthentic, match="INSTANCE_SECRET_FILE"):
        ComposeRepository(rows.database, RowCipher([bytes(32)]), BUDGET).customization(compose)


def test_writer_gives_the_secrets_of_a_tenant_to_no_other(rows: Rows) -> None:
    victim, _ = rows.add()
    own, _ = rows.add(make_compose(tenant="org-2"))
    moved, _ = rows.add()
    change = sa.update(COMPOSES).where(COMPOSES.c.id == moved.id).values(tenant="org-2")
    rows.database.transact(lambda connection: connection.execute(change).close())
    of_victim = sa.select(SECRETS.c.sealed).where(SECRETS.c.compose_id == victim.id).scalar_subquery()
    copy = sa.update(SECRETS).where(SECRETS.c.compose_id == own.id).values(sealed=of_victim)
    rows.database.transact(lambda connection: connection.execute(copy).close())
    other, _ = rows.add(make_compose(tenant="org-2"))
    found, _ = rows.composes.find_page(ComposeFilter("org-2"), limit=9)  # a list needs no secrets
    assert {compose.id for compose in found} == {own.id, moved.id, other.id}
    with pytest.raises(RowNotAuthentic, match=moved.id):
        rows.composes.find(moved.id)
    for compose in (own, attrs.evolve(moved, tenant="org-2")):
        with pytest.raises(RowNotAuthentic, match=compose.id):
            rows.composes.customization(compose)
    assert rows.composes.customization(other) == CUSTOMIZATION


@pytest.mark.parametrize(
    "change", ["tenant", "bucket", "result", "image type", "plan of another", "form", "tag"]
)
def test_changed_plan_is_refused_and_can_be_deleted(rows: Rows, change: str) -> None:
    target = Step("upload", "upload", {"bucket": "own", "key": "k"})
    plan = attrs.evolve(DISK_PLAN, steps=(*DISK_PLAN.steps, target))
    changed, _ = rows.add(make_compose(plan=plan))
    other, _ = rows.add()
    tag = stored(rows, COMPOSES.c.plan, changed.id)["tag"]
    moved = attrs.evolve(
        plan, tag=tag, steps=(*DISK_PLAN.steps, attrs.evolve(target, arguments={"bucket": "x"}))
    )
    values: dict[str, Any] = {
        "tenant": {"tenant": "org-2"},
        "bucket": {"plan": moved},
        "result": {"plan": attrs.evolve(plan, tag=tag, result=None)},
        "image type": {"image_type": ImageType.LIVE_INSTALLER},
        "form": {"plan": {"steps": 7}},
        "tag": {"plan": attrs.evolve(plan, tag="x")},
        "plan of another": {"plan": stored(rows, COMPOSES.c.plan, other.id)},
    }
    rows.write(sa.update(COMPOSES).where(COMPOSES.c.id == changed.id).values(values[change]))
    with pytest.raises(RowNotAuthentic, match=changed.id):
        rows.composes.find(changed.id)
    assert rows.composes.find(other.id) == other
    listed, _ = rows.composes.find_page(ComposeFilter(), limit=9)
    assert {compose.id for compose in listed} == {changed.id, other.id}
    assert rows.composes.finish(changed.id, ComposeState.FAILURE)
    assert rows.composes.delete(changed.id)


@pytest.mark.parametrize("column", ["error", "uploads", "image_type", "state", "created_at"])
@pytest.mark.parametrize("value", ["'x'", "'[7]'", "x'00ff'", "cast(x'ff80' as text)"])
def test_compose_that_cannot_be_read_hides_no_other(tmp_path: Path, column: str, value: str) -> None:
    with closing(open_database(None, tmp_path)) as database:  # PostgreSQL refuses most of these values
        check_damaged(Rows(database), column, value)


def check_damaged(rows: Rows, column: str, value: str) -> None:
    damaged, jobs = rows.add()
    other, _ = rows.add()
    table, damaged_id = (JOBS, jobs["customize"]) if column == "state" else (COMPOSES, damaged.id)
    values: dict[str, Any] = {column: sa.literal_column(value)}
    rows.write(sa.update(table).where(table.c.id == damaged_id).values(values))
    found, total = rows.composes.find_page(ComposeFilter(), limit=9)
    assert ({compose.id for compose in found}, total) == ({damaged.id, other.id}, 2)
    summaries = rows.jobs.summarize([damaged.id, other.id])
    assert [len(jobs) for jobs in summaries.values()] == [2, 2]
    assert rows.composes.find(other.id) == other
    assert rows.composes.finish(damaged.id, ComposeState.CANCELLED)
    assert rows.composes.delete(damaged.id)


def test_image_of_another_compose_is_refused(rows: Rows) -> None:
    victim, jobs = rows.add()
    image = make_artifact(jobs["convert"], name="disk.vmdk")
    rows.composes.finish(victim.id, ComposeState.SUCCESS, image=image)
    own, _ = rows.add(make_compose(tenant="org-2"))
    rows.composes.finish(own.id, ComposeState.SUCCESS, image=make_artifact("own"))
    taken = stored(rows, COMPOSES.c.image, victim.id)
    rows.write(sa.update(COMPOSES).where(COMPOSES.c.id == own.id).values(image=taken))
    with pytest.raises(RowNotAuthentic, match=f"the artifact of {own.id} "):
        rows.composes.find(own.id, "org-2")
    found = rows.composes.find(victim.id)
    assert found is not None
    assert found.image == image


@pytest.mark.parametrize("change", ["report", "job"])
def test_artifact_of_another_job_is_refused(rows: Rows, change: str) -> None:
    victim, jobs = rows.add()
    rows.finish(jobs["customize"], make_artifact(jobs["customize"]))
    own, own_jobs = rows.add(make_compose(tenant="org-2"))
    rows.finish(own_jobs["customize"], make_artifact(own_jobs["customize"]))
    if change == "report":
        taken = sa.select(JOBS.c.artifacts).where(JOBS.c.id == jobs["customize"]).scalar_subquery()
        rows.write(sa.update(JOBS).where(JOBS.c.id == own_jobs["customize"]).values(artifacts=taken))
    else:
        rows.write(sa.delete(JOBS).where(JOBS.c.id == own_jobs["customize"]))
        moved = {"compose_id": own.id, "tenant": "org-2"}
        rows.write(sa.update(JOBS).where(JOBS.c.id == jobs["customize"]).values(moved))
    with pytest.raises(RowNotAuthentic):
        rows.jobs.find_of_compose(own.id)
    assert len(rows.jobs.find_of_compose(victim.id)) == (2 if change == "report" else 1)


def stored(rows: Rows, column: sa.Column[Any], compose_id: str) -> Any:
    return rows.database.transact(
        lambda connection: connection.scalar(sa.select(column).where(COMPOSES.c.id == compose_id))
    )


def test_no_file_of_the_database_holds_a_secret(rows: Rows, tmp_path: Path) -> None:
    rows.add()
    content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"3.4.0" not in content
    assert b"example.com/secret" not in content
    assert b"ttyS0" not in content
