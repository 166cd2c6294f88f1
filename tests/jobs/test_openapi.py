"""Schemathesis compares the documents of the composer API and the worker API with the role."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from tests.acceptance.test_openapi import check_api
from tests.jobs.running_role import API, running_role, wait_until
from tests.variants import soaked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.jobs.running_role import RunningRole

pytestmark = pytest.mark.acceptance

WORKER_API = "/api/image-builder-worker/v1"
# The head of a request is checked before its path is: no web page may send content that is not JSON.
CONFIG = """
    [[operations]]
    include-path = "/jobs/{token}/artifacts/{name}"
    checks.unsupported_method.enabled = false
"""

ALL_PHASES = soaked("coverage,fuzzing,stateful")


@pytest.fixture(scope="module")
def role(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    with running_role(tmp_path_factory.mktemp("role"), JOBS_POLL_TIMEOUT="0.1") as running:
        fetch_base_disks(running)
        yield running


def fetch_base_disks(role: RunningRole) -> None:
    """Wait until all base disks can be downloaded: before, 503 is right."""

    def are_fetched() -> bool:
        images = json.loads(role.get("/images").body)["items"]
        first = {"Range": "bytes=0-0"}
        answers = [role.get(f"/images/{image['id']}/download", first) for image in images]
        return all(answer.status == HTTPStatus.PARTIAL_CONTENT for answer in answers)

    wait_until(are_fetched, lambda: role.log)


@pytest.mark.parametrize("phases", [ALL_PHASES])
@pytest.mark.parametrize("path", [API, WORKER_API], ids=["composer", "worker"])
def test_api_does_what_its_document_says(role: RunningRole, tmp_path: Path, path: str, phases: str) -> None:
    config = CONFIG if path == WORKER_API else ""
    # Like upstream's, their documents do not say all that is checked: which ids, images and jobs exist.
    options = ("--phases", phases, "--exclude-checks", "positive_data_acceptance")
    check_api(f"{role.url}{path}", tmp_path, *options, config=config)


@pytest.mark.parametrize("phases", ["fuzzing", ALL_PHASES])
def test_administrative_listener_does_what_its_document_says(
    role: RunningRole, tmp_path: Path, phases: str
) -> None:
    check_api(role.admin_url, tmp_path, "--phases", phases)
