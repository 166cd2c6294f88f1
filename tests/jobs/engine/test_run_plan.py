from __future__ import annotations

from datetime import timedelta

import pytest

from image_service.jobs.engine.run_plan import JOB_FAILED, TRANSFER_FAILED, job_retries
from image_service.jobs.model import JobType


@pytest.mark.parametrize(("action", "is_final"), [(JobType.UPLOAD, False), (JobType.IMPORT, True)])
def test_transfer_is_tried_for_a_minute_at_least(action: JobType, *, is_final: bool) -> None:
    policy = job_retries(action)
    assert policy.maximum_interval
    waits = [
        min(policy.initial_interval * policy.backoff_coefficient**attempt, policy.maximum_interval)
        for attempt in range(policy.maximum_attempts - 1)
    ]
    assert timedelta(seconds=60) < sum(waits, timedelta()) < timedelta(seconds=120)
    final = policy.non_retryable_error_types or ()
    assert (JOB_FAILED in final, TRANSFER_FAILED in final) == (is_final, False)


@pytest.mark.parametrize("action", [JobType.CUSTOMIZE, JobType.CONVERT])
def test_only_lost_workers_of_other_jobs_are_replaced(action: JobType) -> None:
    policy = job_retries(action)
    assert policy.maximum_attempts == 3
    assert {JOB_FAILED, TRANSFER_FAILED} <= set(policy.non_retryable_error_types or ())
