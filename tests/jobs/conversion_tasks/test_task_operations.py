"""Behaviour that imports and exports share: tenants, cancellation, repeated signatures, limits."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from image_service.jobs.ec2.errors import Ec2Error
from image_service.jobs.model import ComposeState, JobState
from image_service.jobs.task_model import TaskKind, TaskLimits
from tests.jobs.conversion_tasks.operating import GIB, Operating, volume
from tests.jobs.conversion_tasks.refusals import refusal
from tests.jobs.database.composing import make_image

if TYPE_CHECKING:
    from tests.jobs.database.composing import Rows

CANCEL = "CancelConversionTask"


@pytest.mark.parametrize("name", ["import-vol-0123456789abcdef0", "x", "export-i-1", None])
def test_unknown_tasks_and_those_of_other_tenants_are_unknown(operating: Operating, name: str | None) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    assert operating.call("DescribeConversionTasks", {}, tenant="org-2") == {"ConversionTasks": []}
    for operation, parameters, code in (
        ("DescribeConversionTasks", {"ConversionTaskIds": [name or task_id]}, "InvalidConversionTaskId"),
        (CANCEL, {"ConversionTaskId": name or task_id}, "InvalidConversionTaskId"),
        ("DescribeExportTasks", {"ExportTaskIds": [name or task_id]}, "InvalidExportTaskID.NotFound"),
        ("CancelExportTask", {"ExportTaskId": name or task_id}, "InvalidExportTaskID.NotFound"),
    ):
        assert refusal(operating, operation, parameters, tenant="org-2") == code
    assert refusal(operating, "CancelExportTask", {"ExportTaskId": task_id}) == "InvalidExportTaskID.NotFound"
    assert operating.describe(task_id)["State"] == "active"


def test_waiting_task_is_cancelled_at_once_and_only_once(operating: Operating) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    parameters = {"ConversionTaskId": task_id, "ReasonMessage": "no need"}
    assert operating.call(CANCEL, parameters, digest="first") == {"Return": True}
    described = operating.describe(task_id)
    assert (described["State"], described["StatusMessage"]) == ("cancelled", "cancelled by the user: no need")
    record = operating.record(task_id)
    assert operating.engine.cancelled == [record.compose.id]
    assert operating.rows.composes.import_source(record.compose) is None
    assert operating.call(CANCEL, parameters, digest="first") == {"Return": True}
    assert refusal(operating, CANCEL, parameters) == "IncorrectState"


@pytest.mark.parametrize("stops", [True, False], ids=["worker-stops", "worker-is-silent"])
def test_running_task_is_cancelling_until_its_worker_stops(operating: Operating, *, stops: bool) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    (job,) = operating.record(task_id).jobs
    operating.rows.start(job.id)
    clock = operating.rows.clock
    clock.advance(1)
    operating.call(CANCEL, {"ConversionTaskId": task_id})
    assert operating.describe(task_id)["State"] == "cancelling"
    clock.advance(60)
    assert operating.describe(task_id)["State"] == "cancelling"
    if stops:
        operating.rows.jobs.record_stop(job.id, 1)
    else:
        clock.advance(60)
    described = operating.describe(task_id)
    assert (described["State"], described["StatusMessage"]) == ("cancelled", "cancelled by the user")


def test_completed_task_cannot_be_cancelled(operating: Operating) -> None:
    task_id = operating.import_volume()["ConversionTaskId"]
    operating.rows.composes.finish(operating.record(task_id).compose.id, ComposeState.SUCCESS)
    assert refusal(operating, CANCEL, {"ConversionTaskId": task_id}) == "IncorrectState"
    assert operating.describe(task_id)["State"] == "completed"


def test_repeated_signature_creates_nothing_and_gets_the_first_answer(operating: Operating) -> None:
    rows = operating.rows
    first = operating.import_volume(digest="same")
    rows.composes.finish(operating.record(first["ConversionTaskId"]).compose.id, ComposeState.FAILURE)
    assert operating.import_volume(digest="same") == first
    assert len(operating.engine.started) == 1
    rows.clock.advance(3601)
    rows.tasks.forget_answers(rows.clock() - timedelta(hours=1))
    assert operating.import_volume(digest="same") != first


def test_repeated_signature_of_a_refused_request_creates_nothing(rows: Rows) -> None:
    operating = Operating(rows, limits=TaskLimits(max_tasks=1, max_bytes=5 * GIB))
    task_id = operating.import_volume()["ConversionTaskId"]
    with pytest.raises(Ec2Error) as first:
        operating.import_volume(digest="same")
    operating.call(CANCEL, {"ConversionTaskId": task_id})
    with pytest.raises(Ec2Error) as second:
        operating.import_volume(digest="same")
    assert (second.value.error_code, second.value.detail) == ("ResourceLimitExceeded", first.value.detail)
    operating.import_volume()


def test_equal_requests_at_once_add_one_task_and_cancel_once(operating: Operating) -> None:
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: operating.import_volume(digest="one"), range(8)))
    task_id = answers[0]["ConversionTaskId"]
    assert answers == [answers[0]] * 8

    def cancel(_: int) -> object:
        return operating.call(CANCEL, {"ConversionTaskId": task_id}, digest="two")

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(cancel, range(8))) == [{"Return": True}] * 8
    (record,) = operating.rows.find_tasks("org-1", list(TaskKind))
    assert [job.state for job in record.jobs] == [JobState.CANCELLED]


def test_tenant_has_limits_of_tasks_and_of_bytes(rows: Rows) -> None:
    operating = Operating(rows, limits=TaskLimits(max_tasks=2, max_bytes=5 * GIB))
    first = operating.import_volume()
    operating.import_volume()
    assert refusal(operating, "ImportVolume", volume()) == "ResourceLimitExceeded"
    operating.import_volume(tenant="org-2")
    rows.images.add(make_image(1, source="import:1", volume_bytes=2 * GIB))
    operating.call(CANCEL, {"ConversionTaskId": first["ConversionTaskId"]})
    assert refusal(operating, "ImportVolume", volume()) == "ResourceLimitExceeded"
    operating.import_volume(gib=1)
