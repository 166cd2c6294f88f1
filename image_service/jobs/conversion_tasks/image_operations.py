"""The operations of EC2's API on images and snapshots: imports of objects, exports, their tasks."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs

from image_service.jobs.conversion_tasks.filters import parse_tags
from image_service.jobs.conversion_tasks.image_replies import (
    describe_export_image,
    describe_import_image,
    describe_import_snapshot,
    image_states,
    snapshot_states,
)
from image_service.jobs.conversion_tasks.image_requests import (
    parse_export_image,
    parse_import_image,
    parse_import_snapshot,
)
from image_service.jobs.conversion_tasks.import_requests import ImportRequest, RequestedDisk
from image_service.jobs.conversion_tasks.operations import (
    MAX_DESCRIPTION_CHARACTERS,
    UNKNOWN_EXPORT,
    UNKNOWN_IMPORT,
    TaskOperations,
    make_record,
    task_id_of,
)
from image_service.jobs.conversion_tasks.task_lists import TaskListing
from image_service.jobs.database.values import UNREADABLE
from image_service.jobs.ec2.errors import Ec2Error, invalid_value, missing_parameter
from image_service.jobs.image_ids import IMAGE, INSTANCE
from image_service.jobs.model import ComposeOrigin, UploadResult, UploadTarget
from image_service.jobs.plans.export_plan import make_export_plan
from image_service.jobs.plans.import_plan import make_object_import_plan
from image_service.jobs.plans.plan import S3
from image_service.jobs.task_model import ImportSource, TaskKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from image_service.jobs.conversion_tasks.image_requests import ObjectImport
    from image_service.jobs.ec2.operations import Ec2Caller, OperationHandler
    from image_service.jobs.imports.objects import FoundImage, ObjectSources
    from image_service.jobs.model import Json

_IMAGE_IMPORTS = TaskListing(
    (TaskKind.IMPORT_IMAGE,),
    "ImportTaskIds",
    "ImportImageTasks",
    UNKNOWN_IMPORT,
    describe_import_image,
    lambda task: str(task["Status"]),
    image_states,
    lambda task_id, state: {"ImportTaskId": task_id, "Status": state, "StatusMessage": UNREADABLE},
)
_SNAPSHOT_IMPORTS = TaskListing(
    (TaskKind.IMPORT_SNAPSHOT,),
    "ImportTaskIds",
    "ImportSnapshotTasks",
    UNKNOWN_IMPORT,
    describe_import_snapshot,
    lambda task: str(task["SnapshotTaskDetail"]["Status"]),
    snapshot_states,
    lambda task_id, state: {
        "ImportTaskId": task_id,
        "SnapshotTaskDetail": {"Status": state, "StatusMessage": UNREADABLE},
    },
)
_IMAGE_EXPORTS = TaskListing(
    (TaskKind.EXPORT_IMAGE,),
    "ExportImageTaskIds",
    "ExportImageTasks",
    UNKNOWN_EXPORT,
    describe_export_image,
    lambda task: str(task["Status"]),
    image_states,
    lambda task_id, state: {"ExportImageTaskId": task_id, "Status": state, "StatusMessage": UNREADABLE},
)


@attrs.frozen(eq=False)
class ImageOperations(TaskOperations):
    """All operations: those of `TaskOperations`, and those on images and snapshots."""

    _sources: ObjectSources = attrs.field(kw_only=True)

    @property
    def handlers(self) -> Mapping[str, OperationHandler]:
        """The operations by name."""
        return {
            **super().handlers,
            "ImportImage": partial(self._answer_once, self._import_image),
            "DescribeImportImageTasks": partial(self._describe, _IMAGE_IMPORTS),
            "ImportSnapshot": partial(self._answer_once, self._import_snapshot),
            "DescribeImportSnapshotTasks": partial(self._describe, _SNAPSHOT_IMPORTS),
            "CancelImportTask": partial(self._answer_once, self._cancel_import_task),
            "ExportImage": partial(self._answer_once, self._export_image),
            "DescribeExportImageTasks": partial(self._describe, _IMAGE_EXPORTS),
        }

    async def _import_image(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        request = parse_import_image(parameters)
        return await self._import_objects(caller, _IMAGE_IMPORTS, request)

    async def _import_snapshot(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        request = parse_import_snapshot(parameters)
        return await self._import_objects(caller, _SNAPSHOT_IMPORTS, request)

    async def _import_objects(self, caller: Ec2Caller, listing: TaskListing, request: ObjectImport) -> Json:
        found = [
            await self._in_s3_thread(partial(self._sources.find, caller, location))
            for location in request.locations
        ]
        origins = {image.origin for image in found}
        record = self._make_import(
            caller.tenant,
            listing.kinds[0],
            _import_request(request, found),
            lambda disks: make_object_import_plan(disks, origins),
        )
        source = ImportSource(tuple(image.url for image in found), tuple(image.manifest() for image in found))
        output = listing.describe(record, self._now())
        output.pop("BootMode", None)  # which only the description of an image's task has
        return await self._add(caller, record, source, output)

    async def _export_image(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        target = parse_export_image(parameters)
        description, name = parameters.get("Description", ""), parameters["ImageId"]
        if len(description) > MAX_DESCRIPTION_CHARACTERS:
            raise invalid_value(f"Description must have at most {MAX_DESCRIPTION_CHARACTERS} characters")
        tags = parse_tags(parameters.get("TagSpecifications", ()), "export-image-task")
        if not name.startswith(IMAGE):
            raise Ec2Error("InvalidAMIID.Malformed", f"ImageId must begin with {IMAGE}")
        find = partial(self._catalog.find, caller.tenant, f"{INSTANCE}{name.removeprefix(IMAGE)}")
        image = await self._in_thread(find)
        if image is None:
            raise Ec2Error("InvalidAMIID.NotFound", f"there is no image {name!a:.100}")
        compose_id = str(uuid4())
        key = target.key(task_id_of(TaskKind.EXPORT_IMAGE, compose_id))
        await self._in_s3_thread(partial(self._buckets.check, caller, target.bucket, key))
        plan = make_export_plan(image, file_format=target.format, bucket=target.bucket, key=key)
        compose = attrs.evolve(
            self._make_compose(compose_id, caller.tenant, ComposeOrigin.EXPORT, plan, image.virtual_size),
            uploads=(UploadResult(UploadTarget(S3), "pending"),),
            source_image=image.stored_id,
        )
        kept = {name: value for name, value in parameters.items() if name != "TagSpecifications"}
        record = make_record(compose, TaskKind.EXPORT_IMAGE, kept, tags=tags)
        output = {
            **describe_export_image(record, self._now()),
            "DiskImageFormat": target.disk_format,
            "RoleName": parameters.get("RoleName"),
        }
        return await self._add(caller, record, None, output)

    async def _cancel_import_task(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        task_id = parameters.get("ImportTaskId", "")
        if not task_id:
            raise missing_parameter("ImportTaskId")
        kinds = (TaskKind.IMPORT_IMAGE, TaskKind.IMPORT_SNAPSHOT)
        answer = {"ImportTaskId": task_id, "PreviousState": "active", "State": "deleting"}
        reason = parameters.get("CancelReason", "")
        return await self._cancel_with(caller, kinds, task_id, UNKNOWN_IMPORT, reason, lambda _: answer)


def _import_request(request: ObjectImport, found: Sequence[FoundImage]) -> ImportRequest:
    """Return the request of an import of images that were found."""
    document: Any = request.document
    disks = [
        {**shown, "Format": image.format_name, "Bytes": image.size}
        for shown, image in zip(document["Disks"], found, strict=True)
    ]
    return ImportRequest(
        document={**document, "Disks": disks},
        disks=tuple(
            RequestedDisk(image.format_name, image.size, image.volume_gib, shown.get("Description", ""))
            for shown, image in zip(disks, found, strict=True)
        ),
        source=ImportSource(()),
        description=request.description,
        platform=request.platform,
        architecture=request.architecture,
        tags=request.tags,
    )
