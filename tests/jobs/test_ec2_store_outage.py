"""Imports and exports while the S3 server of clients, exports and artifacts is down for a minute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.jobs.ec2_clients import (
    ImageUpload,
    base_disk,
    ec2_client,
    ec2_settings,
    images_of,
    make_disk,
    s3_client,
    wait_for_export,
    wait_for_import,
)
from tests.jobs.running_role import running_role
from tests.s3_server import BUCKET, running_s3_server

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.acceptance, pytest.mark.soak]

OUTAGE_SECONDS = 60
TASKS = 6
STEP_SECONDS = 0.4
"""Between the requests of two tasks: the outage begins at another moment of each."""


def test_outage_of_the_store_for_a_minute_costs_no_task(tmp_path: Path) -> None:
    disk = make_disk(tmp_path / "disk.raw", 4)
    directory = tmp_path / "s3"
    with running_s3_server(directory) as s3:
        port = s3.port
        variables = {**ec2_settings(tmp_path, s3), "STORE_URL": f"s3://{BUCKET}/store"}
        client = s3_client(s3)
        role_directory = tmp_path / "role"
        role_directory.mkdir()
        with running_role(role_directory, **variables) as role:
            ec2 = ec2_client(role.url)
            imports, exports = [], []
            for number in range(TASKS):
                upload = ImageUpload(client, disk, "RAW", f"upload-{number}")
                task = ec2.import_volume(AvailabilityZone="here", **upload.parameters)
                imports.append(task["ConversionTask"]["ConversionTaskId"])
                upload.put()
                task = ec2.create_instance_export_task(
                    InstanceId=base_disk(role)["instance_id"],
                    TargetEnvironment="vmware",
                    ExportToS3Task={"S3Bucket": BUCKET},
                )
                exports.append(task["ExportTask"]["ExportTaskId"])
                time.sleep(STEP_SECONDS)
            s3.process.kill()
            s3.process.wait()
            time.sleep(OUTAGE_SECONDS)
            with running_s3_server(directory, port):
                wait_for_import(ec2, *imports)
                wait_for_export(ec2, *exports)
                assert len(images_of(role)) == TASKS
