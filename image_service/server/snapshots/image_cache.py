"""The cache of boot images, bounded by the bytes they hold: an evicted one is composed to the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from image_service.common.concurrency.lru import LruCache
from image_service.common.concurrency.single_flight import SingleFlight
from image_service.core.errors import Unprocessable
from image_service.core.images.netboot import compose_artifact
from image_service.core.images.reference import Kind
from image_service.server.http.respond import Representation
from image_service.server.snapshots.storage.snapshot import SnapshotEvent, VersionLost
from image_service.server.snapshots.versions import ComposedVersion

if TYPE_CHECKING:
    from collections.abc import Callable

    from image_service.core.images.base_image import BaseImage
    from image_service.core.images.boot_image import BootImage
    from image_service.server.snapshots.image_builder import ImageBuilder
    from image_service.server.snapshots.snapshots import Snapshots
    from image_service.server.snapshots.versions import Version

MAX_REFUSED = 1024
MAX_COMPOSING = 1024
"""Images that are composed at once; beyond that is more than can be made in time."""


class BootImageCache:
    """Composes versions, and keeps them.

    Args:
        limit_bytes: that all composed images may hold in memory; the least recently used is evicted.
    """

    def __init__(
        self,
        builder: ImageBuilder,
        snapshots: Snapshots,
        limit_bytes: int,
        count: Callable[[SnapshotEvent], None],
    ) -> None:
        self._builder = builder
        self._snapshots = snapshots
        self._composed: LruCache[Version, ComposedVersion] = LruCache(
            limit_bytes, lambda composed: composed.held_bytes, lambda *_: count(SnapshotEvent.EVICTION)
        )
        self._refused: LruCache[Version, Unprocessable] = LruCache(MAX_REFUSED)
        self._composing: SingleFlight[Version, ComposedVersion] = SingleFlight(MAX_COMPOSING)

    @property
    def held_bytes(self) -> int:
        """What all composed images hold in memory."""
        return self._composed.held_bytes

    @property
    def refused_bytes(self) -> int:
        """What errors of images that cannot be composed take in memory, about."""
        return self._refused.held_bytes

    def get_cached_composed(self, version: Version) -> ComposedVersion | None:
        """Return a version if it is composed."""
        return self._composed.get(version)

    async def get(self, version: Version) -> ComposedVersion:
        """Return a version, composed if need be.

        Raises:
            Unprocessable: its customization cannot be laid over its base, and never will be.
            VersionLost: its customization is not stored any more, or no replica has its layout.
            ImageServiceError: it cannot be composed now.
        """
        composed = self.get_cached_composed(version)
        if composed is not None:
            return composed
        refusal = self._refused.peek(version)
        if refusal is not None:
            raise refusal.copy()
        return await self._composing.join(version, lambda: self._compose(version))

    def forget(self, base: BaseImage) -> None:
        """Drop what is made of a base image: of this very one, not of another of the same bytes."""
        for cache in (self._composed, self._refused):
            for version in [version for version in cache if version.base is base]:
                cache.pop(version)

    async def _compose(self, version: Version) -> ComposedVersion:
        try:
            image = await self._build(version)
        except Unprocessable as error:
            self._refused[version] = error.copy()
            raise
        composed = self._composed[version] = ComposedVersion(version, Representation(image))
        return composed

    async def _build(self, version: Version) -> BootImage:
        ref, base, snapshot = version.ref, version.base, version.snapshot
        if not ref.needs_customization:
            return compose_artifact(base, ref.artifact)
        if snapshot is None:
            msg = f"{ref} has no snapshot"
            raise TypeError(msg)
        layout = self._snapshots.layouts.get(snapshot.layout)
        if ref.kind is Kind.INITRD_ADDRSIZE:
            initrd = attrs.evolve(version, ref=attrs.evolve(ref, kind=Kind.PXE_INITRD))
            image = (await self.get(initrd)).representation.image
            return self._builder.build_initrd_addrsize(ref, base, image, layout)
        customization = await self._snapshots.load(snapshot)
        if customization is None:
            raise VersionLost
        return await self._builder.build(ref, base, customization, layout)
