from __future__ import annotations

import pytest

from image_service.core.errors import InvalidRequest
from image_service.jobs.dispatch.results import WorkerResult, parse_progress
from image_service.jobs.model import Artifact, JobError, JobProgress, JobType, Json, Step

STORED = Artifact("disk.raw", 5, "ab" * 32, "jobs/j/1/disk.raw")
STEP = Step("customize", JobType.CUSTOMIZE, {"output": "disk.raw"})
DECLARED = {"name": "disk.raw", "size": 5, "sha256": "AB" * 32}


def test_a_result_has_the_stored_artifacts_and_known_facts() -> None:
    document = {"artifacts": [DECLARED], "provenance": {"toolkit": "1"}, "log": "done", "other": 1}
    result = WorkerResult.parse(document)
    assert result.error is None
    assert result.resolve(STEP, [STORED]) == [STORED]
    assert set(result.facts) == {"provenance", "log"}


def test_an_error_is_read() -> None:
    document = {"job_error": {"id": 10, "reason": "no room", "details": ["x"]}}
    assert WorkerResult.parse(document).error == JobError(10, "no room", ["x"])


def test_a_long_error_is_cut() -> None:
    document = {"job_error": {"id": 10, "reason": "no room " * 1000, "details": ["x" * 5000]}}
    assert WorkerResult.parse(document).error == JobError(10, "no room " * 500, "")


@pytest.mark.parametrize(
    "document",
    [
        {"artifacts": {}},
        {"artifacts": [{"name": "disk.raw"}]},
        {"artifacts": [{**DECLARED, "size": "5"}]},
        {"artifacts": [{**DECLARED, "name": "../disk.raw"}]},
        {"artifacts": [{**DECLARED, "name": ".disk"}]},
        {"artifacts": [DECLARED, DECLARED]},
        {"job_error": "broken"},
        {"job_error": {"id": "10", "reason": "x"}},
        {"log": "x" * 65_536},
        {"log": ["x"]},
        {"provenance": "toolkit"},
    ],
    ids=str,
)
def test_a_malformed_result_is_refused(document: Json) -> None:
    with pytest.raises(InvalidRequest):
        WorkerResult.parse(document)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"size": 6}, "5 bytes"),
        ({"sha256": "cd" * 32}, "SHA-256 abab"),
        ({"name": "other"}, "must have disk.raw"),
    ],
    ids=str,
)
def test_another_artifact_than_the_uploaded_is_refused(change: Json, expected: str) -> None:
    result = WorkerResult.parse({"artifacts": [{**DECLARED, **change}]})
    with pytest.raises(InvalidRequest, match=expected):
        result.resolve(STEP, [STORED])


def test_an_artifact_that_was_not_uploaded_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not uploaded"):
        WorkerResult.parse({"artifacts": [DECLARED]}).resolve(STEP, [])


def test_progress_is_read() -> None:
    assert parse_progress({"progress": {"done": 1, "total": 2}}) == JobProgress(1, 2)
    assert parse_progress({"progress": {"done": 0, "total": 0, "phase": "a"}}) == JobProgress(0, 0, "a")
    assert parse_progress({}) is None


@pytest.mark.parametrize("progress", [1, {}, {"done": 3, "total": 2}, {"done": "1", "total": 2}], ids=str)
def test_malformed_progress_is_refused(progress: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_progress({"progress": progress})
