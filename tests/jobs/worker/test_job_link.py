"""Requests of a job that are repeated."""

from __future__ import annotations

from typing import Any

import pytest

from image_service.common.concurrency.backoff import Backoff
from image_service.common.concurrency.interruption import Interruption
from image_service.core.errors import Unavailable
from image_service.jobs.worker import job_link
from image_service.jobs.worker.job_link import JobLink
from image_service.jobs.worker.jobs_client import ReceivedJob
from image_service.jobs.worker.requests import ServerRefusal, StoreRefusal

JOB = ReceivedJob("id", "convert", {}, "/job", "/job/artifacts/")


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_link, "_BACKOFF", Backoff(0, 0))


def persist(*errors: Exception) -> tuple[Any, int, list[str]]:
    """Send a request that raises these errors first; return the answer, the number left and the warnings."""
    left, warnings = list(errors), list[str]()
    client: Any = None

    def request(*_: object) -> str:
        if left:
            raise left.pop(0)
        return "answer"

    link = JobLink(JOB, client, Interruption(), warnings.append)
    try:
        return link.persist(request), len(left), warnings
    except ServerRefusal as error:
        return error, len(left), warnings


def test_unavailable_server_is_asked_until_it_answers() -> None:
    assert persist(*[Unavailable("away")] * 50) == ("answer", 0, ["job id: away; trying again"])


def test_server_whose_store_refuses_is_asked_five_times() -> None:
    refused, left, _ = persist(Unavailable("away"), *[StoreRefusal("denied")] * 9)
    assert (type(refused), str(refused), left) == (ServerRefusal, "denied", 4)


def test_refusals_count_in_a_row() -> None:
    errors = [*[StoreRefusal("denied")] * 4, Unavailable("away")] * 3
    assert persist(*errors)[:2] == ("answer", 0)
