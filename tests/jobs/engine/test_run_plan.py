from __future__ import annotations

from datetime import timedelta

import pytest

from image_service.jobs.engine.run_plan import retry_delay
from image_service.jobs.model import JobType


@pytest.mark.parametrize("action", [JobType.UPLOAD, JobType.IMPORT])
def test_transfer_is_tried_for_a_minute_at_least(action: JobType) -> None:
    delays = [delay for attempt in range(1, 10) if (delay := retry_delay(action, attempt))]
    assert len(delays) == 8
    assert timedelta(seconds=60) < sum(delays, timedelta()) < timedelta(seconds=120)
    assert max(delays) == timedelta(seconds=15)


@pytest.mark.parametrize("action", [JobType.CUSTOMIZE, JobType.CONVERT])
def test_other_jobs_have_three_attempts(action: JobType) -> None:
    assert [bool(retry_delay(action, attempt)) for attempt in (1, 2, 3)] == [True, True, False]
