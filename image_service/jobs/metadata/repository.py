"""The rows of the jobs role. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from image_service.database.database import Database
    from image_service.jobs.model import (
        Artifact,
        CatalogImage,
        Compose,
        ComposeState,
        ImageCustomization,
        ImageType,
        Job,
        JobError,
        JobProgress,
        JobState,
        JobType,
        Json,
        UploadResult,
    )


@attrs.frozen
class ComposeFilter:
    """Which composes to list; None: any."""

    tenant: str | None = None  # None: all, for the operator's status page
    states: Collection[ComposeState] | None = None
    distribution: str | None = None
    image_type: ImageType | None = None


@attrs.frozen
class ReadyQueue:
    """Jobs of one kind that a worker could start now.

    Args:
        queued_at: of the oldest.
        served_at: when a job of this tenant was last started; None: never.
    """

    tenant: str
    type: JobType
    architecture: str
    queued_at: datetime
    served_at: datetime | None


@attrs.frozen
class JobCount:
    """Jobs of one tenant and type in one state."""

    tenant: str
    type: JobType
    architecture: str
    state: JobState
    count: int


class ComposeRepository:
    """Composes.

    Args:
        database: SQLite or PostgreSQL.
        secret: of the instance, 32 bytes; seals customizations.
    """

    def __init__(self, database: Database, secret: bytes) -> None:
        raise NotImplementedError

    def add(self, compose: Compose, customization: ImageCustomization, max_queued: int) -> None:
        """Add a compose, its sealed customization, and its jobs as waiting, in one transaction.

        Raises:
            TooManyQueued: its tenant has `max_queued` composes that have not ended.
        """
        raise NotImplementedError

    def find(self, compose_id: str, tenant: str | None = None) -> Compose | None:
        """Return a compose; None: there is none, it is deleted, or of another tenant (None: any)."""
        raise NotImplementedError

    def find_page(
        self, wanted: ComposeFilter, *, offset: int = 0, limit: int | None = None, newest_first: bool = False
    ) -> tuple[list[Compose], int]:
        """Return composes, sorted by id or newest first, and how many there are in all."""
        raise NotImplementedError

    def customization(self, compose_id: str) -> ImageCustomization | None:
        """Return what is laid into the image; None: it was erased."""
        raise NotImplementedError

    def erase_customization(self, compose_id: str) -> None:
        """Erase what is laid into the image, because no step or download needs it any more."""
        raise NotImplementedError

    def mark_started(self, compose_id: str) -> None:
        """Record that the engine has the compose."""
        raise NotImplementedError

    def set_state(self, compose_id: str, state: ComposeState) -> bool:
        """Set a state that is not final; False: there is no such compose, or it has ended."""
        raise NotImplementedError

    def finish(
        self,
        compose_id: str,
        state: ComposeState,
        *,
        error: JobError | None = None,
        image: Artifact | None = None,
        provenance: Json | None = None,
    ) -> bool:
        """End a compose, once: later calls change nothing. False: it is not there, or has ended."""
        raise NotImplementedError

    def set_uploads(self, compose_id: str, uploads: Sequence[UploadResult]) -> None:
        """Replace the states of the uploads."""
        raise NotImplementedError

    def delete(self, compose_id: str) -> list[str]:
        """Delete a compose with its jobs; return the keys of its stored objects, for their deletion."""
        raise NotImplementedError

    def find_unstarted(self, before: datetime) -> list[Compose]:
        """Return composes that were added before that time and are not marked as started."""
        raise NotImplementedError

    def find_unfinished(self) -> list[Compose]:
        """Return composes that are marked as started and have not ended."""
        raise NotImplementedError

    def find_expired(self, now: datetime) -> list[Compose]:
        """Return composes whose `expires_at` has passed."""
        raise NotImplementedError

    def count_by_state(self) -> Mapping[ComposeState, int]:
        """Return how many composes there are."""
        raise NotImplementedError


class JobRepository:
    """Jobs, and the permits and workers for them."""

    def __init__(self, database: Database) -> None:
        raise NotImplementedError

    def find(self, job_id: str) -> Job | None:
        """Return a job; None: there is none."""
        raise NotImplementedError

    def find_of_compose(self, compose_id: str) -> list[Job]:
        """Return the jobs of a compose, in the order of its plan."""
        raise NotImplementedError

    def mark_queued(self, job_id: str) -> bool:
        """Record that the engine has queued a job; False: there is none, or it has ended."""
        raise NotImplementedError

    def find_ready(
        self,
        tenant: str | None,
        types: Collection[JobType],
        architecture: str,
        lost_before: datetime,
        max_running: int,
    ) -> list[ReadyQueue]:
        """Return queues with jobs that are queued, or run without a heartbeat since `lost_before`.

        Args:
            tenant: None: of all; the one whose jobs were started least recently comes first.
            types: that a worker does.
            architecture: of the worker.
            lost_before: a running job is lost if its last heartbeat is older.
            max_running: tenants with so many running jobs and permits are left out.
        """
        raise NotImplementedError

    def take_permit(
        self, tenant: str, max_running: int, lost_before: datetime, expires: datetime
    ) -> str | None:
        """Reserve the start of one job for a poll of the engine; None: the tenant has `max_running`.

        Running jobs with a heartbeat since `lost_before`, and permits that have not expired, count.
        """
        raise NotImplementedError

    def release_permit(self, permit: str, started: Job | None = None) -> None:
        """Give a permit back; a job that was handed out is recorded as running, in the same transaction."""
        raise NotImplementedError

    def record_heartbeat(self, job_id: str, attempt: int, progress: JobProgress | None = None) -> bool:
        """Record that an attempt goes on; False: it is not the latest one, or has ended."""
        raise NotImplementedError

    def add_artifact(self, job_id: str, attempt: int, artifact: Artifact) -> None:
        """Record an uploaded file of an attempt, which is not accepted yet."""
        raise NotImplementedError

    def find_artifacts(self, job_id: str, attempt: int) -> list[Artifact]:
        """Return the uploaded files of an attempt."""
        raise NotImplementedError

    def finish(
        self,
        job_id: str,
        *,
        artifacts: Sequence[Artifact] = (),
        result: Json | None = None,
        error: JobError | None = None,
        cancelled: bool = False,
    ) -> list[str]:
        """End a job, once, with its accepted artifacts; return keys of other attempts, for their deletion."""
        raise NotImplementedError

    def count(self) -> list[JobCount]:
        """Return how many jobs there are."""
        raise NotImplementedError

    def add_worker(self, worker_id: str, tenant: str, architecture: str) -> None:
        """Record a worker."""
        raise NotImplementedError

    def see_worker(self, worker_id: str, tenant: str) -> bool:
        """Record that a worker is alive; False: it is not known, or of another tenant."""
        raise NotImplementedError

    def count_workers(self, seen_since: datetime) -> Mapping[tuple[str, str], int]:
        """Return how many workers there are by tenant and architecture."""
        raise NotImplementedError

    def remove_workers(self, seen_before: datetime) -> None:
        """Remove workers that were not seen since."""
        raise NotImplementedError


class ImageRepository:
    """The image catalog."""

    def __init__(self, database: Database) -> None:
        raise NotImplementedError

    def add(self, image: CatalogImage) -> None:
        """Add an image, unless it is there."""
        raise NotImplementedError

    def find(self, tenant: str | None, name: str) -> CatalogImage | None:
        """Return an image by its id or an alias."""
        raise NotImplementedError

    def find_all(self, tenant: str | None) -> list[CatalogImage]:
        """Return the images of a tenant, oldest first."""
        raise NotImplementedError

    def delete(self, image_id: str) -> None:
        """Remove an image from the catalog."""
        raise NotImplementedError

    def delete_of(self, source: str) -> None:
        """Remove the images of a source from the catalog."""
        raise NotImplementedError
