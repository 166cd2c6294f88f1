"""The worker API as a client sees it that was written from the description of osbuild-worker."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
import pytest

from image_service.core.errors import EngineUnavailable
from image_service.jobs.model import JobProgress, JobState
from tests.jobs.worker_api.conformance import ConformanceClient, RunningJob, WorkerApiError
from tests.pytwisted import ensure_deferred

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from image_service.jobs.model import Json
    from tests.jobs.dispatch.dispatching import Dispatching
    from tests.jobs.worker_api.conftest import Serving

DISK = bytes(range(256)) * 8192  # more than may wait for a thread


async def refusal(call: Awaitable[object]) -> tuple[int, int]:
    """Return the status and the number of an error."""
    with pytest.raises(WorkerApiError) as refused:
        await call
    return refused.value.status, refused.value.number


async def start(serving: Serving, tenant: str = "org-1") -> RunningJob:
    """Queue a job of a tenant, and hand it to a worker of it."""
    await serving.dispatching.queue(tenant)
    client = {"org-1": serving.one, "org-2": serving.two}[tenant]
    job = await client.poll()
    assert job is not None
    return job


@ensure_deferred
async def test_a_worker_does_a_job(serving: Serving, dispatching: Dispatching) -> None:
    client = serving.one
    worker_id = await client.register()
    await client.post_status(worker_id)
    queued = await dispatching.queue("org-1")
    job = await client.poll("convert", "customize", worker_id=worker_id)
    assert job is not None
    assert (str(job.id), job.type, job.document["compose_id"]) == (queued.id, "customize", queued.compose_id)
    assert job.arguments["output"] == "disk.raw"
    assert await client.read_input(job, "base") == b"a base disk"
    assert not await client.is_cancelled(job)
    await client.update(job, {"partial": {"progress": {"done": 1, "total": 2, "phase": "copying"}}})
    row = dispatching.rows.jobs.find(queued.id)
    assert row is not None
    assert (row.progress, row.worker, row.state) == (
        JobProgress(1, 2, "copying"),
        worker_id,
        JobState.RUNNING,
    )
    declared = await client.upload(job, "disk.raw", DISK)
    await client.update(job, {"result": {"artifacts": [declared], "provenance": {"toolkit": "1"}}})
    await dispatching.actions.finish_job(queued.compose_id, queued.step, None)
    (artifact,) = dispatching.artifacts(queued)
    assert dispatching.stored(artifact) == DISK
    assert artifact.key.startswith(f"jobs/{queued.id}/1/")
    assert await refusal(client.update(job, {"result": {"artifacts": [declared]}})) == (404, 5)


@ensure_deferred
async def test_the_worker_of_the_service_names_its_file(
    serving: Serving, dispatching: Dispatching, tmp_path: Path
) -> None:
    client = serving.built_in
    queued = await dispatching.queue("org-1")
    job = await client.poll("customize", tenant="ANY")
    assert job is not None
    assert job.document["takes_files"] is True
    file = tmp_path / "scratch" / "disk.raw"
    file.parent.mkdir()
    file.write_bytes(DISK)
    declared = {"name": "disk.raw", "size": len(DISK), "sha256": hashlib.sha256(DISK).hexdigest()}
    location = f"{job.artifact_location}disk.raw"
    request = {"path": str(file), "sha256": declared["sha256"]}
    outside = {**request, "path": "/etc/passwd"}
    for wrong in (outside, {**request, "path": "disk.raw"}, {**request, "sha256": "0"}, {"path": str(file)}):
        assert await refusal(client.call("POST", location, wrong)) == (400, 10)
    assert await refusal(serving.operator.call("POST", location, request)) == (403, 403)
    assert await client.call("POST", location, request) == (200, {"taken": True})
    await client.update(job, {"result": {"artifacts": [declared]}})
    await dispatching.actions.finish_job(queued.compose_id, queued.step, None)
    (artifact,) = dispatching.artifacts(queued)
    assert dispatching.stored(artifact) == DISK


@ensure_deferred
async def test_other_workers_send_content(serving: Serving) -> None:
    job = await start(serving)
    assert job.document["takes_files"] is False


@ensure_deferred
async def test_a_worker_of_osbuild_gets_nothing(serving: Serving, dispatching: Dispatching) -> None:
    await dispatching.queue("org-1")
    assert await serving.one.poll("osbuild:x86_64", "koji-finalize", "depsolve") is None
    assert await refusal(serving.one.call("POST", "jobs", {"types": [], "arch": "x86_64"})) == (400, 15)


@pytest.mark.parametrize("base", ["/api/image-builder/worker/v1/", "/api/worker/v1/"])
@ensure_deferred
async def test_other_base_paths_are_served(serving: Serving, dispatching: Dispatching, base: str) -> None:
    client = attrs.evolve(serving.one, base=base)
    await dispatching.queue("org-1")
    job = await client.poll()
    assert job is not None
    assert job.location.startswith(f"{base}jobs/")
    assert not await client.is_cancelled(job)
    await client.update(job, {"result": {"job_error": {"id": 10, "reason": "broken"}}})


@ensure_deferred
async def test_a_failed_job_ends_with_its_error(serving: Serving, dispatching: Dispatching) -> None:
    job = await start(serving)
    error = {"id": 10, "reason": "no room", "details": "scratch has 1 MiB"}
    await serving.one.update(job, {"result": {"job_error": error}})
    given = dispatching.engine.find(str(job.id)).error
    assert given is not None
    assert attrs.asdict(given) == {**error, "reason": "step customize: no room"}


@ensure_deferred
async def test_status_errors_and_document(serving: Serving) -> None:
    client = serving.one
    assert (await client.call("GET", "status"))[1] == {
        "id": "status",
        "kind": "Status",
        "href": "/api/image-builder-worker/v1/status",
        "status": "OK",
    }
    anonymous = attrs.evolve(client, token="")
    _, error = await anonymous.call("GET", "errors/5")
    assert (error["code"], error["message"]) == ("IMAGE-BUILDER-WORKER-5", error["reason"])
    assert await refusal(anonymous.call("GET", "errors/x")) == (400, 9)
    assert await refusal(anonymous.call("GET", f"errors/{'9' * 5000}")) == (400, 9)
    assert await refusal(anonymous.call("GET", "errors/999")) == (404, 14)
    assert (await anonymous.call("GET", "openapi"))[1]["info"]["version"] == "1"
    assert await refusal(anonymous.call("GET", "status")) == (401, 401)


@ensure_deferred
async def test_malformed_requests_are_refused_by_number(serving: Serving) -> None:
    client = serving.one
    poll: Json = {"types": ["customize"], "arch": "x86_64"}
    assert await refusal(client.request("POST", "jobs", b"{", "application/json")) == (400, 10)
    assert await refusal(client.request("POST", "jobs", b"{}", "text/plain")) == (415, 3)
    assert await refusal(client.call("POST", "jobs", {"types": ["customize"]})) == (400, 10)
    assert await refusal(client.call("POST", "jobs", {**poll, "worker_id": "w1"})) == (400, 17)
    assert await refusal(client.call("POST", "workers/w1/status")) == (400, 17)
    assert await refusal(client.call("POST", "workers", {"arch": "made-up"})) == (400, 10)
    assert await refusal(client.post_status(str(uuid4()))) == (400, 18)
    assert await refusal(client.call("DELETE", "jobs")) == (405, 12)
    assert await refusal(client.call("GET", "composes")) == (404, 11)


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"result": {}, "partial": {}},
        {"result": "done"},
        {"result": {"artifacts": [{"name": "disk.raw"}]}},
        {"result": {"artifacts": []}},
        {"partial": {"progress": {"done": "all"}}},
    ],
    ids=str,
)
@ensure_deferred
async def test_malformed_updates_end_nothing(
    serving: Serving, dispatching: Dispatching, document: Json
) -> None:
    job = await start(serving)
    assert await refusal(serving.one.call("PATCH", job.location, document)) == (400, 10)
    assert dispatching.engine.find(str(job.id)).is_present
    assert not await serving.one.is_cancelled(job)


@pytest.mark.parametrize("change", [{"size": 1}, {"sha256": "00" * 32}], ids=str)
@ensure_deferred
async def test_a_wrong_size_or_digest_is_refused(serving: Serving, change: dict[str, Any]) -> None:
    job = await start(serving)
    declared = await serving.one.upload(job, "disk.raw", DISK)
    result = {"artifacts": [{**declared, **change}]}
    assert await refusal(serving.one.update(job, {"result": result})) == (400, 10)
    await serving.one.update(job, {"result": {"artifacts": [declared]}})


@pytest.mark.parametrize("name", [".hidden", "..%2Fdisk", "%2E%2E", "a%00", "x" * 256])
@ensure_deferred
async def test_artifacts_have_plain_names(serving: Serving, dispatching: Dispatching, name: str) -> None:
    job = await start(serving)
    assert await refusal(serving.one.upload(job, name, b"x")) == (400, 10)
    assert dispatching.rows.objects.find_artifacts(str(job.id), 1) == []


@ensure_deferred
async def test_unknown_inputs_are_404(serving: Serving) -> None:
    job = await start(serving)
    assert await refusal(serving.one.read_input(job, "ignition")) == (404, 11)


def uses(client: ConformanceClient, job: RunningJob) -> list[Awaitable[object]]:
    """Return a call of each use of a token."""
    return [
        client.is_cancelled(job),
        client.update(job, {"partial": {}}),
        client.update(job, {"result": {"job_error": {"id": 10, "reason": "broken"}}}),
        client.upload(job, "disk.raw", b"x"),
        client.read_input(job, "base"),
    ]


@ensure_deferred
async def test_a_stolen_token_is_refused(serving: Serving, dispatching: Dispatching) -> None:
    job = await start(serving)
    assert [await refusal(use) for use in uses(serving.two, job)] == [(404, 5)] * 5
    assert dispatching.engine.find(str(job.id)).is_present
    assert dispatching.rows.objects.find_artifacts(str(job.id), 1) == []
    assert not await serving.one.is_cancelled(job)


@ensure_deferred
async def test_a_forged_token_is_refused(serving: Serving) -> None:
    job = await start(serving)
    token = str(job)
    for made_up, expected in (
        (token[:-2] + ("AA" if token[-2:] != "AA" else "BB"), (404, 5)),
        ("A" + token[1:] if token[0] != "A" else "B" + token[1:], (400, 8)),
        ("token", (400, 8)),
        (str(uuid4()), (400, 8)),
    ):
        other = attrs.evolve(
            job,
            location=job.location.replace(token, made_up),
            artifact_location=job.artifact_location.replace(token, made_up),
        )
        assert [await refusal(use) for use in uses(serving.one, other)] == [expected] * 5


@ensure_deferred
async def test_a_zombie_changes_nothing(serving: Serving, dispatching: Dispatching) -> None:
    zombie = await start(serving)
    row = dispatching.rows.jobs.find(str(zombie.id))
    assert row is not None
    await serving.one.upload(zombie, "disk.raw", b"of the zombie")
    second = dispatching.engine.expire(dispatching.engine.find(row.id), row)
    await dispatching.actions.queue_job(row.compose_id, row.step, 2)
    job = await serving.one.poll()
    assert job is not None
    declared = await serving.one.upload(job, "disk.raw", DISK)
    assert [await refusal(use) for use in uses(serving.one, zombie)] == [(404, 5)] * 5
    await serving.one.update(job, {"result": {"artifacts": [declared]}})
    assert not second.is_present
    (artifact,) = dispatching.artifacts(row)
    assert dispatching.stored(artifact) == DISK


@ensure_deferred
async def test_a_cancelled_job_says_so_at_each_heartbeat(serving: Serving, dispatching: Dispatching) -> None:
    job = await start(serving)
    compose_id = str(job.document["compose_id"])
    await dispatching.actions.finish(compose_id, None, cancelled=True)
    assert await serving.one.is_cancelled(job)
    await dispatching.engine.cancel_plan(compose_id)
    assert await serving.one.is_cancelled(job)
    assert await refusal(serving.two.is_cancelled(job)) == (404, 5)
    result: Json = {"result": {"job_error": {"id": 10, "reason": "broken"}}}
    assert await refusal(serving.one.update(job, result)) == (400, 6)
    assert await refusal(serving.one.upload(job, "disk.raw", b"x")) == (400, 6)


@ensure_deferred
async def test_the_tokens_of_a_deleted_compose_are_unknown(
    serving: Serving, dispatching: Dispatching
) -> None:
    job = await start(serving)
    dispatching.rows.composes.delete(str(job.document["compose_id"]))
    assert [await refusal(use) for use in uses(serving.one, job)] == [(404, 5)] * 5


@ensure_deferred
async def test_tenants_get_only_their_own_jobs(serving: Serving, dispatching: Dispatching) -> None:
    await dispatching.queue("org-1")
    assert await serving.two.poll() is None
    assert await serving.operator.poll() is None
    assert await refusal(serving.two.poll(tenant="ANY")) == (403, 403)
    job = await serving.operator.poll(tenant="ANY")
    assert job is not None
    assert await serving.operator.read_input(job, "base") == b"a base disk"


@ensure_deferred
async def test_a_worker_of_another_tenant_is_unknown(serving: Serving) -> None:
    worker_id = await serving.one.register()
    assert await refusal(serving.two.post_status(worker_id)) == (400, 18)


@ensure_deferred
async def test_an_unavailable_engine_is_503(serving: Serving, dispatching: Dispatching) -> None:
    job = await start(serving)
    declared = await serving.one.upload(job, "disk.raw", DISK)
    dispatching.engine.error = EngineUnavailable("away", retry_after_seconds=5)
    assert await refusal(serving.one.is_cancelled(job)) == (503, 503)
    assert await refusal(serving.one.update(job, {"result": {"artifacts": [declared]}})) == (503, 503)
    dispatching.engine.error = None
    await serving.one.update(job, {"result": {"artifacts": [declared]}})
