"""A store of snapshots that ends with the process: for tests of those who use one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.snapshots.repository import KEPT_GENERATIONS, Mount, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.define(eq=False)
class _Row:
    stored: Stored
    sealed: bytes | None
    used_at: float


@attrs.define(eq=False)
class MemoryStore:
    """Keeps snapshots and mounts in dictionaries; it passes the same contract test as every store."""

    _rows: dict[tuple[bytes, int], _Row] = attrs.field(factory=dict)
    _mounts: dict[bytes, Mount] = attrs.field(factory=dict)

    async def latest(self, key: bytes) -> Stored | None:
        return self._rows[key, self._newest(key)].stored if self._newest(key) else None

    async def load(self, key: bytes, generation: int) -> bytes | None:
        row = self._rows.get((key, generation))
        return row.sealed if row else None

    async def add(self, key: bytes, generation: int, sealed: bytes, taken_at: float) -> bool:
        if generation <= self._newest(key):
            return False
        self._rows[key, generation] = _Row(Stored(generation, taken_at, taken_at), sealed, taken_at)
        for other in self._generations(key):
            if other <= generation - KEPT_GENERATIONS:
                del self._rows[key, other]
        return True

    async def validated(self, key: bytes, generation: int, at: float) -> None:
        row = self._rows.get((key, generation))
        if row and not row.stored.ended:
            row.stored = attrs.evolve(row.stored, validated_at=max(row.stored.validated_at, at))
            row.used_at = max(row.used_at, at)

    async def end(self, key: bytes, at: float) -> None:
        newest = self._newest(key)
        if newest:
            ended = attrs.evolve(self._rows[key, newest].stored, ended=True)
            for generation in self._generations(key):
                del self._rows[key, generation]
            self._rows[key, newest] = _Row(ended, None, at)
        self._mounts = {reader: mount for reader, mount in self._mounts.items() if mount.key != key}

    async def save_mounts(self, mounts: Sequence[Mount]) -> None:
        for mount in mounts:
            before = self._mounts.get(mount.reader)
            if before is None or before.read_at < mount.since or _is_later_of_same(before, mount):
                self._mounts[mount.reader] = mount
            row = self._rows.get((mount.key, mount.generation))
            if row:
                row.used_at = max(row.used_at, mount.read_at)

    async def mount(self, reader: bytes) -> Mount | None:
        return self._mounts.get(reader)

    async def sweep(self, unused_since: float) -> int:
        before = len(self._rows)
        for key in {key for key, _ in self._rows}:
            for generation in sorted(self._generations(key)):
                if self._rows[key, generation].used_at >= unused_since:
                    break
                del self._rows[key, generation]
        self._mounts = {
            reader: mount for reader, mount in self._mounts.items() if mount.read_at >= unused_since
        }
        return before - len(self._rows)

    async def close(self) -> None:
        pass

    def _generations(self, key: bytes) -> list[int]:
        return [generation for other, generation in self._rows if other == key]

    def _newest(self, key: bytes) -> int:
        return max(self._generations(key), default=0)


def _is_later_of_same(before: Mount, mount: Mount) -> bool:
    return attrs.evolve(before, read_at=mount.read_at) == mount and before.read_at <= mount.read_at
