"""The values that composes consist of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping  # noqa: TC003 - attrs resolves annotations at run time
from datetime import datetime  # noqa: TC003 - same
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID, uuid5

import attrs

from image_service.core.errors import NotFound
from image_service.jobs.image_ids import instance_alias

Json: TypeAlias = "Mapping[str, object]"
"""A JSON object."""

DEFAULT_DISK_BYTES = 16 * 1024**3
"""The virtual size of RHCOS, for the export of a base disk that was not fetched yet."""
_NOTHING: Json = MappingProxyType({})
_BASE_IMAGES = UUID("6f0cbe4c-8c5c-4e0b-9b0c-3d0f3c7c5b8e")  # the namespace of their ids


def job_id_of(compose_id: str, step: str) -> str:
    """Return the id of the job that carries out a step of a compose."""
    return str(uuid5(UUID(compose_id), step))


class ImageType(StrEnum):
    """The type of an image, by the names of osbuild-composer's API; ``openstack`` is an addition."""

    LIVE_INSTALLER = "live-installer"  # the full ISO
    NETWORK_INSTALLER = "network-installer"  # the minimal ISO
    PXE_TAR_XZ = "pxe-tar-xz"
    GUEST_IMAGE = "guest-image"  # qcow2
    VSPHERE = "vsphere"  # VMDK
    VSPHERE_OVA = "vsphere-ova"
    AZURE = "azure"  # fixed VHD
    AWS = "aws"  # raw
    MINIMAL_RAW = "minimal-raw"
    OPENSTACK = "openstack"  # qcow2

    @property
    def is_disk(self) -> bool:
        """True if workers make it of a disk image; others are composed while they are read."""
        return self not in _COMPOSED

    @property
    def platform(self) -> str:
        """The platform of a disk image, by the name that CoreOS has for it; that of others is ``metal``."""
        return _PLATFORMS.get(self, METAL)


METAL = "metal"
_COMPOSED = {ImageType.LIVE_INSTALLER, ImageType.NETWORK_INSTALLER, ImageType.PXE_TAR_XZ}
_PLATFORMS = {
    ImageType.GUEST_IMAGE: "qemu",
    ImageType.VSPHERE: "vmware",
    ImageType.VSPHERE_OVA: "vmware",
    ImageType.AZURE: "azure",
    ImageType.AWS: "aws",
    ImageType.OPENSTACK: "openstack",
}


class ComposeOrigin(StrEnum):
    """The API that a compose was requested by, and its purpose there."""

    COMPOSER = "composer"
    IMPORT = "import"  # of EC2's API
    EXPORT = "export"  # same


class JobType(StrEnum):
    """The type of a job."""

    IMPORT = "import"
    CUSTOMIZE = "customize"
    CONVERT = "convert"
    UPLOAD = "upload"


class ComposeState(StrEnum):
    """The state of a compose."""

    PENDING = "pending"
    BUILDING = "building"
    UPLOADING = "uploading"
    REGISTERING = "registering"
    SUCCESS = "success"
    FAILURE = "failure"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """True if it has ended."""
        return self in {ComposeState.SUCCESS, ComposeState.FAILURE, ComposeState.CANCELLED}


class JobState(StrEnum):
    """The state of a job."""

    WAITING = "waiting"  # for an earlier step
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobErrorId(IntEnum):
    """Ids of osbuild-composer's worker API, for the errors of this service."""

    INVALID_CUSTOMIZATION = 4  # of the user
    BUILD_FAILED = 10
    TRANSFER_FAILED = 11  # a download or an upload
    WORKER_LOST = 27


@attrs.frozen
class JobError:
    """The error of a step or a compose.

    Args:
        id: a `JobErrorId`, or that of a worker; it assigns the error to the user or to the service.
        reason: one sentence; it names the step.
        details: further facts; of a step that depends on a failed one, its error.
    """

    id: int
    reason: str
    details: object = ""


@attrs.frozen
class UploadTarget:
    """The destination of a finished image.

    Args:
        type: ``local``, ``aws.s3``, ``oci`` or ``container``.
        public: readable by everyone.
        region: of S3; None: as configured.
        name: of the repository, below the one of the server.
        form: of the image in a registry; None: an artifact.
    """

    type: str
    public: bool = False
    region: str | None = None
    name: str | None = None
    form: str | None = None


@attrs.frozen
class ImageCustomization:
    """The customization of an image; secret.

    Args:
        ignition: a config; None: there is none.
        firstboot_url: from which the machine fetches its config; None: there is none.
        kernel_arguments: appended.
    """

    ignition: bytes | None = attrs.field(default=None, repr=False)
    firstboot_url: str | None = attrs.field(default=None, repr=False)
    kernel_arguments: tuple[str, ...] = attrs.field(default=(), repr=False)

    @property
    def arguments(self) -> tuple[str, ...]:
        """All kernel arguments to append, that for `firstboot_url` included."""
        url = self.firstboot_url
        return (*self.kernel_arguments, *([f"ignition.config.url={url}"] if url else []))


@attrs.frozen
class ComposeBase:
    """The base image of a compose; its attributes are the arguments of `fetch-base` and `check-image`.

    Args:
        version: of the OS build.
        architecture: RPM architecture name.
        platform: of a disk image: ``metal``, or that of the image type; "": it is a live ISO.
        format: of a disk image, decompressed: ``raw``, ``qcow2``, ``vmdk``, ``vhd`` or ``ova``.
    """

    version: str
    architecture: str
    platform: str = ""
    format: str = ""

    @classmethod
    def from_arguments(cls, arguments: Json) -> ComposeBase:
        """Return the base that the arguments of a step name."""
        return cls(**{field.name: str(arguments[field.name]) for field in attrs.fields(cls)})

    @property
    def image_id(self) -> str:
        """The id of a disk image in the image catalog: the same in each replica, and after each start."""
        return str(uuid5(_BASE_IMAGES, "/".join(attrs.astuple(self))))

    @property
    def virtual_size(self) -> int:
        """The size of most base disks; `fetch-base` finds the size of this one."""
        return DEFAULT_DISK_BYTES

    @property
    def stored_id(self) -> None:
        """It has no row in the image catalog."""

    @property
    def is_partition(self) -> bool:
        """False: a base disk has a partition table."""
        return False

    @property
    def instance_alias(self) -> str:
        """The id under which EC2's API exports a disk image."""
        return instance_alias(self.image_id)


@attrs.frozen
class ComposeRequest:
    """A request that was checked.

    Args:
        distribution: as requested; an alias is not replaced.
        architecture: RPM architecture name.
        size: virtual size of a disk in bytes; None: that of the base.
        uploads: at least one.
        document: the request's JSON with the Ignition config and the firstboot URL blanked.
    """

    distribution: str
    architecture: str
    image_type: ImageType
    customization: ImageCustomization
    size: int | None
    uploads: tuple[UploadTarget, ...]
    document: Json = attrs.field(repr=False)


@attrs.frozen
class Step:
    """A step of a plan.

    Args:
        name: unique in its plan, such as ``customize``.
        action: a `JobType`, which a worker does, or the name of an action of this service.
        arguments: without secrets; a worker gets those of its job.
        inputs: of a job: their sources, by the names under which the worker fetches them: ``base``
            (the base disk), ``ignition``, ``kernel-arguments`` (JSON list), ``image`` (the composed image),
            ``image:ID`` (a catalog image), ``manifest:N`` (the pinned manifest of disk N of an import, from
            0), or ``STEP/NAME``: the artifact NAME of an earlier step.
        after: names of the steps that must have succeeded before.
    """

    name: str
    action: str
    arguments: Json = _NOTHING
    inputs: Mapping[str, str] = MappingProxyType({})
    after: tuple[str, ...] = ()

    @property
    def is_job(self) -> bool:
        """True if a worker does it."""
        return self.action in set(JobType)


@attrs.frozen
class ComposePlan:
    """The steps of a compose, in an order in which they could run one by one.

    Args:
        steps: those of `JobType` become jobs.
        result: ``STEP/NAME`` of the artifact that is the finished image, of an import that of its first
            disk; None: it is composed while it is read, and not stored, or it is exported.
        tag: authenticates it in the database; "": it has none yet.
    """

    steps: tuple[Step, ...]
    result: str | None
    file_name: str
    tag: str = attrs.field(default="", eq=False, repr=False)


@attrs.frozen
class Artifact:
    """A file that a step has made.

    Args:
        name: ``[A-Za-z0-9._-]+`` without a leading dot.
        size: bytes.
        sha256: lower-case hex.
        tag: authenticates it in the database; "": it has none yet.
    """

    name: str
    size: int
    sha256: str
    key: str
    tag: str = attrs.field(default="", eq=False, repr=False)


@attrs.frozen
class JobProgress:
    """The progress of a job; 0 of 0: unknown."""

    done: int
    total: int
    phase: str = ""


@attrs.frozen
class TenantBudget:
    """What one tenant may keep.

    Args:
        max_composes: ended ones, imports and exports too.
        max_bytes: rows and artifacts of composes, and images, together.
        own_bytes: returns the same of a tenant that has a limit of its own; None: it has none.
    """

    max_composes: int
    max_bytes: int
    own_bytes: Callable[[str], int | None] = lambda _: None

    def max_bytes_of(self, tenant: str) -> int:
        """Return the bytes that a tenant may keep."""
        return self.own_bytes(tenant) or self.max_bytes


@attrs.frozen(kw_only=True)
class JobSummary:
    """A job as the status page and lists of tasks show it: without what may be large.

    Args:
        stopped_at: the time when its worker knew that it is cancelled.
    """

    id: str
    compose_id: str
    step: str
    type: JobType
    state: JobState
    attempt: int = 0
    progress: JobProgress | None = None
    error: JobError | None = None
    worker: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    stopped_at: datetime | None = None


@attrs.frozen(kw_only=True)
class Job(JobSummary):
    """A step that workers do, with its latest attempt.

    Args:
        id: that of `job_id_of`.
        attempt: from 1; 0: not queued.
        artifacts: of the latest report of a worker; accepted once the job has finished.
        result: same.
    """

    tenant: str
    architecture: str
    artifacts: tuple[Artifact, ...] = ()
    result: Json = attrs.field(default=_NOTHING, repr=False)
    queued_at: datetime | None = None


@attrs.frozen
class UploadResult:
    """The state of an upload.

    Args:
        status: ``pending``, ``running``, ``success`` or ``failure``.
        location: ``s3://BUCKET/KEY``, ``oci://HOST/REPOSITORY:TAG``; "" before it is there, and of ``local``.
        digest: of the manifest in a registry, as the worker says; "" where there is none.
        tag: authenticates target and location in the database; "": there is no location yet.
    """

    target: UploadTarget
    status: str
    location: str = ""
    digest: str = ""
    tag: str = attrs.field(default="", eq=False, repr=False)


@attrs.frozen(kw_only=True)
class ComposeSummary:
    """A compose as lists show it: without what may be large.

    Args:
        distribution: "" of an import and an export.
        architecture: of the workers that do its jobs; also of the image, except of imports and exports.
        image_type: None of an import and an export.
        uploads: one for each target.
        origin: the API that it belongs to.
    """

    id: str
    tenant: str
    distribution: str
    architecture: str
    image_type: ImageType | None
    state: ComposeState
    created_at: datetime
    finished_at: datetime | None = None
    error: JobError | None = None
    uploads: tuple[UploadResult, ...] = ()
    origin: ComposeOrigin = ComposeOrigin.COMPOSER


@attrs.frozen(kw_only=True)
class Compose(ComposeSummary):
    """A unit of work as it is stored: a compose, an import or an export.

    Args:
        id: UUID; the id of the engine's workflow.
        request: the request's JSON, Ignition blanked.
        image: the finished image; None: there is none, or it is composed while it is read.
        ignition_sha256: None: it has no config.
        provenance: facts that steps have reported, by step.
        started_at: the time when its plan began in the engine; None: not yet.
        source_image: id of the catalog image that its jobs read, which stays until it has ended.
        store_bytes: while it runs, the most that its artifacts can take in the object store; then what they
            take, but those of the image catalog.
    """

    request: Json = attrs.field(repr=False)
    plan: ComposePlan = attrs.field(repr=False)
    size: int | None = None
    started_at: datetime | None = None
    image: Artifact | None = None
    ignition_sha256: str | None = None
    provenance: Json = attrs.field(default=_NOTHING, repr=False)
    source_image: str | None = None
    store_bytes: int = 0

    def step_of(self, job_id: str) -> Step:
        """Return the step that a job carries out; NotFound: the plan has none."""
        for step in self.plan.steps:
            if job_id_of(self.id, step.name) == job_id:
                return step
        raise NotFound(f"the plan of compose {self.id} has no job {job_id}")
