"""Which version a request is for: the newest of what it names, or the one that its reader was reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

from image_service.errors import ImageServiceError
from image_service.images.reference import ISOS, ImageRef
from image_service.snapshots.image_cache import VersionLost
from image_service.snapshots.model import SnapshotKey
from image_service.snapshots.resolver import is_complete
from image_service.snapshots.versions import Version

if TYPE_CHECKING:
    from image_service.images.reference import Credentials, Reader, Ref
    from image_service.snapshots.image_builder import ImageBuilder
    from image_service.snapshots.repository import StoredMount
    from image_service.snapshots.resolver import Resolver
    from image_service.snapshots.snapshots import Snapshots

_LOST = "the image that was being read no longer exists"


class VersionFinder:
    """Finds versions.

    Args:
        builder: finds base images.
        resolver: completes references.
        snapshots: what is laid over base images.
    """

    def __init__(self, builder: ImageBuilder, resolver: Resolver, snapshots: Snapshots) -> None:
        self._builder = builder
        self._resolver = resolver
        self._snapshots = snapshots

    def get_cached(self, reader: Reader) -> Version | None:
        """Return the newest version if it is known; else `get` it."""
        ref = self._resolver.get_cached(reader.ref, reader.credentials)
        if ref is None:
            return None
        snapshot = None
        if ref.needs_customization:
            snapshot = self._snapshots.get_cached(_key_of(ref, reader.credentials))
            if snapshot is None:
                return None
        try:
            return Version(ref, self._builder.find_base(ref), snapshot)
        except ImageServiceError:
            return None  # ``get`` raises it

    async def get(self, reader: Reader) -> Version:
        """Return the newest version; raises ImageServiceError if there is none."""
        ref = await self._resolver.resolve(reader.ref, reader.credentials)
        base = self._builder.find_base(ref)
        if not ref.needs_customization:
            return Version(ref, base, None)
        key = _key_of(ref, reader.credentials)
        return Version(ref, base, await self._snapshots.get(key, reader.credentials))

    async def find_stored(self, reader: Reader, stored: StoredMount) -> Version:
        """Return the version that a reader was reading.

        What its reference leaves open is what it was when the reader started: the infra-env may say otherwise
        by now, and is not asked.

        Raises:
            VersionLost: it no longer exists.
            ImageServiceError: it must not be seen any more.
        """
        ref = self._complete(reader, stored)
        base = self._builder.find_base(ref)
        key = _key_of(ref, reader.credentials)
        snapshot = await self._snapshots.find_generation(key, reader.credentials, stored.generation)
        if snapshot is None or snapshot.stored_key != stored.key or base.sha256 != stored.base_sha256:
            raise VersionLost(_LOST)  # an alias may have moved on
        return Version(ref, base, snapshot)

    def _complete(self, reader: Reader, stored: StoredMount) -> Ref:
        """Complete a reader's reference by what was made of it."""
        ref = reader.ref
        if not ref.needs_customization or is_complete(ref):
            return ref
        for kind in (ref.kind,) if ref.kind else ISOS:
            key = SnapshotKey.of(ref.infra_env_id, kind.customization_kind, reader.credentials)
            base = self._builder.catalog.find_by_digest(stored.base_sha256, kind)
            if base is not None and self._snapshots.stored_key_of(key, reader.credentials) == stored.key:
                version, architecture = ref.version or base.version, ref.architecture or base.architecture
                return ImageRef(ref.infra_env_id, version, architecture, kind)
        raise VersionLost(_LOST)


def _key_of(ref: Ref, credentials: Credentials | None) -> SnapshotKey:
    if not ref.needs_customization or ref.kind is None:
        msg = f"{ref} has no snapshot"
        raise TypeError(msg)
    return SnapshotKey.of(ref.infra_env_id, ref.kind.customization_kind, credentials)
