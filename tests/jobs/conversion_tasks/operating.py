"""The operations on tasks over rows in SQLite, with doubles of engine and buckets."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import attrs

from image_service.common.http.origins import AllowedOrigins, parse_origin
from image_service.jobs.artifacts.image_catalog import ImageCatalog
from image_service.jobs.conversion_tasks.image_operations import ImageOperations
from image_service.jobs.conversion_tasks.operations import TaskOptions
from image_service.jobs.dispatch.compose_plans import ComposePlans
from image_service.jobs.ec2.operations import Ec2Caller
from image_service.jobs.imports.objects import FoundImage
from image_service.jobs.model import ComposeBase
from image_service.jobs.task_model import TaskKind, TaskLimits
from tests.jobs.composer.composing import RecordingEngine, at_once, result_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from image_service.jobs.database.tasks import TaskRecord
    from image_service.jobs.imports.objects import ObjectLocation
    from tests.jobs.database.composing import Rows

STORE = "https://store.example"
GIB = 1 << 30
SECRET_URL = f"{STORE}/bucket/disk.manifest?X-Amz-Signature=s3cr3t"
BASE_DISK = ComposeBase("419.1", "x86_64", "metal", "raw")


class OneBase:
    """A base disk."""

    def all_disks(self) -> Iterator[tuple[ComposeBase, None]]:
        yield BASE_DISK, None


@attrs.define
class CheckedBuckets:
    """Records the places that are checked; an error is raised."""

    checked: list[tuple[str, str, str]] = attrs.field(factory=list)
    error: Exception | None = None

    def check(self, caller: Ec2Caller, bucket: str, key: str) -> None:
        if self.error is not None:
            raise self.error
        self.checked.append((caller.tenant, bucket, key))


class AnyObject:
    """Finds an image of 1 GiB in each place."""

    def find(self, caller: Ec2Caller, location: ObjectLocation) -> FoundImage:
        url = f"{STORE}/{location.bucket}/{location.key}?X-Amz-Signature=s3cr3t-{caller.access_key}"
        return FoundImage(location.format_name or "RAW", GIB, GIB, url, STORE)


class Operating:
    """The operations, called as EC2's API does.

    Args:
        rows: of all.
        stores: EC2_OBJECT_STORES.
        limits: of a tenant.
    """

    def __init__(
        self,
        rows: Rows,
        stores: frozenset[str] = frozenset({STORE}),
        limits: TaskLimits = TaskLimits(100, 2**40),  # noqa: B008 - immutable
    ) -> None:
        self.rows = rows
        self.engine = RecordingEngine()
        self.buckets = CheckedBuckets()
        doubles: Any = OneBase(), self.engine, self.buckets, AnyObject()
        bases, engine, buckets, sources = doubles
        origins = AllowedOrigins(frozenset(map(parse_origin, stores)), setting="EC2_OBJECT_STORES")
        self.operations = ImageOperations(
            rows.tasks,
            rows.workers,
            ImageCatalog(rows.images, bases),
            buckets,
            ComposePlans(engine),
            at_once,
            at_once,
            TaskOptions(origins, limits, "x86_64", heartbeat_seconds=120),
            rows.clock,
            sources=sources,
        )
        self._numbers = count()

    def call(
        self, operation: str, parameters: dict[str, Any], *, tenant: str = "org-1", digest: str | None = None
    ) -> Any:
        """Return the result of an operation; each call has a signature of its own, unless one is given."""
        caller = Ec2Caller(tenant, "KEY", ("*",), ("*",), digest or f"digest-{next(self._numbers)}")
        handler: Any = self.operations.handlers[operation]
        return result_of(handler(caller, parameters))

    def import_volume(self, *, tenant: str = "org-1", digest: str | None = None, gib: int = 2) -> Any:
        """Import a volume; return its ``ConversionTask``."""
        return self.call("ImportVolume", volume(gib), tenant=tenant, digest=digest)["ConversionTask"]

    def describe(self, task_id: str) -> Any:
        """Return the ``ConversionTask`` or ``ExportTask`` with an id."""
        if task_id.startswith("export"):
            return self.call("DescribeExportTasks", {"ExportTaskIds": [task_id]})["ExportTasks"][0]
        found = self.call("DescribeConversionTasks", {"ConversionTaskIds": [task_id]})
        return found["ConversionTasks"][0]

    def record(self, task_id: str) -> TaskRecord:
        """Return the rows of a task."""
        (found,) = self.rows.find_tasks("org-1", list(TaskKind), [task_id])
        return found


def disk(gib: int = 2, **image: Any) -> dict[str, Any]:
    """Return the parameters of a disk."""
    return {
        "Image": {"Format": "VMDK", "Bytes": GIB, "ImportManifestUrl": SECRET_URL, **image},
        "Volume": {"Size": gib},
    }


def volume(gib: int = 2, **image: Any) -> dict[str, Any]:
    """Return the parameters of ImportVolume."""
    return {"AvailabilityZone": "zone-1", "Description": "a disk", **disk(gib, **image)}


def instance(**values: Any) -> dict[str, Any]:
    """Return the parameters of ImportInstance, with two disks."""
    return {
        "Platform": "Linux",
        "Description": "a machine",
        "DiskImages": [{**disk(2), "Description": "first"}, disk(3)],
        "LaunchSpecification": {
            "Architecture": "arm64",
            "InstanceType": "m1.small",
            "Placement": {"AvailabilityZone": "zone-2"},
            "UserData": {"Data": "s3cr3t"},
        },
        **values,
    }


def export(instance_id: str, **values: Any) -> dict[str, Any]:
    """Return the parameters of CreateInstanceExportTask."""
    return {
        "InstanceId": instance_id,
        "TargetEnvironment": "vmware",
        "ExportToS3Task": {"S3Bucket": "exports", "S3Prefix": "made/", "ContainerFormat": "ova"},
        **values,
    }
