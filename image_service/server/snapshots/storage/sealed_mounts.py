"""Mounts in a repository: which version each reader reads, under a key that names nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.core.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from image_service.core.images.reference import Reader
    from image_service.server.snapshots.storage.encryption import SnapshotCipher
    from image_service.server.snapshots.storage.repository import SnapshotRepository, StoredMount
    from image_service.server.snapshots.storage.repository_access import RepositoryAccess
    from image_service.server.snapshots.storage.stored_time import StoredTime


class SealedMounts:
    """Stores mounts. Instants are the clock's seconds."""

    def __init__(
        self,
        repository: SnapshotRepository,
        access: RepositoryAccess,
        time: StoredTime,
        get_cipher: Callable[[], SnapshotCipher],
    ) -> None:
        self._repository = repository
        self._access = access
        self._time = time
        self._get_cipher = get_cipher

    def key_of(self, reader: Reader) -> bytes:
        """Return what stands for a reader in the repository."""
        ref = reader.ref
        if not ref.needs_customization:
            text = f"{ref.artifact.value} {ref.version} {ref.architecture}"
        else:
            kind = ref.kind.value if ref.kind else None
            text = f"{ref.infra_env_id} {ref.version} {ref.architecture} {kind}"
        if reader.pin is not None:
            text += f" {reader.pin.generation} {reader.pin.base_sha256}"
        return self._get_cipher().reader_key_of(reader.address, reader.credentials, text)

    async def save(self, mounts: Sequence[StoredMount]) -> bool:
        """Store which version each reader reads; return False if that failed."""
        stored = [
            attrs.evolve(
                mount,
                read_at=self._time.to_stored(mount.read_at),
                replaces_before=self._time.to_stored(mount.replaces_before),
            )
            for mount in mounts
        ]

        async def save() -> bool:
            await self._repository.save_mounts(stored, self._time.latest())
            return True

        return not stored or await self._access.write(save()) is True

    async def find(self, reader_key: bytes) -> StoredMount | None:
        """Return what a reader was reading."""
        stored = await self._access.read(self._repository.find_mount(reader_key))
        return stored and attrs.evolve(stored, read_at=self._time.to_monotonic(stored.read_at))

    async def count(self, read_since: float) -> dict[str, int] | None:
        """Return how many mounts have read each base image since a time; None if that cannot be read."""
        counting = self._repository.count_mounts(self._time.to_stored(read_since))
        try:
            return await self._access.read(counting)
        except Unavailable:
            return None
