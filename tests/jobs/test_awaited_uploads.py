"""Imports whose uploads do not come: the log stays silent, and the task tells the reason."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.jobs.ec2_clients import ec2_client, import_settings
from tests.jobs.running_role import running_role, wait_until
from tests.server.catalog.origin import Reply, running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.acceptance

LOOKS = 5


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, ""),
        (403, "status 403; its signature is wrong or has expired"),
        (503, "answered with status 503"),
    ],
)
def test_waiting_import_writes_no_warning_and_tells_the_reason(
    status: int, message: str, tmp_path: Path
) -> None:
    with running() as store:
        store.serve("/images/manifest", Reply(status=status))
        settings = import_settings(tmp_path, store.url(""))
        with running_role(tmp_path, **settings, JOBS_WORKER_SLOTS="0") as role:
            ec2 = ec2_client(role.url)
            image = {
                "Format": "RAW",
                "Bytes": 2**20,
                "ImportManifestUrl": store.url("/images/manifest?X-Amz-Signature=secret"),
            }
            begun = len(role.log.splitlines())
            ec2.import_volume(AvailabilityZone="here", Image=image, Volume={"Size": 1})
            wait_until(lambda: len(store.requests) >= LOOKS, lambda: role.log)
            (task,) = ec2.describe_conversion_tasks()["ConversionTasks"]
            lines = [json.loads(line) for line in role.log.splitlines()[begun:]]
    assert task["State"] == "active"
    begin, _, reason = task["StatusMessage"].partition(": ")
    assert (begin, bool(reason)) == ("image upload awaited", bool(message))
    assert message in reason
    assert [line["message"] for line in lines if line["level"] in {"warn", "error", "critical"}] == []
    assert len([line for line in lines if "awaits its upload" in line["message"]]) == 1
