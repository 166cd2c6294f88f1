"""Imports whose uploads do not come: the log stays silent, and the task tells the reason."""

from __future__ import annotations

import json
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.jobs.ec2_clients import ec2_client, import_settings
from tests.jobs.running_role import running_role, wait_until
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.jobs.running_role import RunningRole
    from tests.server.catalog.origin import Origin

pytestmark = pytest.mark.acceptance

LOOKS = 5


@pytest.fixture(scope="module")
def store() -> Iterator[Origin]:
    with running() as origin:
        yield origin


@pytest.fixture(scope="module")
def role(store: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRole]:
    directory = tmp_path_factory.mktemp("role")
    settings = import_settings(directory, store.url(""))
    with running_role(directory, **settings, JOBS_WORKER_SLOTS="0") as running_one:
        yield running_one


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, ""),
        (403, "status 403; its signature is wrong or has expired"),
        (503, "answered with status 503"),
    ],
)
def test_waiting_import_writes_no_warning_and_tells_the_reason(
    status: int, message: str, store: Origin, role: RunningRole
) -> None:
    path = f"/images/{status}"
    store.serve(path, Reply(status=status))
    image = {
        "Format": "RAW",
        "Bytes": 2**20,
        "ImportManifestUrl": store.url(f"{path}?X-Amz-Signature=secret"),
    }
    begun = len(role.log.splitlines())
    with closing(ec2_client(role.url)) as ec2:
        task = ec2.import_volume(AvailabilityZone="here", Image=image, Volume={"Size": 1})["ConversionTask"]
        wait_until(
            lambda: sum(each.target.startswith(path) for each in store.requests) >= LOOKS, lambda: role.log
        )
        (task,) = ec2.describe_conversion_tasks(ConversionTaskIds=[task["ConversionTaskId"]])[
            "ConversionTasks"
        ]
    lines = [json.loads(line) for line in role.log.splitlines()[begun:]]
    assert task["State"] == "active"
    begin, _, reason = task["StatusMessage"].partition(": ")
    assert (begin, bool(reason)) == ("image upload awaited", bool(message))
    assert message in reason
    assert [line["message"] for line in lines if line["level"] in {"warn", "error", "critical"}] == []
    assert len([line for line in lines if "awaits its upload" in line["message"]]) == 1
