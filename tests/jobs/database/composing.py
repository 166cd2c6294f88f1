"""Composes for tests of repositories and of their users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import attrs

from image_service.jobs.catalog_image import CatalogImage
from image_service.jobs.database.composes import ComposeRepository
from image_service.jobs.database.images import ImageRepository
from image_service.jobs.database.job_queues import JobQueues
from image_service.jobs.database.jobs import JobRepository
from image_service.jobs.database.objects import ObjectRepository
from image_service.jobs.database.sealing import RowCipher
from image_service.jobs.database.tasks import TaskFilter, TaskRepository
from image_service.jobs.database.workers import WorkerRepository
from image_service.jobs.model import (
    Artifact,
    Compose,
    ComposePlan,
    ComposeState,
    ImageCustomization,
    ImageType,
    JobState,
    Step,
    TenantBudget,
    UploadResult,
    UploadTarget,
    job_id_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection

    import sqlalchemy as sa

    from image_service.common.database.database import Database
    from image_service.jobs.database.tasks import TaskRecord
    from image_service.jobs.model import Json
    from image_service.jobs.task_model import TaskKind

SECRET = bytes(range(32))
CIPHER = RowCipher([SECRET])
NOW = datetime(2026, 11, 23, 12, 0, 0, 123456, UTC)
BUDGET = TenantBudget(max_composes=1000, max_bytes=2**50)
CUSTOMIZATION = ImageCustomization(
    ignition=b'{"ignition":{"version":"3.4.0"}}',
    firstboot_url="https://example.com/secret",
    kernel_arguments=("console=ttyS0",),
)
DISK_PLAN = ComposePlan(
    steps=(
        Step("fetch", "fetch-base"),
        Step("customize", "customize", {"output": "disk.raw"}, {"base": "base"}, ("fetch",)),
        Step("convert", "convert", {"format": "vmdk"}, {"disk.raw": "customize/disk.raw"}, ("customize",)),
        Step("register", "register-image", after=("convert",)),
    ),
    result="convert/disk.vmdk",
    file_name="disk.vmdk",
)


@attrs.define
class Clock:
    """A clock that a test sets."""

    now: datetime = NOW

    def __call__(self) -> datetime:
        """Return its time."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Set it to a later time."""
        self.now += timedelta(seconds=seconds)


def make_compose(**values: Any) -> Compose:
    """Return a new compose of a VMDK."""
    return Compose(
        **{
            "id": str(uuid4()),
            "tenant": "org-1",
            "distribution": "rhcos-4.19",
            "architecture": "x86_64",
            "image_type": ImageType.VSPHERE,
            "request": {"distribution": "rhcos-4.19", "blueprint": {"name": "b"}},
            "plan": DISK_PLAN,
            "state": ComposeState.PENDING,
            "created_at": NOW,
            "size": 2**40,
            "uploads": (UploadResult(UploadTarget("local"), "pending"),),
            "ignition_sha256": "ab" * 32,
            **values,
        }
    )


def make_artifact(job_id: str, attempt: int = 1, name: str = "disk.raw") -> Artifact:
    """Return an artifact of an attempt."""
    return Artifact(name, 2**33, "cd" * 32, f"jobs/{job_id}/{attempt}/{uuid4()}/{name}")


def make_image(number: int, tenant: str = "org-1", **values: Any) -> CatalogImage:
    """Return an image of the catalog; a higher number is made later."""
    image_id = str(uuid4())
    return CatalogImage(
        **{
            "id": image_id,
            "tenant": tenant,
            "name": "name",
            "architecture": "x86_64",
            "format": "vmdk",
            "virtual_size": 2**34,
            "artifact": make_artifact(image_id, name="disk.vmdk"),
            "source": f"compose:{number}",
            "created_at": NOW + timedelta(seconds=number),
            **values,
        }
    )


def ids_of_jobs(compose: Compose) -> dict[str, str]:
    """Return the ids of the jobs of a compose by step."""
    return {step.name: job_id_of(compose.id, step.name) for step in compose.plan.steps if step.is_job}


@attrs.define
class Rows:
    """The repositories of a database, with one clock."""

    database: Database
    clock: Clock = attrs.field(factory=Clock)
    budget: TenantBudget = BUDGET

    @property
    def composes(self) -> ComposeRepository:
        """The repository of composes."""
        return ComposeRepository(self.database, CIPHER, self.budget, self.clock)

    @property
    def jobs(self) -> JobRepository:
        """The repository of jobs."""
        return JobRepository(self.database, CIPHER, self.clock)

    @property
    def queues(self) -> JobQueues:
        """The queues of jobs."""
        return JobQueues(self.database, self.clock)

    @property
    def objects(self) -> ObjectRepository:
        """The repository of objects."""
        return ObjectRepository(self.database, CIPHER, self.budget, self.clock)

    @property
    def images(self) -> ImageRepository:
        """The repository of catalog images."""
        return ImageRepository(self.database, CIPHER, self.clock)

    @property
    def tasks(self) -> TaskRepository:
        """The repository of EC2's tasks."""
        return TaskRepository(self.database, self.composes, self.clock)

    def find_tasks(
        self, tenant: str, kinds: Collection[TaskKind], ids: Collection[str] | None = None
    ) -> list[TaskRecord]:
        """Return tasks of a tenant with all that belongs to them."""
        return self.tasks.read(self.tasks.find(TaskFilter(tenant, kinds, ids)))

    @property
    def workers(self) -> WorkerRepository:
        """The repository of workers."""
        return WorkerRepository(self.database, self.clock)

    def add(self, compose: Compose | None = None) -> tuple[Compose, dict[str, str]]:
        """Add a compose; return it, and the ids of its jobs."""
        compose = compose or make_compose()
        self.composes.add(compose, CUSTOMIZATION, 1000)
        return compose, ids_of_jobs(compose)

    def start(self, job_id: str, attempt: int = 1, tenant: str = "org-1") -> None:
        """Queue and start a job."""
        self.queues.mark_queued(job_id, attempt)
        permit = self.queues.take_permit(tenant, 1000, self.clock() + timedelta(seconds=30))
        assert permit is not None
        assert self.queues.start(permit, job_id, attempt, "w1") is not None

    def write(self, statement: sa.Executable) -> None:
        """Change rows as a user with write access does, without the secret."""
        self.database.transact(lambda connection: connection.execute(statement).close())

    def delete_objects(self) -> None:
        """Record that the discarded objects were deleted."""
        self.objects.forget_discarded(self.objects.find_discarded(1000))

    def finish(self, job_id: str, *artifacts: Artifact, result: Json | None = None) -> None:
        """Report and finish a job; start it before, if no worker has it."""
        job = self.jobs.find(job_id)
        assert job is not None
        attempt = job.attempt
        if job.state is not JobState.RUNNING:
            attempt += 1
            self.start(job_id, attempt, job.tenant)
        stored = [CIPHER.tag_artifact(job.tenant, job_id, artifact) for artifact in artifacts]
        assert self.jobs.record_report(job_id, attempt, stored, result or {})
        assert self.jobs.finish(job_id)
