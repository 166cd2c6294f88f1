"""Imports and exports that their client cancels, in every state that they have."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.jobs.ec2_clients import (
    ImageUpload,
    base_disk,
    ec2_client,
    ec2_settings,
    images_of,
    make_disk,
    s3_client,
)
from tests.jobs.running_role import RunningRole, running_role, wait_until
from tests.jobs.worker.workers import HeldToolkit, running_worker
from tests.s3_server import BUCKET, running_s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.acceptance

REASON = "another image is wanted"


class Tasks:
    """The imports and exports of a client, and a worker that a test starts."""

    def __init__(self, role: RunningRole, client: Any, directory: Path) -> None:
        self.role = role
        self.ec2 = ec2_client(role.url)
        self.held = HeldToolkit.make(directory / "toolkit")
        self._client = client
        self._disk = make_disk(directory / "disk.raw", 4)
        self._directory = directory

    def start_import(self, name: str) -> tuple[str, ImageUpload]:
        upload = ImageUpload(self._client, self._disk, "RAW", name)
        task = self.ec2.import_volume(AvailabilityZone="here", **upload.parameters)
        return task["ConversionTask"]["ConversionTaskId"], upload

    def start_export(self, description: str) -> str:
        """Start an export; two with one description, in one second, would be one request and one task."""
        task = self.ec2.create_instance_export_task(
            InstanceId=base_disk(self.role)["instance_id"],
            TargetEnvironment="vmware",
            Description=description,
            ExportToS3Task={"S3Bucket": BUCKET, "S3Prefix": "exports/"},
        )
        return str(task["ExportTask"]["ExportTaskId"])

    def find(self, task_id: str) -> dict[str, Any]:
        if task_id.startswith("export-"):
            (task,) = self.ec2.describe_export_tasks(ExportTaskIds=[task_id])["ExportTasks"]
        else:
            found = self.ec2.describe_conversion_tasks(ConversionTaskIds=[task_id])
            (task,) = found["ConversionTasks"]
        return dict(task)

    def wait_for(self, task_id: str, message: str) -> None:
        wait_until(lambda: message in self.find(task_id)["StatusMessage"], lambda: f"{self.find(task_id)}")

    def cancel(self, task_id: str) -> None:
        """Cancel a task, and wait until it is cancelled."""
        self._cancel(task_id)
        assert self.find(task_id)["State"] in {"cancelling", "cancelled"}
        wait_until(lambda: self.find(task_id)["State"] == "cancelled", lambda: f"{self.find(task_id)}")
        assert "cancelled by the user" in self.find(task_id)["StatusMessage"]

    def check_ended(self, task_id: str) -> None:
        """Fail the test unless a task that has ended cannot be cancelled again."""
        time.sleep(1)  # in the same second, the request would have the same signature, and the same answer
        with pytest.raises(ClientError) as caught:
            self._cancel(task_id)
        assert caught.value.response["Error"]["Code"] == "IncorrectState"

    @contextmanager
    def worker_with_a_job(self) -> Iterator[None]:
        """Run a worker whose job ends only by being cancelled; its scratch is empty then."""
        calls = len(self.held.calls())
        with running_worker(f"unix:{self.role.data_dir}/jobs.sock", self._directory, self.held.program):
            wait_until(lambda: len(self.held.calls()) > calls, lambda: self.role.log)
            yield
            self.held.wait_until_ended()

    def _cancel(self, task_id: str) -> None:
        if task_id.startswith("export-"):
            self.ec2.cancel_export_task(ExportTaskId=task_id)
        else:
            self.ec2.cancel_conversion_task(ConversionTaskId=task_id, ReasonMessage=REASON)


@pytest.mark.soak
def test_task_is_cancelled_in_every_state(tmp_path: Path) -> None:
    with (
        running_s3_server(tmp_path / "s3") as s3,
        running_role(tmp_path, **ec2_settings(tmp_path, s3), JOBS_WORKER_SLOTS="0") as role,
    ):
        tasks = Tasks(role, s3_client(s3), tmp_path)
        awaiting, _ = tasks.start_import("awaiting")
        tasks.wait_for(awaiting, "image upload awaited")
        tasks.cancel(awaiting)
        assert REASON in tasks.find(awaiting)["StatusMessage"]
        tasks.check_ended(awaiting)

        queued, upload = tasks.start_import("queued")
        upload.put()
        tasks.wait_for(queued, "conversion pending: no worker is connected")
        tasks.cancel(queued)
        assert not upload.is_deleted()

        running, upload = tasks.start_import("running")
        upload.put()
        with tasks.worker_with_a_job():
            tasks.wait_for(running, "converting")
            tasks.cancel(running)
        assert not upload.is_deleted()

        exported = tasks.start_export("queued")
        tasks.wait_for(exported, "conversion pending")
        tasks.cancel(exported)

        exported = tasks.start_export("running")
        with tasks.worker_with_a_job():
            tasks.wait_for(exported, "converting")
            tasks.cancel(exported)
        tasks.check_ended(exported)
        assert images_of(role) == []
        assert "Contents" not in s3_client(s3).list_objects_v2(Bucket=BUCKET, Prefix="exports/")
