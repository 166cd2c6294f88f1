"""Attempts of jobs, beyond the tests of the worker API."""

from __future__ import annotations

import hashlib
import os
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import attrs
import pytest
import sqlalchemy as sa
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool

from image_service.common.objects.directory import DirectoryStore
from image_service.core.errors import (
    BudgetExceeded,
    Forbidden,
    InvalidRequest,
    JobNotRunning,
    JobTokenUnknown,
    NotFound,
)
from image_service.jobs.database.tables import COMPOSES, DISCARDED, open_database
from image_service.jobs.dispatch.attempts import ArtifactUploads
from image_service.jobs.dispatch.dispatcher import WorkerPoll
from image_service.jobs.dispatch.results import WorkerResult
from image_service.jobs.dispatch.upload_slots import UploadSlots
from image_service.jobs.model import ComposePlan, ComposeState, JobError, JobState, JobType, Step
from image_service.jobs.principal import Principal
from image_service.server.web_api.request_content import RequestContent
from tests.jobs.dispatch.contents import received
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.epollreactor import EPollReactor

    from image_service.jobs.model import Job
    from tests.jobs.dispatch.dispatching import Dispatching

UPLOAD_PLAN = ComposePlan((Step("upload", JobType.UPLOAD, {}, {"image": "base"}),), None, "disk.raw")
POLL = WorkerPoll("", {*JobType}, "x86_64", "w1")
PRINCIPAL = Principal()
BUILT_IN = Principal(is_operator=True, is_built_in=True)


@ensure_deferred
async def test_the_result_of_a_job_is_an_argument_of_the_next(dispatching: Dispatching) -> None:
    plan = ComposePlan(
        (
            Step("customize", JobType.CUSTOMIZE, {}, {"base": "base"}),
            Step("convert", JobType.CONVERT, {}, {}, ("customize",)),
        ),
        None,
        "disk.raw",
    )
    compose = dispatching.add("", plan)
    await dispatching.queue_step(compose, "customize")
    first = await dispatching.dispatcher.poll(POLL)
    assert first is not None
    await dispatching.attempts.finish(PRINCIPAL, first.token, WorkerResult(facts={"log": "done"}))
    await dispatching.actions.finish_job(compose.id, "customize", None)
    await dispatching.queue_step(compose, "convert")
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    assert handed.dynamic_arguments == ({"log": "done"},)


@pytest.mark.parametrize("table", ["jobs", "composes"])
@ensure_deferred
async def test_inputs_are_those_of_the_tenant_of_the_token(
    dispatching: Dispatching, tmp_path: Path, table: str
) -> None:
    await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    await dispatching.attempts.open_input(PRINCIPAL, handed.token, "base")
    change = f"UPDATE {table} SET tenant = 'org-2'"  # noqa: S608 - of the parameters above
    with closing(open_database(None, tmp_path)) as database:
        database.transact(lambda connection: connection.exec_driver_sql(change).close())
    with pytest.raises((JobTokenUnknown, NotFound)):
        await dispatching.attempts.open_input(PRINCIPAL, handed.token, "base")


@ensure_deferred
async def test_a_file_that_comes_too_late_is_discarded(dispatching: Dispatching) -> None:
    await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    jobs, job = dispatching.rows.jobs, handed.job

    class Slow(RequestContent):
        async def read(self) -> bytes:
            jobs.finish(job.id, error=JobError(27, "its worker has stopped"))
            return await super().read()

    content = received(b"late", Slow)
    with pytest.raises(JobTokenUnknown):
        await dispatching.attempts.add_artifact(PRINCIPAL, handed.token, "disk.raw", content)
    (key,) = dispatching.rows.objects.find_discarded(10)
    assert key.startswith(f"jobs/{handed.job.id}/1/")


@pytest.mark.parametrize("size", [None, 5], ids=["chunked", "declared"])
@ensure_deferred
async def test_file_has_no_more_bytes_than_were_reserved(dispatching: Dispatching, size: int | None) -> None:
    compose = dispatching.add(store_bytes=5)
    await dispatching.actions.begin(compose.id)
    await dispatching.queue_step(compose, "customize")
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    send = partial(dispatching.attempts.add_artifact, PRINCIPAL, handed.token, "disk.raw")
    with pytest.raises(BudgetExceeded):
        await send(received(b"123456"), size)
    assert dispatching.rows.objects.find_artifacts(handed.job.id, 1) == []
    await send(received(b"12345"), size)  # the bytes that were not stored were given back
    (artifact,) = dispatching.rows.objects.find_artifacts(handed.job.id, 1)
    assert artifact.size == 5


@ensure_deferred
async def test_uploads_hold_no_thread_while_they_are_received(
    dispatching: Dispatching, reactor: EPollReactor, tmp_path: Path
) -> None:
    pool = ThreadPool(0, 1)
    pool.start()
    in_one_thread = partial(deferToThreadPool, reactor, pool)
    uploads = ArtifactUploads(dispatching.storage, in_one_thread, UploadSlots(3, 0, reactor), tmp_path)
    slow = [RequestContent(lambda: None, lambda: None, lambda: None) for _ in range(2)]
    storing = [
        Deferred.fromCoroutine(uploads.store(f"slow/{number}", content, None, 10))
        for number, content in enumerate(slow)
    ]
    assert (await uploads.store("quick", received(b"1234"), 4, 4)).size == 4
    slow[0].feed(b"late")
    slow[0].complete()
    assert (await storing[0]).size == 4
    slow[1].drop()
    with pytest.raises(InvalidRequest):
        await storing[1]
    pool.stop()
    with pytest.raises(NotFound):
        dispatching.storage.read_at("slow/1", 0, 1)


@ensure_deferred
async def test_the_log_of_a_failed_job_is_kept(dispatching: Dispatching) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    error = JobError(10, "no room")
    result = WorkerResult.parse({"job_error": {"id": 10, "reason": "no room"}, "log": "needs 9 bytes"})
    await dispatching.attempts.finish(PRINCIPAL, handed.token, result)
    await dispatching.actions.finish_job(job.compose_id, "customize", error)
    row = dispatching.rows.jobs.find(job.id)
    assert row is not None
    assert (row.state, row.result, row.error) == (JobState.FAILED, {"log": "needs 9 bytes"}, error)


@pytest.mark.parametrize("knows_by", ["heartbeat", "heartbeat-of-row", "result"])
@ensure_deferred
async def test_worker_that_knows_of_a_cancellation_is_recorded(
    dispatching: Dispatching, knows_by: str
) -> None:
    compose = dispatching.add("", UPLOAD_PLAN, uploads=())
    dispatching.rows.queues.mark_queued(dispatching.job(compose, "upload").id, 1)
    dispatching.engine.queue(dispatching.job(compose, "upload"))
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    dispatching.rows.composes.finish(compose.id, ComposeState.CANCELLED)
    job = dispatching.job(compose, "upload")
    assert job.stopped_at is None
    assert job.finished_at is not None
    if knows_by == "result":
        with pytest.raises(JobNotRunning):
            await dispatching.attempts.finish(PRINCIPAL, handed.token, WorkerResult())
    else:
        if knows_by == "heartbeat":
            await dispatching.engine.cancel_plan(compose.id)
        assert await dispatching.attempts.beat(PRINCIPAL, handed.token)
    stopped = dispatching.job(compose, "upload")
    assert stopped.stopped_at is not None
    assert stopped.stopped_at > job.finished_at


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """The directory of the built-in worker's files."""
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


def sent_bytes(dispatching: Dispatching, job: Job) -> int:
    """Return the bytes that count as sent for the compose of a job."""
    select = sa.select(COMPOSES.c.sent_bytes).where(COMPOSES.c.id == job.compose_id)
    return int(dispatching.database.transact(lambda connection: connection.execute(select).scalar_one()))


@ensure_deferred
async def test_a_file_of_the_built_in_worker_is_taken_where_it_is(
    dispatching: Dispatching, tmp_path: Path, scratch: Path
) -> None:
    job = await dispatching.queue("org-1")
    handed = await dispatching.dispatcher.poll(attrs.evolve(POLL, tenant=None))
    assert handed is not None
    file = scratch / "made"
    file.write_bytes(b"a disk")
    digest = hashlib.sha256(b"a disk").hexdigest()
    for _ in range(2):  # as after a lost reply
        assert await dispatching.attempts.take_artifact(BUILT_IN, handed.token, "disk.raw", file, digest)
    (artifact,) = dispatching.rows.objects.find_artifacts(job.id, 1)
    assert (artifact.name, artifact.size, artifact.sha256) == ("disk.raw", 6, digest)
    assert (tmp_path / "store" / artifact.key).samefile(file)
    assert len(dispatching.rows.objects.find_discarded(10)) == 1
    assert sent_bytes(dispatching, job) == 2 * file.stat().st_blocks * 512


@ensure_deferred
async def test_file_that_the_store_cannot_link_has_to_be_sent(
    dispatching: Dispatching, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    monkeypatch.setattr(DirectoryStore, "link_file", lambda *_: None)
    file = scratch / "made"
    file.write_bytes(b"a disk")
    take = partial(dispatching.attempts.take_artifact, BUILT_IN, handed.token, "disk.raw", file, "0" * 64)
    assert not await take()
    assert dispatching.rows.objects.find_artifacts(job.id, 1) == []
    assert sent_bytes(dispatching, job) == 0
    announced = sa.select(sa.func.count()).select_from(DISCARDED)
    assert dispatching.database.transact(lambda connection: connection.scalar(announced)) == 0
    await dispatching.attempts.add_artifact(BUILT_IN, handed.token, "disk.raw", received(b"a disk"))
    assert len(dispatching.rows.objects.find_artifacts(job.id, 1)) == 1


@pytest.mark.parametrize("principal", [PRINCIPAL, Principal(is_operator=True)], ids=["tenant", "operator"])
@ensure_deferred
async def test_no_other_worker_names_files_of_the_server(
    dispatching: Dispatching, tmp_path: Path, scratch: Path, principal: Principal
) -> None:
    await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    file = scratch / "secret"
    file.write_bytes(b"secret")
    with pytest.raises(Forbidden, match="by PUT"):
        await dispatching.attempts.take_artifact(principal, handed.token, "disk.raw", file, "0" * 64)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "name", ["absent", "directory", "link", "circle", "pipe", "../outside", "linked/outside"]
)
@ensure_deferred
async def test_only_regular_files_of_the_scratch_are_taken(
    dispatching: Dispatching, tmp_path: Path, scratch: Path, name: str
) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    (tmp_path / "outside").write_bytes(b"secret")
    (scratch / "directory").mkdir()
    (scratch / "link").symlink_to(tmp_path / "outside")
    (scratch / "circle").symlink_to(scratch / "circle")
    (scratch / "linked").symlink_to(tmp_path)
    os.mkfifo(scratch / "pipe")
    with pytest.raises(InvalidRequest, match="has no regular file"):
        await dispatching.attempts.take_artifact(BUILT_IN, handed.token, "disk.raw", scratch / name, "0" * 64)
    assert sent_bytes(dispatching, job) == 0
    assert not (tmp_path / "store").exists()


@ensure_deferred
async def test_taken_file_has_no_more_bytes_than_were_reserved(
    dispatching: Dispatching, scratch: Path
) -> None:
    compose = dispatching.add(store_bytes=5)
    await dispatching.actions.begin(compose.id)
    await dispatching.queue_step(compose, "customize")
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    file = scratch / "made"
    file.write_bytes(bytes(11))
    with pytest.raises(BudgetExceeded):
        await dispatching.attempts.take_artifact(BUILT_IN, handed.token, "disk.raw", file, "0" * 64)
    assert dispatching.rows.objects.find_artifacts(handed.job.id, 1) == []


@ensure_deferred
async def test_cancelled_job_has_no_file_taken(dispatching: Dispatching, scratch: Path) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    dispatching.rows.composes.finish(job.compose_id, ComposeState.CANCELLED)
    (scratch / "made").write_bytes(b"a disk")
    with pytest.raises(JobNotRunning):
        await dispatching.attempts.take_artifact(
            BUILT_IN, handed.token, "disk.raw", scratch / "made", "0" * 64
        )


@pytest.mark.parametrize("value", [-1, 2**63 - 1])
@ensure_deferred
async def test_compose_with_changed_bytes_takes_no_file(dispatching: Dispatching, value: int) -> None:
    job = await dispatching.queue()
    handed = await dispatching.dispatcher.poll(POLL)
    assert handed is not None
    update = sa.update(COMPOSES).values(store_bytes=value, sent_bytes=value)
    dispatching.database.transact(lambda connection: connection.execute(update).close())
    with pytest.raises(JobNotRunning, match=f"compose {job.compose_id}"):
        await dispatching.attempts.add_artifact(PRINCIPAL, handed.token, "disk.raw", received(b"a"), 1)
