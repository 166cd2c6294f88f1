"""The operations of EC2's API that import, export, describe and cancel."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs
from twisted.logger import Logger

from image_service.core.errors import BudgetExceeded, NotFound, TaskLimitReached
from image_service.jobs.conversion_tasks.filters import parse_tags
from image_service.jobs.conversion_tasks.import_requests import parse_import_instance, parse_import_volume
from image_service.jobs.conversion_tasks.replies import (
    describe_conversion_task,
    describe_export_task,
)
from image_service.jobs.conversion_tasks.states import names_of
from image_service.jobs.conversion_tasks.task_lists import ID_FILTER, TaskListing, TaskLists
from image_service.jobs.database.statements import utc_now
from image_service.jobs.database.tasks import TaskRecord
from image_service.jobs.database.values import UNREADABLE
from image_service.jobs.ec2.errors import Ec2Error, invalid_value
from image_service.jobs.exports.target import parse_export_target
from image_service.jobs.image_ids import INSTANCE, alias_digits, imported_image_id
from image_service.jobs.model import (
    Compose,
    ComposeOrigin,
    ComposeState,
    UploadResult,
    UploadTarget,
)
from image_service.jobs.plans.export_plan import make_export_plan
from image_service.jobs.plans.import_plan import ImportedDisk, make_import_plan
from image_service.jobs.plans.plan import S3
from image_service.jobs.plans.sizes import most_bytes
from image_service.jobs.task_model import ConversionTask, TaskAnswer, TaskKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.http.origins import AllowedOrigins
    from image_service.jobs.artifacts.image_catalog import ImageCatalog
    from image_service.jobs.catalog_image import CatalogImage
    from image_service.jobs.conversion_tasks.import_requests import ImportRequest
    from image_service.jobs.database.tasks import TaskRepository
    from image_service.jobs.database.workers import WorkerRepository
    from image_service.jobs.dispatch.compose_plans import ComposePlans
    from image_service.jobs.ec2.operations import Ec2Caller, OperationHandler
    from image_service.jobs.exports.buckets import ExportBuckets
    from image_service.jobs.model import ComposeBase, ComposePlan, Json
    from image_service.jobs.task_model import ImportSource, TaskLimits

UPLOAD_TIME = timedelta(hours=168)
"""The longest time for which an import waits for its upload."""

_IMPORTS = (TaskKind.IMPORT_VOLUME, TaskKind.IMPORT_INSTANCE)
_EXPORTS = (TaskKind.EXPORT_INSTANCE, TaskKind.EXPORT_IMAGE)  # which CancelExportTask cancels
UNKNOWN_IMPORT = "InvalidConversionTaskId"
UNKNOWN_EXPORT = "InvalidExportTaskID.NotFound"
MAX_DESCRIPTION_CHARACTERS = 255  # of an export, as on EC2: filters compare it
_REFUSAL = "Refusal"  # in the place of an output: code and detail of an error
_PARAMETERS = "ParametersDigest"  # beside the members of an output: of the request with a ClientToken
_IMPORT_TASKS = TaskListing(
    _IMPORTS,
    "ConversionTaskIds",
    "ConversionTasks",
    UNKNOWN_IMPORT,
    describe_conversion_task,
    lambda task: str(task["State"]),
    names_of,
    lambda task_id, state: {"ConversionTaskId": task_id, "State": state, "StatusMessage": UNREADABLE},
    has_pages=False,
)
_EXPORT_TASKS = TaskListing(
    (TaskKind.EXPORT_INSTANCE,),
    "ExportTaskIds",
    "ExportTasks",
    UNKNOWN_EXPORT,
    describe_export_task,
    lambda task: str(task["State"]),
    names_of,
    lambda task_id, state: {"ExportTaskId": task_id, "State": state, "StatusMessage": UNREADABLE},
    state_filter="state",
    filters={
        ID_FILTER: lambda task: task.id,
        "description": lambda task: str(task.request.get("Description", "")),
    },
    has_pages=False,
)
_log = Logger()


@attrs.frozen
class TaskOptions:
    """The settings of tasks.

    Args:
        origins: of imports; none: they are refused.
        architecture: of the workers that convert, by its RPM name; that of images which name none.
        heartbeat_seconds: a worker without a request for longer is not connected.
    """

    origins: AllowedOrigins
    limits: TaskLimits
    architecture: str
    heartbeat_seconds: float


@attrs.frozen(eq=False)
class TaskOperations:
    """The operations. Each sees the tasks and images of the caller's tenant; others are unknown to it.

    A changing request is answered once: one with the same signature, or the same `ClientToken` and equal
    parameters, gets the first answer.

    Args:
        in_thread: calls rows and catalog in a thread.
        in_s3_thread: calls buckets in another thread: S3 may be slow.
        now: in UTC.
    """

    _tasks: TaskRepository
    _workers: WorkerRepository
    _catalog: ImageCatalog
    _buckets: ExportBuckets
    _plans: ComposePlans
    _in_thread: InThread
    _in_s3_thread: InThread
    _options: TaskOptions
    _now: Callable[[], datetime] = utc_now

    @property
    def handlers(self) -> Mapping[str, OperationHandler]:
        """The operations by name."""
        return {
            "ImportVolume": partial(self._answer_once, self._import_volume),
            "ImportInstance": partial(self._answer_once, self._import_instance),
            "DescribeConversionTasks": partial(self._describe, _IMPORT_TASKS),
            "CancelConversionTask": partial(self._answer_once, self._cancel_conversion_task),
            "CreateInstanceExportTask": partial(self._answer_once, self._create_export_task),
            "DescribeExportTasks": partial(self._describe, _EXPORT_TASKS),
            "CancelExportTask": partial(self._answer_once, self._cancel_export_task),
        }

    async def _answer_once(
        self, handle: OperationHandler, caller: Ec2Caller, parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Carry out a changing request; one whose signature was seen before gets the first answer.

        A refusal is an answer, too: repeated later, the request might not be refused.
        """
        output = await self._in_thread(partial(self._tasks.find_answer, caller.request_digest))
        if output is None:
            try:
                output = await self._answer_token_once(handle, caller, parameters)
            except Ec2Error as error:
                refusal = TaskAnswer(caller.request_digest, {_REFUSAL: [error.error_code, error.detail]})
                output = await self._in_thread(partial(self._tasks.add_answer, caller.tenant, refusal))
        refused: Any = output.get(_REFUSAL)
        if refused is not None:
            raise Ec2Error(*refused)
        return output

    async def _answer_token_once(
        self, handle: OperationHandler, caller: Ec2Caller, parameters: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Carry out a request; one with the `ClientToken` of an earlier one that is equal gets its answer.

        Raises:
            Ec2Error: the request is refused, or has the token of one with other parameters.
        """
        token = parameters.get("ClientToken")
        if not token:
            return await handle(caller, parameters)
        client = attrs.evolve(
            caller,
            request_digest=_digest(f"{caller.access_key}/{handle.__name__}/{token}"),
            parameters_digest=_digest(json.dumps(parameters, sort_keys=True)),
        )
        output = await self._in_thread(partial(self._tasks.find_answer, client.request_digest))
        if output is None:
            output = await handle(client, parameters)
        if output[_PARAMETERS] != client.parameters_digest:
            raise Ec2Error(
                "IdempotentParameterMismatch",
                f"ClientToken {token!a:.100} is that of an earlier request with other parameters",
            )
        return {name: value for name, value in output.items() if name != _PARAMETERS}

    async def _import_volume(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        parse = partial(parse_import_volume, parameters)
        return await self._import(caller, TaskKind.IMPORT_VOLUME, parse)

    async def _import_instance(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        return await self._import(
            caller, TaskKind.IMPORT_INSTANCE, partial(parse_import_instance, parameters)
        )

    async def _import(
        self, caller: Ec2Caller, kind: TaskKind, parse: Callable[[AllowedOrigins], ImportRequest]
    ) -> Json:
        if not self._options.origins.named:
            raise Ec2Error("UnsupportedOperation", "EC2_OBJECT_STORES is not set: nothing can be imported")
        request = parse(self._options.origins)
        for name in request.kernel_images:
            if await self._in_thread(partial(self._catalog.find, caller.tenant, name)) is None:
                place = "LaunchSpecification.AdditionalInfo"
                raise invalid_value(f"{place}: there is no image {name!a:.100}")
        stores = [str(origin) for origin in self._options.origins.named]
        expires_at = self._now() + UPLOAD_TIME
        record = self._make_import(
            caller.tenant, kind, request, lambda disks: make_import_plan(disks, stores, expires_at)
        )
        output = {"ConversionTask": describe_conversion_task(record, self._now())}
        return await self._add(caller, record, request.source, output)

    async def _cancel_conversion_task(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        task_id, reason = parameters["ConversionTaskId"], parameters.get("ReasonMessage", "")
        return await self._cancel(caller, _IMPORTS, task_id, UNKNOWN_IMPORT, reason)

    async def _create_export_task(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        target = parse_export_target(parameters["TargetEnvironment"], parameters["ExportToS3Task"])
        description = parameters.get("Description", "")
        if len(description) > MAX_DESCRIPTION_CHARACTERS:
            raise invalid_value(f"Description must have at most {MAX_DESCRIPTION_CHARACTERS} characters")
        tags = parse_tags(parameters.get("TagSpecifications", ()), "export-instance-task")
        image = await self._find_image(caller.tenant, parameters["InstanceId"])
        compose_id = str(uuid4())
        task_id = task_id_of(TaskKind.EXPORT_INSTANCE, compose_id)
        key = target.key(task_id)
        await self._in_s3_thread(partial(self._buckets.check, caller, target.bucket, key))
        plan = make_export_plan(image, file_format=target.format, bucket=target.bucket, key=key)
        place = {"DiskImageFormat": target.disk_format, "S3Bucket": target.bucket, "S3Key": key}
        container = {"ContainerFormat": target.container} if target.container else {}
        request = {
            "InstanceId": parameters["InstanceId"],
            "TargetEnvironment": parameters["TargetEnvironment"],
            "Description": description,
            "ExportToS3Task": {**place, **container},
        }
        compose = attrs.evolve(
            self._make_compose(compose_id, caller.tenant, ComposeOrigin.EXPORT, plan, image.virtual_size),
            uploads=(UploadResult(UploadTarget(S3), "pending"),),
            source_image=image.stored_id,
        )
        record = make_record(compose, TaskKind.EXPORT_INSTANCE, request, tags=tags)
        return await self._add(
            caller, record, None, {"ExportTask": describe_export_task(record, self._now())}
        )

    async def _cancel_export_task(self, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        return await self._cancel(caller, _EXPORTS, parameters["ExportTaskId"], UNKNOWN_EXPORT)

    async def _add(
        self, caller: Ec2Caller, record: TaskRecord, source: ImportSource | None, output: Json
    ) -> Json:
        """Add a task, which the engine starts soon, or once it answers; return the answer."""
        if caller.parameters_digest:
            output = {**output, _PARAMETERS: caller.parameters_digest}
        answer = TaskAnswer(caller.request_digest, output)
        add = partial(self._tasks.add, record, source, self._options.limits, answer)
        try:
            given, is_new = await self._in_thread(add)
        except (TaskLimitReached, BudgetExceeded) as error:
            raise Ec2Error("ResourceLimitExceeded", error.detail) from None
        except NotFound as error:  # the image was deleted meanwhile
            raise Ec2Error("InvalidInstanceID.NotFound", error.detail) from None
        if is_new:
            _log.info(
                "added task {task}: compose {compose}",
                task=record.task.id,
                compose=record.compose.id,
                tenant=caller.tenant,
                access_key=caller.access_key,
            )
            self._plans.start(record.compose)
        return given

    async def _describe(self, listing: TaskListing, caller: Ec2Caller, parameters: Mapping[str, Any]) -> Json:
        return await self._in_thread(partial(self._lists.describe, caller.tenant, listing, parameters))

    @property
    def _lists(self) -> TaskLists:
        return TaskLists(self._tasks, self._workers, self._options.heartbeat_seconds, self._now)

    async def _cancel(
        self, caller: Ec2Caller, kinds: Sequence[TaskKind], task_id: str, unknown: str, reason: str = ""
    ) -> Json:
        """Cancel a task; return the answer of an operation that has no other output."""
        return await self._cancel_with(caller, kinds, task_id, unknown, reason, lambda _: {"Return": True})

    async def _cancel_with(  # noqa: PLR0913, PLR0917 - what the operations differ in
        self,
        caller: Ec2Caller,
        kinds: Sequence[TaskKind],
        task_id: str,
        unknown: str,
        reason: str,
        answer_of: Callable[[TaskRecord], Json],
    ) -> Json:
        record = await self._in_thread(partial(self._lists.find, caller.tenant, kinds, task_id, unknown))
        answer = TaskAnswer(caller.request_digest, answer_of(record))
        given = await self._in_thread(partial(self._tasks.cancel, record.task, reason, answer))
        if given is None:
            raise Ec2Error(
                "IncorrectState",
                f"task {task_id} has ended, or registers its image, and cannot be cancelled",
            )
        _log.info("cancelled task {task}", task=task_id, tenant=caller.tenant, access_key=caller.access_key)
        await self._plans.cancel(record.compose)
        return given

    async def _find_image(self, tenant: str, name: str) -> CatalogImage | ComposeBase:
        if not name.startswith(INSTANCE):
            raise Ec2Error("InvalidInstanceID.Malformed", f"InstanceId must begin with {INSTANCE}")
        image = await self._in_thread(partial(self._catalog.find, tenant, name))
        if image is None:
            raise Ec2Error("InvalidInstanceID.NotFound", f"there is no image {name!a:.100}")
        return image

    def _make_import(
        self,
        tenant: str,
        kind: TaskKind,
        request: ImportRequest,
        make_plan: Callable[[list[ImportedDisk]], ComposePlan],
    ) -> TaskRecord:
        compose_id = str(uuid4())
        task_id = task_id_of(kind, compose_id)
        shared = {
            "architecture": request.architecture or self._options.architecture,
            "platform": request.platform,
            "layout": request.layout,
            "launch_specification": request.document.get("LaunchSpecification", {}),
        }
        disks = [
            ImportedDisk(
                disk.format,
                disk.bytes,
                disk.volume_bytes,
                {
                    **shared,
                    "id": imported_image_id(compose_id, number),
                    "name": disk.description or request.description or task_id,
                    "description": disk.description or request.description,
                    "source": f"import:{task_id}" + (f"/{number + 1}" if number else ""),
                    "volume_bytes": disk.volume_bytes,
                },
            )
            for number, disk in enumerate(request.disks)
        ]
        return make_record(
            self._make_compose(compose_id, tenant, ComposeOrigin.IMPORT, make_plan(disks), 0),
            kind,
            request.document,
            tags=request.tags,
            volume_bytes=sum(disk.volume_bytes for disk in request.disks),
        )

    def _make_compose(
        self, compose_id: str, tenant: str, origin: ComposeOrigin, plan: ComposePlan, disk_bytes: int
    ) -> Compose:
        """Return a compose of a disk with that virtual size; imports have their own."""
        return Compose(
            id=compose_id,
            tenant=tenant,
            distribution="",
            architecture=self._options.architecture,
            image_type=None,
            request={},
            plan=plan,
            state=ComposeState.PENDING,
            created_at=self._now(),
            origin=origin,
            store_bytes=most_bytes(plan, disk_bytes),
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def task_id_of(kind: TaskKind, compose_id: str) -> str:
    """Return the id of the task whose work a compose does."""
    return f"{kind}-{alias_digits(compose_id)}"


def make_record(
    compose: Compose,
    kind: TaskKind,
    request: Json,
    *,
    tags: Mapping[str, str] | None = None,
    volume_bytes: int = 0,
) -> TaskRecord:
    """Return a new task with its compose."""
    task = ConversionTask(
        id=task_id_of(kind, compose.id),
        compose_id=compose.id,
        tenant=compose.tenant,
        kind=kind,
        request=request,
        tags=tags or {},
        volume_bytes=volume_bytes,
        created_at=compose.created_at,
        expires_at=compose.created_at + UPLOAD_TIME,
    )
    return TaskRecord(task, compose)
