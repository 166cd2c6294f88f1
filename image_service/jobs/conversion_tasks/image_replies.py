"""Tasks on images and snapshots as members of EC2's replies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.jobs.conversion_tasks.states import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    names_of,
    progress_percent,
    state_of,
)
from image_service.jobs.image_ids import IMAGE, SNAPSHOT, alias_digits, imported_image_id
from image_service.jobs.model import ComposeState

if TYPE_CHECKING:
    from datetime import datetime

    from image_service.jobs.database.tasks import TaskRecord

_STATUSES = {CANCELLING: "deleting", CANCELLED: "deleted"}
_FAILED_SNAPSHOT = "error"  # for which botocore's waiter snapshot_imported looks


def image_states(state: ComposeState) -> tuple[str, ...]:
    """Return the states that tasks of images may have whose compose has that state."""
    return tuple(_STATUSES.get(name, name) for name in names_of(state))


def snapshot_states(state: ComposeState) -> tuple[str, ...]:
    """Return the states that imports of snapshots may have whose compose has that state."""
    return (_FAILED_SNAPSHOT,) if state is ComposeState.FAILURE else image_states(state)


def describe_import_image(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return an ``ImportImageTask``."""
    state = state_of(record, now)
    request: Any = record.task.request
    document = {
        **{name: request[name] for name in _IMAGE_MEMBERS if name in request},
        "ImportTaskId": record.task.id,
        "Description": request.get("Description", ""),
        "Encrypted": False,
        "Progress": str(progress_percent(record)),
        "SnapshotDetails": [_describe_disk(record, number, now) for number, _ in enumerate(request["Disks"])],
        "Status": _STATUSES.get(state.name, state.name),
        "StatusMessage": state.message,
        "Tags": _describe_tags(record),
    }
    if state.name == COMPLETED:
        document["ImageId"] = f"{IMAGE}{alias_digits(record.compose.id)}"
    return document


_IMAGE_MEMBERS = (
    *("Architecture", "BootMode", "Hypervisor", "LicenseSpecifications", "LicenseType", "Platform"),
    "UsageOperation",
)
"""Of a request, which replies repeat."""


def describe_import_snapshot(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return an ``ImportSnapshotTask``."""
    description = record.task.request.get("Description", "")
    detail = {"Description": description, "Encrypted": False, **_describe_disk(record, 0, now)}
    detail.pop("DeviceName", None)
    if record.compose.state is ComposeState.FAILURE:
        detail["Status"] = _FAILED_SNAPSHOT
    return {
        "ImportTaskId": record.task.id,
        "Description": description,
        "SnapshotTaskDetail": detail,
        "Tags": _describe_tags(record),
    }


def describe_export_image(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return an ``ExportImageTask``."""
    state = state_of(record, now)
    request: Any = record.task.request
    return {
        "ExportImageTaskId": record.task.id,
        "Description": request.get("Description", ""),
        "ImageId": request["ImageId"],
        "Progress": str(progress_percent(record)),
        "S3ExportLocation": request["S3ExportLocation"],
        "Status": _STATUSES.get(state.name, state.name),
        "StatusMessage": state.message,
        "Tags": _describe_tags(record),
    }


def _describe_disk(record: TaskRecord, number: int, now: datetime) -> dict[str, Any]:
    """Return the members of ``SnapshotDetail`` and ``SnapshotTaskDetail`` that a disk has."""
    state = state_of(record, now)
    request: Any = record.task.request
    disk = request["Disks"][number]
    described = {
        **{name: value for name, value in disk.items() if name != "Bytes"},
        "DiskImageSize": float(disk["Bytes"]),
        "Progress": str(progress_percent(record)),
        "Status": _STATUSES.get(state.name, state.name),
        "StatusMessage": state.message,
    }
    if state.name == COMPLETED:
        image_id = imported_image_id(record.compose.id, number)
        described["SnapshotId"] = f"{SNAPSHOT}{alias_digits(image_id)}"
    return described


def _describe_tags(record: TaskRecord) -> list[dict[str, object]]:
    return [{"Key": key, "Value": value} for key, value in record.task.tags.items()]
