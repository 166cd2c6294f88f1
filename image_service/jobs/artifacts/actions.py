"""The steps of a plan that this service carries out."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import attrs

from image_service.core.errors import BudgetExceeded, FormatError, NotFound, Unavailable, Unprocessable
from image_service.core.formats.disk.model import DiskFormat
from image_service.core.formats.disk.ova import read_ova
from image_service.core.formats.disk.reading_disks import read_disk
from image_service.core.formats.reading import SpanReader
from image_service.jobs.catalog_image import CatalogImage
from image_service.jobs.database.statements import utc_now
from image_service.jobs.model import ComposeBase, JobError, JobErrorId
from image_service.jobs.plans.plan import CHECK_IMAGE, FETCH_BASE, FIND_IMAGE, REGISTER_IMAGE, find_artifact
from image_service.jobs.plans.sizes import most_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime

    from image_service.common.concurrency.process_parts import InThread
    from image_service.common.objects.store import ObjectStorage
    from image_service.core.base_file import BaseFile
    from image_service.core.formats.reading import ReadAt
    from image_service.jobs.artifacts.bases import Bases
    from image_service.jobs.artifacts.composed_images import ComposedImages
    from image_service.jobs.artifacts.disk_images import DiskImages
    from image_service.jobs.database.composes import ComposeRepository
    from image_service.jobs.database.images import ImageRepository
    from image_service.jobs.database.jobs import JobRepository
    from image_service.jobs.model import Compose, Json, Step
    from image_service.server.serving.digests import Digests


@attrs.frozen
class StepResult:
    """The result of a step that this service carries out.

    Args:
        provenance: facts about its inputs and outputs.
        error: of a step that failed; None: it succeeded.
    """

    provenance: Json = attrs.field(factory=dict)
    error: JobError | None = None


ServerAction: TypeAlias = "Callable[[Compose, Step], Awaitable[StepResult]]"
"""Carries out a step; may be repeated. The result has errors of the client. Temporary errors are raised:
Unavailable, StoreFailed. Other errors that are raised end the step, too."""

MAX_PREPARATION = timedelta(hours=2)
"""The time after its request for which a compose waits for a base that is not ready."""

_OVA = "ova"


@attrs.frozen(eq=False)
class ArtifactActions:
    """The actions about base images and finished images.

    Args:
        composed: images that are not stored.
        jobs: whose artifacts are finished images.
        now: in UTC.
    """

    _in_thread: InThread
    _bases: Bases
    _disks: DiskImages
    _composed: ComposedImages
    _digests: Digests
    _composes: ComposeRepository
    _jobs: JobRepository
    _images: ImageRepository
    _store: ObjectStorage
    _now: Callable[[], datetime] = utc_now

    @property
    def by_name(self) -> Mapping[str, ServerAction]:
        """The actions by their names in plans."""
        return {
            FETCH_BASE: partial(self._with_limit, self.fetch_base),
            CHECK_IMAGE: partial(self._with_limit, self.check_image),
            FIND_IMAGE: self.find_image,
            REGISTER_IMAGE: self.register_image,
        }

    async def _with_limit(self, prepare: ServerAction, compose: Compose, step: Step) -> StepResult:
        """Prepare a base or an image; if it is still unavailable after `MAX_PREPARATION`, the step ends."""
        try:
            return await prepare(compose, step)
        except Unavailable as error:
            if self._now() - compose.created_at < MAX_PREPARATION:
                # Without the origin's time of a retry, which may be later than the limit.
                raise Unavailable(error.detail) from None
            return StepResult(error=JobError(JobErrorId.BUILD_FAILED, f"step {step.name}: {error.detail}"))

    async def fetch_base(self, compose: Compose, step: Step) -> StepResult:
        """Fetch, verify and unpack the base disk of the compose, and reserve what it needs for it."""
        base = ComposeBase.from_arguments(step.arguments)
        entry = self._bases.disk(base)
        disk = await self._disks.get(entry)
        try:
            await self._in_thread(partial(self._reserve, compose, base, disk.file))
        except BudgetExceeded as error:
            return StepResult(error=JobError(JobErrorId.BUILD_FAILED, f"step {step.name}: {error.detail}"))
        facts = {"base": entry.file_name, "base_version": base.version, "base_sha256": disk.packed_sha256}
        return StepResult(facts)

    async def check_image(self, compose: Compose, step: Step) -> StepResult:
        """Prove that the image can be composed, and compute its digest."""
        try:
            image = (await self._composed.get(compose)).representation.image
        except Unprocessable as error:
            reason = f"step {step.name}: {error.detail}"
            return StepResult(error=JobError(JobErrorId.INVALID_CUSTOMIZATION, reason, error.code))
        base = self._composed.base_of(compose)
        facts = {"base": base.name, "base_version": base.version, "base_sha256": base.sha256}
        with suppress(NotFound):  # the base stays at its origin, and not all of it was read
            facts["sha256"] = (await self._digests.get(image)).hex()
        return StepResult(facts)

    async def find_image(self, compose: Compose, step: Step) -> StepResult:
        """Report the image of the catalog that jobs of the compose read; NotFound if it is not there."""
        image_id = str(step.arguments["image"])
        image = await self._in_thread(partial(self._images.find, compose.tenant, image_id))
        if image is None:
            raise NotFound(f"there is no image {image_id}")
        facts = {
            "base": image.name,
            "base_version": image.instance_alias,
            "base_sha256": image.artifact.sha256,
        }
        return StepResult(facts)

    async def register_image(self, compose: Compose, step: Step) -> StepResult:
        """Add the finished disk images to the catalog."""
        await self._in_thread(partial(self._register, compose, step))
        return StepResult()

    def _reserve(self, compose: Compose, base: ComposeBase, file: BaseFile) -> None:
        with suppress(FormatError):  # the step that reads it fails
            disk_bytes = _virtual_size(file.read_at, file.size, base.format)
            self._bases.set_disk_bytes(base, disk_bytes)
            self._composes.reserve(compose, most_bytes(compose.plan, disk_bytes))

    def _register(self, compose: Compose, step: Step) -> None:
        jobs = self._jobs.find_of_compose(compose.id)
        described: Any = step.arguments["images"]
        for facts in described:
            artifact = find_artifact(jobs, facts["artifact"])
            image = CatalogImage(
                **{
                    **facts,
                    "tenant": compose.tenant,
                    "virtual_size": _virtual_size(
                        partial(self._store.read_at, artifact.key), artifact.size, facts["format"]
                    ),
                    "artifact": artifact,
                    "created_at": self._now(),
                }
            )
            self._images.add(image)


def _virtual_size(read_at: ReadAt, size: int, image_format: str) -> int:
    """Return the bytes of the disk in a file; FormatError if it is not an image of that format."""
    if image_format == _OVA:
        disk = read_ova(read_at, size).disk
        return read_disk(DiskFormat.VMDK, SpanReader(read_at, disk), disk.length).virtual_size
    return read_disk(DiskFormat(image_format), read_at, size).virtual_size
