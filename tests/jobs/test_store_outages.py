"""An import whose object store is away for a minute."""

from __future__ import annotations

import os
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.jobs.ec2_clients import (
    ImageUpload,
    ec2_client,
    ec2_settings,
    make_disk,
    s3_client,
    wait_for_import,
)
from tests.jobs.running_role import running_role, wait_until
from tests.s3_server import running_s3_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

OUTAGE_SECONDS = 60
RANDOM_BYTES = 170 * 1024**2
"""Of the disk: its download takes longer than the way to the kill."""


def test_import_continues_after_an_outage_of_its_store(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "disk.raw", 200)
    with disk.open("r+b") as file:
        file.seek(20 * 1024**2)
        file.write(os.urandom(RANDOM_BYTES))
    with (
        running_s3_server(tmp_path / "s3") as s3,
        running_role(tmp_path, **ec2_settings(tmp_path, s3)) as role,
        closing(ec2_client(role.url)) as ec2,
        closing(s3_client(s3)) as client,
    ):
        upload = ImageUpload(client, disk, "RAW", "upload")
        answer = ec2.import_volume(AvailabilityZone="here", **upload.parameters)
        task_id = answer["ConversionTask"]["ConversionTaskId"]
        upload.put()

        def message() -> str:
            (task,) = ec2.describe_conversion_tasks(ConversionTaskIds=[task_id])["ConversionTasks"]
            return str(task["StatusMessage"])

        wait_until(lambda: message() == "converting", lambda: role.log)
        s3.process.kill()
        s3.process.wait()
        time.sleep(OUTAGE_SECONDS)
        assert message() == "converting"
        with running_s3_server(s3.directory.parent, s3.port):
            (task,) = wait_for_import(ec2, task_id)
            assert task["ImportVolume"]["BytesConverted"] == upload.size
            assert upload.is_deleted()
