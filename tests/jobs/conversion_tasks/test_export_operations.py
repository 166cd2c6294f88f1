"""The operations that export."""

from __future__ import annotations

from typing import Any

import pytest

from image_service.core.errors import Conflict, StoreFailed
from image_service.jobs.model import ComposeOrigin, UploadResult, UploadTarget
from tests.jobs.conversion_tasks.operating import BASE_DISK, Operating, export
from tests.jobs.conversion_tasks.refusals import refusal
from tests.jobs.database.composing import make_image

TAGS = [{"ResourceType": "export-instance-task", "Tags": [{"Key": "for", "Value": "test"}]}]


def test_stored_image_is_exported_and_stays_until_the_end(operating: Operating) -> None:
    rows, image = operating.rows, make_image(1, format="qcow2")
    rows.images.add(image)
    parameters = export(image.instance_alias, Description="x", TagSpecifications=TAGS)
    answer = operating.call("CreateInstanceExportTask", parameters)["ExportTask"]
    task_id = answer["ExportTaskId"]
    key = f"made/{task_id}.ova"
    assert answer == {
        "ExportTaskId": task_id,
        "Description": "x",
        "State": "active",
        "StatusMessage": "conversion pending",
        "ExportToS3Task": {
            "DiskImageFormat": "VMDK",
            "ContainerFormat": "ova",
            "S3Bucket": "exports",
            "S3Key": key,
        },
        "InstanceExportDetails": {"InstanceId": image.instance_alias, "TargetEnvironment": "vmware"},
        "Tags": TAGS[0]["Tags"],
    }
    assert operating.describe(task_id) == {**answer, "StatusMessage": "conversion pending"}
    assert operating.buckets.checked == [("org-1", "exports", key)]
    record = operating.record(task_id)
    assert (record.compose.origin, record.compose.source_image) == (ComposeOrigin.EXPORT, image.id)
    assert record.compose.uploads == (UploadResult(UploadTarget("aws.s3"), "pending"),)
    with pytest.raises(Conflict):
        rows.images.delete(image.id)
    convert, upload = record.jobs
    rows.start(convert.id)
    assert operating.describe(task_id)["StatusMessage"] == "converting"
    rows.finish(convert.id)
    rows.queues.mark_queued(upload.id, 1)
    assert operating.describe(task_id)["StatusMessage"] == "upload pending: no worker is connected"
    rows.workers.add("w1", "org-1", "x86_64")
    assert operating.describe(task_id)["StatusMessage"] == "upload pending"
    rows.start(upload.id)
    assert operating.describe(task_id)["StatusMessage"] == "uploading"
    operating.call("CancelExportTask", {"ExportTaskId": task_id})
    assert operating.describe(task_id)["State"] == "cancelling"
    assert rows.images.delete(image.id)


def test_base_disk_is_exported(operating: Operating) -> None:
    answer = operating.call("CreateInstanceExportTask", export(BASE_DISK.instance_alias))["ExportTask"]
    record = operating.record(answer["ExportTaskId"])
    assert record.compose.source_image is None
    assert record.compose.plan.steps[0].action == "fetch-base"


def test_export_tasks_are_filtered(operating: Operating) -> None:
    plain, tagged = (
        operating.call("CreateInstanceExportTask", export(BASE_DISK.instance_alias, **values))["ExportTask"]
        for values in ({}, {"TagSpecifications": TAGS})
    )
    found = operating.call("DescribeExportTasks", {})["ExportTasks"]
    assert {task["ExportTaskId"] for task in found} == {plain["ExportTaskId"], tagged["ExportTaskId"]}
    filters = [{"Name": "tag:for", "Values": ["te*"]}]
    found = operating.call("DescribeExportTasks", {"Filters": filters})["ExportTasks"]
    assert [task["ExportTaskId"] for task in found] == [tagged["ExportTaskId"]]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"InstanceId": "vol-1"}, "InvalidInstanceID.Malformed"),
        ({"InstanceId": "i-1"}, "InvalidInstanceID.NotFound"),
        ({"TargetEnvironment": "qemu"}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "instance"}]}, "InvalidParameterValue"),
        ({"Description": "d" * 256}, "InvalidParameterValue"),
    ],
    ids=range(5),
)
def test_wrong_export_is_refused(operating: Operating, values: dict[str, Any], code: str) -> None:
    parameters = export(BASE_DISK.instance_alias, **values)
    assert refusal(operating, "CreateInstanceExportTask", parameters) == code
    assert operating.engine.started == []


def test_image_of_another_tenant_is_unknown(operating: Operating) -> None:
    image = make_image(1)
    operating.rows.images.add(image)
    parameters = export(image.instance_alias)
    code = refusal(operating, "CreateInstanceExportTask", parameters, tenant="org-2")
    assert code == "InvalidInstanceID.NotFound"


def test_export_is_not_added_while_its_bucket_cannot_be_checked(operating: Operating) -> None:
    operating.buckets.error = StoreFailed("no S3")
    with pytest.raises(StoreFailed):
        operating.call("CreateInstanceExportTask", export(BASE_DISK.instance_alias))
    assert operating.call("DescribeExportTasks", {}) == {"ExportTasks": []}
