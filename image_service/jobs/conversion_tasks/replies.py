"""Tasks as members of EC2's replies. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from image_service.jobs.conversion_tasks.states import converted_bytes, state_of, state_of_volume
from image_service.jobs.image_ids import imported_image_id, instance_alias, volume_alias
from image_service.jobs.model import JobType
from image_service.jobs.task_model import TaskKind
from image_service.server.http.dates import format_rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from image_service.jobs.database.tasks import TaskRecord
    from image_service.jobs.model import JobSummary


def describe_conversion_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return a ``ConversionTask``."""
    task, state = record.task, state_of(record, now)
    document = {
        "ConversionTaskId": task.id,
        "ExpirationTime": format_rfc3339(task.expires_at),
        "State": state.name,
        "StatusMessage": state.message,
        "Tags": _describe_tags(record),
    }
    request: Any = task.request
    jobs = [job for job in record.jobs if job.type is JobType.IMPORT]
    if task.kind is TaskKind.IMPORT_VOLUME:
        return {**document, "ImportVolume": _describe_volume(record, 0, request, jobs)}
    placement = request.get("LaunchSpecification", {}).get("Placement", {})
    zone = {"AvailabilityZone": placement.get("AvailabilityZone", "")}
    volumes = []
    for number, disk in enumerate(request["DiskImages"]):
        volume = _describe_volume(record, number, {**zone, **disk}, jobs)
        of_volume = state_of_volume(record, jobs[number], now) if jobs else state
        volumes.append({**volume, "Status": of_volume.name, "StatusMessage": of_volume.message})
    instance = {
        "InstanceId": instance_alias(record.compose.id),
        "Platform": request["Platform"],
        "Description": request.get("Description", ""),
        "Volumes": volumes,
    }
    return {**document, "ImportInstance": instance}


def _describe_volume(
    record: TaskRecord, number: int, parameters: Mapping[str, Any], jobs: list[JobSummary]
) -> dict[str, Any]:
    image = parameters["Image"]
    zone_id = parameters.get("AvailabilityZoneId")
    volume_id = volume_alias(imported_image_id(record.compose.id, number))
    return {
        "AvailabilityZone": parameters.get("AvailabilityZone", ""),
        **({"AvailabilityZoneId": zone_id} if zone_id else {}),
        "BytesConverted": converted_bytes(jobs[number], image["Bytes"]) if jobs else 0,
        "Description": parameters.get("Description", ""),
        "Image": {
            "Format": image["Format"],
            "Size": image["Bytes"],
            # Clients find bucket and key of their upload by it.
            "ImportManifestUrl": image.get("ImportManifestUrl", ""),
        },
        "Volume": {"Id": volume_id, "Size": parameters["Volume"]["Size"]},
    }


def describe_export_task(record: TaskRecord, now: datetime) -> dict[str, Any]:
    """Return an ``ExportTask``."""
    task, state = record.task, state_of(record, now)
    request: Any = task.request
    return {
        "ExportTaskId": task.id,
        "Description": request.get("Description", ""),
        "State": state.name,
        "StatusMessage": state.message,
        "ExportToS3Task": request["ExportToS3Task"],
        "InstanceExportDetails": {
            "InstanceId": request["InstanceId"],
            "TargetEnvironment": request["TargetEnvironment"],
        },
        "Tags": _describe_tags(record),
    }


def _describe_tags(record: TaskRecord) -> list[dict[str, object]]:
    return [{"Key": key, "Value": value} for key, value in record.task.tags.items()]
