"""The rows of composes. Every call blocks: not for the reactor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from datetime import datetime

    from image_service.database.database import Database
    from image_service.jobs.model import (
        Artifact,
        Compose,
        ComposeState,
        ImageCustomization,
        ImageType,
        JobError,
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


class ComposeRepository:
    """Composes, and what is laid into their images.

    Args:
        database: see ``open_database``.
        secrets: of the instance, 32 bytes each; the first seals customizations, all open them.

    Raises:
        StoreFailed: of each method: the database does not answer.
    """

    def __init__(self, database: Database, secrets: Sequence[bytes]) -> None:
        raise NotImplementedError

    def add(self, compose: Compose, customization: ImageCustomization, max_queued: int) -> dict[str, str]:
        """Add a compose, its sealed customization, and its jobs as waiting, in one transaction.

        Returns:
            the ids of its jobs by step, for ``Engine.start_plan``.

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

    def mark_started(self, compose_id: str) -> None:
        """Record that the engine has the compose."""
        raise NotImplementedError

    def set_state(self, compose_id: str, state: ComposeState) -> bool:
        """Set a state that is not final; False: there is no such compose, or it has ended."""
        raise NotImplementedError

    def set_upload(self, compose_id: str, number: int, upload: UploadResult) -> None:
        """Replace the state of an upload; `number` counts the targets from 0."""
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
        """End a compose, once: later calls change nothing. False: it is not there, or has ended.

        Jobs that have not ended become cancelled; uploads that have not become successes or failures. All
        artifacts but `image` are discarded. What is laid into the image is erased, unless it is composed
        while it is read.
        """
        raise NotImplementedError

    def delete(self, compose_id: str) -> bool:
        """Delete a compose with its jobs and its catalog image, and discard its artifacts; False: none."""
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
