"""The operations that import: parameters, rows, states."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from image_service.jobs.catalog_image import DiskLayout
from image_service.jobs.conversion_tasks.operations import UPLOAD_TIME
from image_service.jobs.database.tables import TABLES
from image_service.jobs.model import ComposeOrigin, ComposeState, JobError, JobProgress, JobType
from image_service.jobs.task_model import ImportSource
from tests.jobs.conversion_tasks.operating import GIB, SECRET_URL, Operating, instance, volume
from tests.jobs.conversion_tasks.refusals import refusal
from tests.jobs.database.composing import NOW, make_artifact, make_image

if TYPE_CHECKING:
    from tests.jobs.database.composing import Rows


def test_import_of_a_volume_is_a_compose_with_a_sealed_source(operating: Operating) -> None:
    task = operating.import_volume()
    volume_id = task["ImportVolume"]["Volume"]["Id"]
    assert task == {
        "ConversionTaskId": volume_id.replace("vol-", "import-vol-"),
        "ExpirationTime": "2026-11-30T12:00:00Z",
        "State": "active",
        "StatusMessage": "image upload awaited",
        "Tags": [],
        "ImportVolume": {
            "AvailabilityZone": "zone-1",
            "BytesConverted": 0,
            "Description": "a disk",
            "Image": {"Format": "VMDK", "Size": GIB, "ImportManifestUrl": SECRET_URL.partition("?")[0]},
            "Volume": {"Id": volume_id, "Size": 2},
        },
    }
    assert operating.describe(task["ConversionTaskId"]) == task
    record = operating.record(task["ConversionTaskId"])
    assert (record.compose.origin, record.compose.image_type) == (ComposeOrigin.IMPORT, None)
    assert record.task.expires_at == NOW + UPLOAD_TIME
    assert [job.type for job in record.jobs] == [JobType.IMPORT]
    assert operating.engine.started == [record.compose.id]
    assert operating.rows.composes.import_source(record.compose) == ImportSource((SECRET_URL,))
    assert operating.rows.composes.customization(record.compose) is None


def test_instance_has_an_image_for_each_disk(operating: Operating) -> None:
    answer = operating.call("ImportInstance", instance())["ConversionTask"]
    imported = answer["ImportInstance"]
    assert (imported["Platform"], imported["Description"]) == ("Linux", "a machine")
    assert [each["Volume"]["Size"] for each in imported["Volumes"]] == [2, 3]
    assert [each["Status"] for each in imported["Volumes"]] == ["active", "active"]
    assert {each["AvailabilityZone"] for each in imported["Volumes"]} == {"zone-2"}
    assert answer["ConversionTaskId"] == f"import-{imported['InstanceId']}"
    first, second = (each["Volume"]["Id"] for each in imported["Volumes"])
    assert first == imported["InstanceId"].replace("i-", "vol-")
    assert first != second
    record = operating.record(answer["ConversionTaskId"])
    images = _registered(operating, record.task.id)
    assert [image["name"] for image in images] == ["first", "a machine"]
    assert [image["source"] for image in images] == [f"import:{record.task.id}", f"import:{record.task.id}/2"]
    assert [image["volume_bytes"] for image in images] == [2 * GIB, 3 * GIB]
    assert {(image["architecture"], image["layout"]) for image in images} == {("aarch64", "disk")}
    assert images[0]["launch_specification"]["InstanceType"] == "m1.small"


def test_rows_have_no_secret_in_plain_text(operating: Operating) -> None:
    operating.call("ImportInstance", instance())
    operating.import_volume()

    def dump(connection: sa.Connection) -> str:
        return str([connection.execute(sa.select(table)).all() for table in TABLES.sorted_tables])

    text = operating.rows.database.transact(dump)
    assert "m1.small" in text
    assert "disk.manifest" in text  # bucket and key of an upload are in replies
    assert "s3cr3t" not in text


def _registered(operating: Operating, task_id: str) -> list[dict[str, Any]]:
    """Return the images that a task registers."""
    steps = operating.record(task_id).compose.plan.steps
    register: Any = next(step for step in steps if step.action == "register-image")
    return list(register.arguments["images"])


def with_additional_info(text: str) -> dict[str, Any]:
    return instance(LaunchSpecification={"AdditionalInfo": text})


def test_additional_info_names_images_and_the_layout(operating: Operating) -> None:
    kernel = make_image(1)
    operating.rows.images.add(kernel)
    parameters = with_additional_info(json.dumps({"kernel": kernel.instance_alias, "layout": "PARTITION"}))
    answer = operating.call("ImportInstance", parameters)["ConversionTask"]
    images = _registered(operating, answer["ConversionTaskId"])
    assert {image["layout"] for image in images} == {DiskLayout.PARTITION}
    assert refusal(operating, "ImportInstance", parameters, tenant="org-2") == "InvalidParameterValue"


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[]",
        "[" * 100_000,
        '{"kernel": "i-0123"}',
        '{"virtualization": "x"}',
        '{"layout": 1}',
        '{"unknown": "x"}',
        r'{"kernel": "\u0000"}',
        r'{"ramdisk": "\ud800"}',
    ],
    ids=range(9),
)
def test_wrong_additional_info_is_refused(operating: Operating, text: str) -> None:
    assert refusal(operating, "ImportInstance", with_additional_info(text)) == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("parameters", "code"),
    [
        ({"Volume": {"Size": 2}}, "MissingParameter"),
        ({**volume(), "Volume": {}}, "MissingParameter"),
        (volume(Format=""), "MissingParameter"),
        (volume(Format="ISO"), "InvalidParameterValue"),
        (volume(gib=0), "InvalidParameterValue"),
        (volume(gib=16385), "InvalidParameterValue"),
        (volume(Bytes=0), "InvalidParameterValue"),
        (volume(Bytes=-1), "InvalidParameterValue"),
        (volume(Bytes=2 * GIB + 1), "InvalidParameterValue"),
        (volume(ImportManifestUrl="https://elsewhere.example/m"), "InvalidParameterValue"),
        (volume(ImportManifestUrl="http://store.example/m"), "InvalidParameterValue"),
        (volume(ImportManifestUrl="file:///etc/passwd"), "InvalidParameterValue"),
    ],
    ids=range(12),
)
def test_wrong_volume_is_refused(operating: Operating, parameters: dict[str, Any], code: str) -> None:
    assert refusal(operating, "ImportVolume", parameters) == code
    assert operating.engine.started == []


def test_file_of_a_vhd_is_larger_than_its_disk(operating: Operating) -> None:
    operating.call("ImportVolume", volume(gib=2, Format="vhd", Bytes=2 * GIB + 512))
    parameters = volume(gib=2, Format="VHD", Bytes=4 * GIB + 1)
    assert refusal(operating, "ImportVolume", parameters) == "InvalidParameterValue"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"Platform": ""}, "MissingParameter"),
        ({"Platform": "BeOS"}, "InvalidParameterValue"),
        ({"DiskImages": []}, "MissingParameter"),
        ({"DiskImages": [{}]}, "MissingParameter"),
        ({"DiskImages": instance()["DiskImages"] * 9}, "InvalidParameterValue"),
        ({"LaunchSpecification": {"Architecture": "mips"}}, "InvalidParameterValue"),
    ],
    ids=range(6),
)
def test_wrong_instance_is_refused(operating: Operating, values: dict[str, Any], code: str) -> None:
    assert refusal(operating, "ImportInstance", instance(**values)) == code


def test_imports_are_refused_without_object_stores(rows: Rows) -> None:
    operating = Operating(rows, stores=frozenset())
    assert refusal(operating, "ImportVolume", volume()) == "UnsupportedOperation"


def test_import_is_described_until_it_is_completed(operating: Operating) -> None:
    task_id, rows = operating.import_volume()["ConversionTaskId"], operating.rows
    record = operating.record(task_id)
    (job,) = record.jobs
    rows.composes.set_state(record.compose.id, ComposeState.BUILDING)
    assert operating.describe(task_id)["StatusMessage"] == "image upload awaited"
    rows.queues.mark_queued(job.id, 1)
    rows.workers.add("w1", "org-1", "aarch64")
    assert operating.describe(task_id)["StatusMessage"] == "conversion pending: no worker is connected"
    rows.workers.add("w2", "org-1", "x86_64")
    assert operating.describe(task_id)["StatusMessage"] == "conversion pending"
    rows.clock.advance(121)
    assert operating.describe(task_id)["StatusMessage"] == "conversion pending: no worker is connected"
    rows.start(job.id)
    seen = []
    for progress in (
        None,
        JobProgress(3, 3, "fetch"),
        JobProgress(1, 2, "download"),
        JobProgress(50, 100, "convert"),
        JobProgress(1, 1, "send"),
    ):
        if progress is not None:
            rows.jobs.record_progress(job.id, 1, progress)
        described = operating.describe(task_id)
        assert (described["State"], described["StatusMessage"]) == ("active", "converting")
        seen.append(described["ImportVolume"]["BytesConverted"])
    assert seen == [0, 0, GIB // 8, GIB // 8 * 3, GIB]
    artifact = make_artifact(job.id, name="disk.qcow2")
    rows.objects.add_artifact(job.id, 1, artifact)
    rows.finish(job.id, artifact)
    rows.composes.finish(record.compose.id, ComposeState.SUCCESS, image=artifact)
    described = operating.describe(task_id)
    assert (described["State"], described["StatusMessage"]) == ("completed", "")
    assert described["ImportVolume"]["BytesConverted"] == GIB
    assert rows.composes.import_source(record.compose) is None


def test_failure_is_a_cancellation_with_its_reason(operating: Operating) -> None:
    answer = operating.call("ImportInstance", instance())["ConversionTask"]
    task_id = answer["ConversionTaskId"]
    error = JobError(10, "step import: the disk has a backing file")
    operating.rows.composes.finish(operating.record(task_id).compose.id, ComposeState.FAILURE, error=error)
    described = operating.describe(task_id)
    reason = "disk 1: the disk has a backing file"
    assert (described["State"], described["StatusMessage"]) == ("cancelled", reason)
    for each in described["ImportInstance"]["Volumes"]:
        assert (each["Status"], each["StatusMessage"]) == ("cancelled", reason)
