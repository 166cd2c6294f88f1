"""What tenants may keep, in each database."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import attrs
import pytest

from image_service.core.errors import BudgetExceeded, InvalidRequest, JobNotRunning
from image_service.jobs.database.objects import MAX_FILES
from image_service.jobs.model import Artifact, ComposeOrigin, ComposeState, TenantBudget
from tests.jobs.database.composing import CUSTOMIZATION, Rows, make_artifact, make_compose, make_image

if TYPE_CHECKING:
    from image_service.jobs.model import Job

MIB = 1024**2
BUDGET = TenantBudget(max_composes=100, max_bytes=100 * MIB)


@pytest.fixture
def limited(rows: Rows) -> Rows:
    return attrs.evolve(rows, budget=BUDGET)


def running_job(rows: Rows, store_bytes: int = 0) -> Job:
    compose, jobs = rows.add(make_compose(store_bytes=store_bytes))
    rows.start(jobs["customize"])
    job = rows.jobs.find(jobs["customize"])
    assert job is not None
    assert job.compose_id == compose.id
    return job


def artifact_of(job: Job, size: int, name: str = "disk.raw") -> Artifact:
    return attrs.evolve(make_artifact(job.id, name=name), size=size)


def test_order_is_refused_if_the_most_that_it_can_become_does_not_fit(limited: Rows) -> None:
    limited.add(make_compose(store_bytes=60 * MIB))
    with pytest.raises(BudgetExceeded, match=r"JOBS_MAX_BYTES.* up to \d+ bytes, at most 104857600 "):
        limited.add(make_compose(store_bytes=60 * MIB, origin=ComposeOrigin.IMPORT))
    limited.add(make_compose(store_bytes=60 * MIB, tenant="org-2"))
    limited.add(make_compose(store_bytes=30 * MIB))


def test_tenant_may_have_a_budget_of_its_own(rows: Rows) -> None:
    own = {"org-1": 200 * MIB, "org-2": MIB}
    limited = attrs.evolve(rows, budget=attrs.evolve(BUDGET, own_bytes=own.get))
    limited.add(make_compose(store_bytes=150 * MIB))
    with pytest.raises(BudgetExceeded, match=f"at most {MIB} "):
        limited.add(make_compose(store_bytes=2 * MIB, tenant="org-2"))
    with pytest.raises(BudgetExceeded, match=f"at most {100 * MIB} "):
        limited.add(make_compose(store_bytes=150 * MIB, tenant="org-3"))


@pytest.mark.parametrize("state", [ComposeState.FAILURE, ComposeState.CANCELLED])
def test_compose_without_an_image_gives_everything_back(limited: Rows, state: ComposeState) -> None:
    compose, _ = limited.add(make_compose(store_bytes=90 * MIB))
    limited.composes.finish(compose.id, state)
    limited.add(make_compose(store_bytes=90 * MIB))


def test_image_counts_with_what_the_store_keeps_until_it_is_deleted(limited: Rows) -> None:
    job = running_job(limited, 90 * MIB)
    artifact = artifact_of(job, 80 * MIB)
    assert limited.objects.add_artifact(job.id, 1, artifact, 20 * MIB)  # the others are holes
    limited.finish(job.id, artifact)
    limited.composes.finish(job.compose_id, ComposeState.SUCCESS, image=artifact)
    limited.add(make_compose(store_bytes=75 * MIB))
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=10 * MIB))
    limited.composes.delete(job.compose_id)
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=20 * MIB))
    limited.delete_objects()
    limited.add(make_compose(store_bytes=20 * MIB))


def test_image_of_the_catalog_counts_once_and_stays_when_its_import_is_deleted(limited: Rows) -> None:
    job = running_job(limited, 90 * MIB)
    artifact = artifact_of(job, 60 * MIB)
    assert limited.objects.add_artifact(job.id, 1, artifact)
    limited.images.add(image := make_image(1, artifact=artifact, source="import:import-i-1"))
    limited.finish(job.id, artifact)
    limited.composes.finish(job.compose_id, ComposeState.SUCCESS, image=artifact)
    second, _ = limited.add(make_compose(store_bytes=30 * MIB))
    limited.composes.delete(second.id)
    limited.composes.delete(job.compose_id)
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=50 * MIB))
    limited.images.delete(image.id)
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=50 * MIB))
    limited.delete_objects()
    limited.add(make_compose(store_bytes=90 * MIB))


@pytest.mark.parametrize("when", ["replaced", "not accepted", "cancelled", "too late"])
def test_object_that_nothing_refers_to_counts_until_it_is_deleted(limited: Rows, when: str) -> None:
    job = running_job(limited, 60 * MIB)
    artifact = artifact_of(job, 60 * MIB)
    limited.objects.announce_object(artifact.key, job, artifact.size)
    if when == "too late":
        limited.composes.finish(job.compose_id, ComposeState.CANCELLED)
    assert limited.objects.add_artifact(job.id, 1, artifact) == (when != "too late")
    if when == "replaced":
        assert limited.objects.add_artifact(job.id, 1, artifact_of(job, 1))
    elif when == "not accepted":
        limited.finish(job.id)
    limited.composes.finish(job.compose_id, ComposeState.CANCELLED)
    limited.composes.delete(job.compose_id)
    limited.add(make_compose(store_bytes=90 * MIB, tenant="org-2"))
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=50 * MIB))
    limited.delete_objects()
    limited.add(make_compose(store_bytes=90 * MIB))


@pytest.mark.parametrize("what", ["request", "secrets", "result"])
def test_rows_count(rows: Rows, what: str) -> None:
    unit = MIB // 16
    limited = attrs.evolve(rows, budget=attrs.evolve(BUDGET, max_bytes=100 * unit))
    text = "x" * (45 * unit)  # sealed: a third more
    if what == "request":
        limited.add(make_compose(request={"text": text}))
    elif what == "secrets":
        secrets = attrs.evolve(CUSTOMIZATION, ignition=text.encode())
        limited.composes.add(make_compose(), secrets, 9)
    else:
        job = running_job(limited)
        limited.finish(job.id, result={"log": text})
        limited.composes.finish(job.compose_id, ComposeState.SUCCESS)
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=60 * unit))
    limited.add(make_compose(store_bytes=20 * unit))


def test_orders_at_once_do_not_exceed_the_budget(limited: Rows) -> None:
    def is_added(_: int) -> bool:
        try:
            limited.add(make_compose(store_bytes=30 * MIB))
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(is_added, range(8))) == 3


def test_files_have_what_their_plan_can_make_and_once_more_what_was_lost(limited: Rows) -> None:
    job = running_job(limited, 20 * MIB)
    announce = limited.objects.announce_object
    with pytest.raises(BudgetExceeded, match=f"at most {20 * MIB}, so {40 * MIB} are allowed"):
        announce("jobs/0", job, 41 * MIB)
    assert announce("jobs/a", job, 15 * MIB) == 15 * MIB
    assert announce("jobs/b", job, None) == 5 * MIB
    assert announce("jobs/c", job, 20 * MIB) == 20 * MIB  # of an answer that was lost
    with pytest.raises(BudgetExceeded, match="its plan makes"):
        announce("jobs/d", job, 1)
    with pytest.raises(BudgetExceeded):
        limited.add(make_compose(store_bytes=70 * MIB))
    limited.objects.give_back(job, 40 * MIB)
    limited.add(make_compose(store_bytes=70 * MIB))
    assert announce("jobs/e", job, None) == 20 * MIB
    with pytest.raises(BudgetExceeded, match="JOBS_MAX_BYTES"):
        announce("jobs/g", job, 15 * MIB)
    limited.start(job.id, 2)
    assert announce("jobs/h", attrs.evolve(job, attempt=2), 5 * MIB) == 5 * MIB
    limited.composes.finish(job.compose_id, ComposeState.FAILURE)
    with pytest.raises(JobNotRunning):
        announce("jobs/f", job, 1)
    limited.add(make_compose(store_bytes=20 * MIB))


def test_attempt_has_a_number_of_files(limited: Rows) -> None:
    job = running_job(limited)
    for number in range(MAX_FILES):
        assert limited.objects.add_artifact(job.id, 1, artifact_of(job, 1, f"file-{number}"))
    with pytest.raises(InvalidRequest, match="at most 16 files"):
        limited.objects.announce_object("jobs/a", job, 1)


def test_base_may_need_more_or_less_than_was_reserved(limited: Rows) -> None:
    compose, _ = limited.add(make_compose(store_bytes=90 * MIB))
    limited.composes.reserve(compose, 10 * MIB)
    limited.add(make_compose(store_bytes=80 * MIB))
    with pytest.raises(BudgetExceeded):
        limited.composes.reserve(compose, 30 * MIB)
    limited.composes.finish(compose.id, ComposeState.CANCELLED)
    limited.composes.reserve(compose, 30 * MIB)  # no more
    limited.add(make_compose(store_bytes=10 * MIB))
