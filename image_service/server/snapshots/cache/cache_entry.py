"""Cache entries: the newest snapshot of a key, and older ones that mounts read. Knows no clock."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from image_service.server.snapshots.storage.validity import Validity

if TYPE_CHECKING:
    from image_service.server.snapshots.storage.repository import StoredSnapshot
    from image_service.server.snapshots.storage.snapshot import Snapshot

MAX_OLDER = 8
"""Older generations of one key that are kept in memory."""


class CacheEntry:
    """The snapshots of a key, which have one validity. Its methods alone write it.

    Args:
        snapshot: the newest.
        validated_at: see `Validity`.
        key_counter: the version of the key in `Coordination` when this was read.
        is_refused: assisted-service has refused the newest since, which another process knows.
    """

    def __init__(
        self, snapshot: Snapshot, validated_at: float, key_counter: int, *, is_refused: bool = False
    ) -> None:
        self.snapshot = snapshot
        self.key_counter = key_counter
        self.validity = Validity(validated_at)
        self.older: list[Snapshot] = []
        """Superseded snapshots, the latest first."""
        snapshot.join(self.validity, is_newest=True)
        if is_refused:
            self.validity.record_answer(validated_at, is_refused=True)

    def find_generation(self, number: int) -> Snapshot | None:
        """Return a generation if it is known here."""
        return next((known for known in (self.snapshot, *self.older) if known.generation == number), None)

    def add_older(self, snapshot: Snapshot) -> None:
        """Let mounts read an older generation, for as long as they may read the newest."""
        snapshot.join(self.validity, is_newest=False)
        self.older = [snapshot, *self.older][:MAX_OLDER]

    def replace(self, snapshot: Snapshot, key_counter: int) -> None:
        """Put a new generation in the place of the newest, which becomes an older one; as valid as that."""
        self.add_older(self.snapshot)
        snapshot.join(self.validity, is_newest=True)
        self.snapshot, self.key_counter = snapshot, key_counter

    def record_read(self, key_counter: int) -> None:
        """Record that what is stored at this version of the key is known."""
        self.key_counter = key_counter

    def is_superseded_by(self, stored: StoredSnapshot) -> bool:
        """Return True if what another process has stored takes the place of the newest.

        Numbers start again in a new repository. A snapshot that the repository did not take is superseded by
        any that it did, but those before it.
        """
        if self.snapshot.generation < 0:
            return not stored.is_refused and self.find_generation(stored.generation) is None
        newest = self.snapshot
        return (stored.generation, stored.taken_at) != (newest.generation, newest.stored_at)

    def update(self, stored: StoredSnapshot) -> None:
        """Record what another process has been answered."""
        validity = self.validity
        if stored.is_refused:
            if not validity.is_refused:
                validity.record_refusal(None, at=-inf)
            return
        # Its answer before the refusal is not new, even if the refusal was not stored.
        is_news = stored.validated_at > max(validity.validated_at, validity.refused_at)
        if is_news and stored.generation == self.snapshot.generation:
            validity.record_answer(stored.validated_at)
