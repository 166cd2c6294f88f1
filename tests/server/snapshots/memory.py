"""The snapshot repository in memory: it ends with the process."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import attrs

from image_service.server.snapshots.storage.repository import (
    KEPT_GENERATIONS,
    NO_LAYOUT,
    StoredMount,
    StoredSnapshot,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from image_service.server.snapshots.storage.repository import Owner


@attrs.define(eq=False)
class _Row:
    stored: StoredSnapshot
    sealed: bytes | None
    used_at: float


@attrs.define(eq=False)
class MemoryRepository:
    """Stores snapshots and mounts in dictionaries. See ``SnapshotRepository``."""

    _rows: dict[tuple[bytes, int], _Row] = attrs.field(factory=dict)
    _mounts: dict[bytes, StoredMount] = attrs.field(factory=dict)

    async def find_newest(self, key: bytes) -> StoredSnapshot | None:
        """Return the newest generation of a key."""
        newest = self._newest(key)
        return self._rows[key, newest].stored if newest else None

    async def has_ended(self, key: bytes, generation: int) -> bool:
        """Return True if a generation has ended, or one after it."""
        later = [each for each in self._generations(key) if each >= generation]
        return any(self._rows[key, each].sealed is None for each in later)

    async def find_layout(self, key: bytes, generation: int) -> int | None:
        """Return the layout of a generation."""
        row = self._rows.get((key, generation))
        return row.stored.layout if row and row.sealed is not None else None

    async def load(self, key: bytes, generation: int) -> bytes | None:
        """Return a payload."""
        row = self._rows.get((key, generation))
        return row.sealed if row else None

    async def add(  # noqa: PLR0913 - a row
        self,
        key: bytes,
        generation: int,
        sealed: bytes,
        taken_at: float,
        owner: Owner | None = None,  # noqa: ARG002 - any number is kept
        *,
        layout: int = NO_LAYOUT,
    ) -> bool:
        """Store a new generation."""
        if generation <= self._newest(key):
            return False
        self._rows[key, generation] = _Row(
            StoredSnapshot(generation, taken_at, taken_at, layout=layout), sealed, taken_at
        )
        for other in sorted(self._generations(key))[:-KEPT_GENERATIONS]:
            del self._rows[key, other]
        return True

    async def record_validation(self, key: bytes, generation: int, at: float) -> bool:
        """Record an equal answer of assisted-service."""
        row = self._rows.get((key, generation))
        if row is None or row.sealed is None:
            return False
        row.stored = attrs.evolve(row.stored, validated_at=at, is_refused=False)
        row.used_at = at
        return True

    async def record_refusal(self, key: bytes, generation: int) -> None:
        """Record that assisted-service refuses it."""
        row = self._rows.get((key, generation))
        if row:
            row.stored = attrs.evolve(row.stored, is_refused=True)

    async def end(self, key: bytes, at: float) -> None:
        """Remove all generations of a key."""
        newest = self._newest(key)
        if newest:
            ended = attrs.evolve(self._rows[key, newest].stored, is_refused=True)
            for generation in self._generations(key):
                del self._rows[key, generation]
            self._rows[key, newest] = _Row(ended, None, at)

    async def save_mounts(self, mounts: Sequence[StoredMount], now: float) -> None:
        """Store mounts."""
        for mount in mounts:
            before = self._mounts.get(mount.reader)
            if (
                before is None
                or not mount.replaces_before <= before.read_at <= now
                or _is_later_of_same(before, mount)
            ):
                self._mounts[mount.reader] = mount
            row = self._rows.get((mount.key, mount.generation))
            if row and not mount.read_at <= row.used_at <= now:
                row.used_at = mount.read_at

    async def find_mount(self, reader: bytes) -> StoredMount | None:
        """Return a reader's mount."""
        return self._mounts.get(reader)

    async def count_mounts(self, read_since: float) -> dict[str, int]:
        """Return how many mounts have read each base image since a time."""
        return dict(Counter(m.base_sha256 for m in self._mounts.values() if m.read_at >= read_since))

    async def remove_unused(self, unused_since: float, now: float) -> int:
        """Remove what has not been used."""
        before = len(self._rows)
        for row in self._rows.values():
            row.used_at = min(row.used_at, now)
        for key in {key for key, _ in self._rows}:
            for generation in sorted(self._generations(key)):
                if self._rows[key, generation].used_at >= unused_since:
                    break
                del self._rows[key, generation]
        self._mounts = {
            reader: mount for reader, mount in self._mounts.items() if unused_since <= mount.read_at <= now
        }
        return before - len(self._rows)

    async def close(self) -> None:
        """Keep everything."""

    def _generations(self, key: bytes) -> list[int]:
        return [generation for other, generation in self._rows if other == key]

    def _newest(self, key: bytes) -> int:
        return max(self._generations(key), default=0)


def _is_later_of_same(before: StoredMount, mount: StoredMount) -> bool:
    if before.generation < 0:
        before = attrs.evolve(before, generation=mount.generation)
    return attrs.evolve(before, read_at=mount.read_at) == mount and before.read_at <= mount.read_at
