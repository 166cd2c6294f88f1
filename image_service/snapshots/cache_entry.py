"""A pin: the newest snapshot of a question, and how far it is to be trusted. Knows no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.errors import ImageServiceError  # noqa: TC001 - attrs resolves annotations
from image_service.snapshots.snapshot import Snapshot  # noqa: TC001 - same

if TYPE_CHECKING:
    from image_service.snapshots.repository import Stored

RETRY_SECONDS = 5.0
"""Between two attempts to revalidate where the first did not succeed."""
MAX_OLDER = 8
"""Generations of one question that mounts may read beside the newest."""


@attrs.frozen
class Lifetimes:
    """How long what is good for what, in seconds.

    Args:
        ttl: an answer is not asked for again.
        grace: what is pinned is served while assisted-service fails.
        max_age: a snapshot is given to new mounts: tokens in it expire.
    """

    ttl: float = 60
    grace: float = 600
    max_age: float = 3600


@attrs.define(eq=False)
class CacheEntry:
    """The newest snapshot of a question. All instants are seconds since the epoch.

    Args:
        snapshot: the newest.
        validated_at: when assisted-service last said the same.
        stamp: of the question, as it was when this was learned: another process has renewed it since, if it
            is another now.
        asked_at: since when it is being asked again; None: it is not.
        retry_at: when it is worth asking again.
        failing_since: when it first failed to say anything; None: it has not since it last did.
        error: the latest failure.
        refusal: what it had to say against a new mount; None: nothing.
        older: generations that mounts may still read.
    """

    snapshot: Snapshot
    validated_at: float
    stamp: int = 0
    asked_at: float | None = None
    retry_at: float = 0.0
    failing_since: float | None = None
    error: ImageServiceError | None = None
    refusal: ImageServiceError | None = None
    older: list[Snapshot] = attrs.field(factory=list)

    def generation(self, number: int) -> Snapshot | None:
        """Find a generation among those that are known here."""
        known = (self.snapshot, *self.older)
        return next((snapshot for snapshot in known if snapshot.generation == number), None)

    def keep_older(self, *snapshots: Snapshot) -> None:
        """Let mounts read further generations; they may see them for as long as they may see the newest."""
        for snapshot in snapshots:
            snapshot.tenure = self.snapshot.tenure
        self.older = [*snapshots, *self.older][:MAX_OLDER]

    def is_superseded_by(self, stored: Stored) -> bool:
        """Tell whether what another process has kept takes the place of this.

        Nobody else knows of a snapshot that the store did not take: it gives way to one that it did, but for
        those that it came after itself.
        """
        if self.snapshot.generation < 0:
            return not stored.ended and self.generation(stored.generation) is None
        return stored.ended or stored.taken_at > self.snapshot.taken_at

    def confirm(self, at: float) -> None:
        """Note that another process was told the same."""
        if at > self.validated_at:
            self.clear()
            self.validated_at = at

    def fail(self, error: ImageServiceError, now: float) -> None:
        """Note that assisted-service could not be asked."""
        self.failing_since = now if self.failing_since is None else self.failing_since
        self.error, self.retry_at = error.copy(), now + RETRY_SECONDS

    def refuse(self, refusal: ImageServiceError, now: float) -> None:
        """Note that assisted-service has something against new mounts."""
        self.clear()
        self.refusal, self.retry_at = refusal.copy(), now + RETRY_SECONDS

    def clear(self) -> None:
        """Note that assisted-service has answered."""
        self.failing_since = self.error = self.refusal = None
        self.retry_at = 0.0
